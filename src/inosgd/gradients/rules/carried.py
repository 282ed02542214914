"""Carried tensors: computed from trained parameters and constants alone, such as slices and normalised weights.

What meets the batch in place of a parameter has gradients of its own. They are pulled back to the parameters behind it
through its graph, which autograd keeps, example by example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from inosgd.gradients.rules.forms import Dense
from inosgd.gradients.rules.recorder import Recorder
from inosgd.gradients.rules.rule import Gradients

_RESHAPES = frozenset({"ViewBackward0", "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1"})
"""Names of nodes of autograd behind which entries are the same and in the same order."""


class Carried(NamedTuple):
    """A tensor that was computed from parameters alone.

    Attributes:
        tensor: The tensor.
        where: What to call it in messages.
        lookups: The rows that it consists of, if it is a table's and was not changed since.
    """

    tensor: torch.Tensor
    where: str
    lookups: Lookup | None = None


class Lookup(NamedTuple):
    """What `embedding_rule` is shown as a layer, and the indices."""

    layer: SimpleNamespace
    indices: torch.Tensor


class CarriedUses(NamedTuple):
    """Stands in for a recorder where parameters may be carried tensors, from which gradients are pulled back."""

    recorder: Recorder
    behind: Mapping[int, Carried]

    def where(self, _: torch.Tensor) -> str:
        """Whose parameters they are, for messages."""
        return next(iter(self.behind.values())).where

    def add(
        self, outputs: Sequence[torch.Tensor], parts: Callable[..., Gradients], kept: Sequence[torch.Tensor], where: str
    ) -> None:
        """See `Recorder.add`."""
        shared = [each.tensor for each in self.behind.values()]
        self.recorder.add(outputs, lambda *each: pulled(parts(*each), self.behind), kept, where, carried=shared)


def pulled(found: Gradients, behind: Mapping[int, Carried]) -> Gradients:
    """Gradients with respect to parameters, from gradients with respect to what was computed from them."""
    if all(isinstance(tensor, nn.Parameter) for key in found for tensor in key):
        return found
    sums: dict[nn.Parameter, torch.Tensor] = {}
    for key, form in found.items():
        for tensor, part in zip(key, form.materialise(), strict=True):
            for parameter, gradient in through_graph(behind[id(tensor)], part).items():
                sums[parameter] = sums[parameter] + gradient if parameter in sums else gradient
    return {(parameter,): Dense((gradient,)) for parameter, gradient in sums.items()}


def through_graph(carried: Carried, gradients: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
    """For every parameter behind a carried tensor, its gradient for each example."""
    if isinstance(carried.tensor, nn.Parameter):
        return {carried.tensor: gradients}
    reshaped = _reshaped(carried.tensor)
    if reshaped is not None:
        return {reshaped: gradients.reshape(len(gradients), *reshaped.shape)}

    sources = _parameters_behind(carried.tensor)

    def pull(gradient: torch.Tensor, batched: bool) -> Sequence[torch.Tensor | None]:
        given = (carried.tensor, sources, gradient)
        return torch.autograd.grad(*given, retain_graph=True, allow_unused=True, is_grads_batched=batched)

    try:
        found = pull(gradients, True)
    except RuntimeError:
        columns = zip(*[pull(gradient, False) for gradient in gradients], strict=True)
        found = [None if column[0] is None else torch.stack(column) for column in columns]
    return {parameter: part for parameter, part in zip(sources, found, strict=True) if part is not None}


def _reshaped(tensor: torch.Tensor) -> nn.Parameter | None:
    """The parameter whose entries a tensor has in their order, in another shape; None for any other tensor."""
    node: Any = tensor.grad_fn
    while type(node).__name__ in _RESHAPES:
        node = node.next_functions[0][0]
    source = getattr(node, "variable", None)
    return source if isinstance(source, nn.Parameter) and source.numel() == tensor.numel() else None


def _parameters_behind(tensor: torch.Tensor) -> list[nn.Parameter]:
    """The parameters that a tensor was computed from, by its graph: views may have changed it since."""
    return [leaf for leaf in leaves_behind(tensor) if isinstance(leaf, nn.Parameter)]


def leaves_behind(tensor: torch.Tensor, recorded: Set[Any] = frozenset()) -> list[torch.Tensor]:
    """The leaves of a tensor's graph; none if it has an edge among those that are ``recorded``."""
    waiting: list[Any] = [get_gradient_edge(tensor)[:2]]
    known, found = set(waiting), []
    while waiting:
        edge = waiting.pop()
        if edge in recorded:
            return []
        if getattr(edge[0], "variable", None) is not None:
            found.append(edge[0].variable)
        new = {each for each in edge[0].next_functions if each[0] is not None} - known
        known |= new
        waiting += new
    return list({id(leaf): leaf for leaf in found}.values())
