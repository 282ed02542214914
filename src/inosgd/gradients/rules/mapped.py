"""Calls mapped over the examples: the vector-Jacobian product of a function for each example of its batch.

For a function f of an example x_i and of parameters w, g_i = d_i^T df(x_i, w)/dw. That f gives x_i alone what it gave
it in its batch is compared every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from inosgd.gradients.rules.carried import Carried
from inosgd.gradients.rules.recorder import LayoutError


class Layout(NamedTuple):
    """Where the examples are in a tensor of the batch.

    Attributes:
        dim: The dimension that counts their rows; those of an example follow each other.
        rows: How many rows each of them has there.
    """

    dim: int
    rows: int


class Mapped(NamedTuple):
    """A call that is mapped over examples."""

    name: str
    where: str
    func: Any
    leaves: list[Any]
    structure: Any
    layouts: list[Layout | None]
    used: list[Carried]
    examples: int

    def again(self) -> list[torch.Tensor]:
        """What the call returned, for outputs that were changed in place since."""
        arguments, keywords = pytree.tree_unflatten(self.leaves, self.structure)
        return _floats(self.func(*arguments, **keywords))

    def gradients(self, gradients: list[torch.Tensor], outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """For every carried argument, what each example's loss would change it by."""
        pairs = list(zip(self.leaves, self.layouts, strict=True))
        batched = [by_example(leaf.detach(), layout) for leaf, layout in pairs if layout]
        values = [each.tensor.detach() for each in self.used]
        places = {id(each.tensor): index for index, each in enumerate(self.used)}

        def one(gradient: list[torch.Tensor], example: list[torch.Tensor]) -> Any:
            def call(*values: torch.Tensor) -> list[torch.Tensor]:
                parts = iter(example)
                given = [
                    next(parts) if layout else values[places[id(leaf)]] if id(leaf) in places else leaf
                    for leaf, layout in pairs
                ]
                arguments, keywords = pytree.tree_unflatten(given, self.structure)
                return _floats(self.func(*arguments, **keywords))

            output, pull, *_ = vjp(call, *values)
            return output, pull(gradient)

        try:
            found, parts = vmap(one)(gradients, batched)
        except Exception:  # no batching rule, a branch on values
            found, parts = self._one_by_one(one, gradients, batched)
        self._compare(found, outputs)
        return list(parts)

    def _one_by_one(self, one: Callable[..., Any], gradients: list[torch.Tensor], batched: list[torch.Tensor]) -> Any:
        try:
            each = [one([d[i] for d in gradients], [a[i] for a in batched]) for i in range(self.examples)]
        except Exception as error:
            raise LayoutError(
                f"parameter {self.where!r}: {self.name} cannot be called with one example at a time ({error}): it "
                "mixes examples, or has them in another dimension than the first; change that, or use ReferenceEngine"
            ) from error
        return pytree.tree_map(lambda *parts: torch.stack(parts), *each)

    def _compare(self, found: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Refuse a function that gives an example something else alone than in its batch."""
        for one, other in zip(found, outputs, strict=True):
            tolerance = 1e-3 if other.dtype == torch.float32 else 1e-6
            if one.shape != other.shape or not torch.allclose(one, other, tolerance, tolerance, equal_nan=True):
                raise LayoutError(
                    f"parameter {self.where!r}: {self.name} gives an example something else alone than in its batch; "
                    "it mixes examples, has them in another dimension than the first, or draws random numbers: change "
                    "that, or register_rule for the module"
                )


def by_example(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Values as (examples, ...), each of them as if it had passed alone."""
    before, after = values.shape[: layout.dim], values.shape[layout.dim + 1 :]
    return values.reshape(*before, -1, layout.rows, *after).movedim(layout.dim, 0)


def _floats(result: Any) -> list[torch.Tensor]:
    """The tensors with gradients among what a function returns."""
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def off_its_base(result: Any, leaves: Sequence[Any]) -> Any:
    """A function's result, not as a view of a tensor that only the function itself knew.

    If a view is changed in place, autograd goes on from its base, past the place where the view was recorded.
    """
    given = {id(each) for leaf in leaves if isinstance(leaf, torch.Tensor) for each in (leaf, leaf._base)}

    def alone(each: torch.Tensor) -> torch.Tensor:
        inner = each._is_view() and id(each._base) not in given
        return torch.ops.aten._unsafe_view(each, each.shape) if inner else each

    return pytree.tree_map_only(torch.Tensor, alone, result)
