"""Notes taken during one forward pass: what each layer saw, and where its output gradient will arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import folded
from inosgd.gradients.rules.rule import Gradients

Parts = Callable[..., Gradients]
"""From the gradients of recorded outputs to the gradients of the parameters behind them."""

Edge = tuple[Node, int]
"""A node of autograd's graph, and which of its outputs."""

_HALF = (torch.float16, torch.bfloat16)


class LayoutError(InvalidArgumentError):
    """Examples are not where they were taken to be."""


class Reading(NamedTuple):
    """Where examples are taken to be where shapes do not tell; whether it is right is told by values.

    Attributes:
        constants: Whether layers that are given nothing of the batch have outputs without a dimension of examples,
            however many rows these have.
        sequence_first: Whether dimension 1 of a tensor with three dimensions or more counts the examples, if it has as
            many entries as there are examples.
    """

    constants: bool = False
    sequence_first: bool = False


READINGS = (Reading(), Reading(constants=True), Reading(sequence_first=True), Reading(True, True))
"""What is tried, in this order, for a model that has not been checked yet."""


class Output(NamedTuple):
    """A recorded output: its edge in the graph, where its gradient arrives, and what a zero gradient looks like.

    The edge is None where the output has no gradient: nothing trainable is behind it.
    """

    edge: GradientEdge | None
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> torch.Tensor:
        """The gradient of an output that no loss depends on."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


class Record(NamedTuple):
    """One use of parameters in the forward pass.

    Attributes:
        outputs: What was computed from the parameters.
        parts: What to make of the outputs' gradients.
        kept: The tensors that ``parts`` needs, each with the version it had when it was recorded.
        where: Whose parameters they are, for messages.
        examples: How many examples there are.
        places: How many consecutive gradients that ``parts`` returns make that of an example.
        behind: Where the gradients of the tensors go on that the outputs were computed from, besides the parameters.
    """

    outputs: tuple[Output, ...]
    parts: Parts
    kept: tuple[tuple[torch.Tensor, int], ...]
    where: str
    examples: int
    places: int = 1
    behind: tuple[Edge, ...] = ()

    def check_unchanged(self) -> None:
        """Refuse tensors that were changed in place since they were recorded."""
        for tensor, version in self.kept:
            if tensor._version == version:
                continue
            raise InvalidArgumentError(
                f"module {self.where!r}: its input or its states were changed in place after it had used them; use "
                "operations that are not in place (inplace=False, x = x + y)"
            )

    def gradients(self, output_gradients: Sequence[torch.Tensor | None]) -> Gradients:
        """The per-example gradients of the parameters; an output without a gradient has a gradient of 0."""
        if all(gradient is None for gradient in output_gradients):
            return {}
        pairs = zip(self.outputs, output_gradients, strict=True)
        found = self.parts(*[output.zeros() if gradient is None else gradient for output, gradient in pairs])
        if self.places == 1:
            return found
        return {parameters: folded(form, self.places, self.examples) for parameters, form in found.items()}


class Watching(Protocol):
    """See `inosgd.gradients.rules.watch.Watch`."""

    used: bool
    events: int

    def carried(self, tensor: torch.Tensor) -> object:
        """Not None for a trained parameter, or what was computed from such alone."""

    def is_of_batch(self, tensor: torch.Tensor) -> bool:
        """Whether the examples had a part in a tensor."""

    def follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the examples had a part in tensors."""


class Recorder:
    """Collects the records of one forward pass.

    Attributes:
        count: How many examples the pass is over.
        records: What was recorded so far, in the order of the pass.
        lengths: While a recurrent layer runs on sequences of different lengths, how long each of them is.
        folds: The calls whose output did not have one row per example: the module, and how many rows an example has, 0
            for one row that all examples share, -d where dimension d > 0 counts the examples.
        calls: Whose parameters were used, and how many rows an example had in the outputs.
        watch: What records functions outside of layers with rules, if anything does.
        in_layer: Whether a layer with a rule is being called.
        carrying: Whether a function of parameters alone is being called, through which gradients are pulled back.
        quiet: Whether a module is called inside which nothing is watched: all that its layers see is of the batch.
        constant: The layers whose outputs are known to be the same for all examples, without a dimension of them.
        reading: Where examples are taken to be.
        turned: Whose outputs had examples in dimension 1 in batches that were checked; None if there were none.
        shapes: For every name in ``calls``, the shapes that an example had in the outputs.
        padded: How long sequences were that were packed, by the identity of their ``batch_sizes``.
    """

    def __init__(
        self,
        count: int,
        names: Mapping[int, str],
        reading: Reading = READINGS[0],
        turned: Set[str] | None = None,
    ) -> None:
        self.count = count
        self.reading = reading
        self.turned = turned
        self.records: list[Record] = []
        self.lengths: torch.Tensor | None = None
        self.folds: list[tuple[str, int]] = []
        self.calls: set[tuple[str, int]] = set()
        self.shapes: dict[str, set[tuple[int, ...]]] = {}
        self.padded: dict[int, tuple[torch.Tensor, int]] = {}
        self.watch: Watching | None = None
        self.in_layer = False
        self.carrying = False
        self.quiet = False
        self.constant: set[str] = set()
        self._names = names
        self._rows = count

    def add(
        self,
        outputs: Sequence[torch.Tensor],
        parts: Parts,
        kept: Sequence[torch.Tensor],
        where: str,
        *,
        example_dim: int | Sequence[int] = 0,
        by_example: bool = False,
        copied: Sequence[torch.Tensor] = (),
        carried: Sequence[torch.Tensor] = (),
    ) -> None:
        """Record that ``outputs`` were computed from trainable parameters; nothing, if none of them has a gradient.

        Args:
            outputs: The outputs.
            parts: From their gradients to those of the parameters, one for every row of the outputs.
            kept: What it needs.
            where: Whose parameters they are, for messages.
            example_dim: Which dimension of the outputs counts rows; one for all, or one for each.
            by_example: Whether ``parts`` has put the rows of an example together already.
            copied: What else the outputs were computed from, of which ``parts`` has copies.
            carried: What ``parts`` needs that was computed from parameters alone.
        """
        if not any(output.requires_grad for output in outputs):
            return
        _check_precision([*outputs, *kept], where)
        dims = [example_dim] * len(outputs) if isinstance(example_dim, int) else example_dim
        places = [self.places(output, where, dim) for output, dim in zip(outputs, dims, strict=True)]
        if places.count(places[0]) < len(places) and not by_example:
            raise LayoutError(
                f"module {where!r}: outputs with {places} rows per example; give all the same, or use ReferenceEngine"
            )
        self.calls.add((where, places[0]))
        shapes = self.shapes.setdefault(where, set())
        for each, dim in zip(outputs, dims, strict=True):
            shapes.add((places[0], *each.shape[:dim], *each.shape[dim + 1 :]))
        if places[0] > 1 < self.count:
            self.folds.append((where, places[0]))
        elif self.count > 1 and by_example and max(dims) > 0:
            self.folds.append((where, -max(dims)))
        described = tuple(_describe(output) for output in outputs)
        versions = tuple((tensor, tensor._version) for tensor in (*kept, *carried))
        behind = tuple(get_gradient_edge(tensor)[:2] for tensor in (*kept, *copied) if tensor.requires_grad)
        of_example = 1 if by_example else places[0]
        self.records.append(Record(described, parts, versions, where, self.count, of_example, behind))

    def places(self, output: torch.Tensor, where: str, example_dim: int = 0) -> int:
        """How many rows of an output make an example: those of an example follow each other.

        That they do is a guess from a shape; `inosgd.gradients.values` tells whether it is right.
        """
        rows = output.shape[example_dim] if output.dim() > example_dim else 0
        if rows == 0 or rows % self.count:
            raise LayoutError(
                f"module {where!r}: an output of shape {tuple(output.shape)} for {self.count} examples, whose rows "
                f"belong to no example; let dimension {example_dim} count the examples (batch_first=True), or the same "
                "number of rows for each of them, one example after the other, or use ReferenceEngine"
            )
        if example_dim == 0:
            self._rows = rows
        return rows // self.count

    def is_shared(self, values: torch.Tensor) -> bool:
        """Whether values are one row for all examples, like embeddings of positions, which broadcast onto a batch."""
        return values.dim() > 0 and len(values) == 1 < self.count and not self.flipped(values, "")

    def flipped(self, values: torch.Tensor, where: str) -> bool:
        """Whether dimension 1 counts the examples, by the reading.

        If dimension 0 may count them as well, a batch that was checked decides, in which it could not.
        """
        if not self.reading.sequence_first or values.dim() < 3 or values.shape[1] != self.count:
            return False
        return self.turned is None or len(values) % self.count > 0 or where in self.turned

    def per_example(self, values: Any) -> Any:
        """Tensors of one row as a row for each example, all in one place in memory; everything else as it is.

        The gradient of an example's row comes from that example's loss alone, where broadcasting would have added up
        those of all examples. If examples have several rows in the layers before, they have them here.
        """
        return pytree.tree_map_only(
            torch.Tensor,
            lambda each: each.expand(self._rows, *each.shape[1:]) if self.is_shared(each) else each,
            values,
        )

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Inside, a layer with a rule is being called."""
        before, self.in_layer = self.in_layer, True
        try:
            yield
        finally:
            self.in_layer = before

    @contextmanager
    def of_parameters(self) -> Iterator[None]:
        """Inside, a function of parameters alone is being called."""
        self.carrying = True
        try:
            yield
        finally:
            self.carrying = False

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Inside, nothing is watched."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def records_functions_of(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter is one of recurrent or attention modules."""
        return id(parameter) in self._names

    def where(self, parameter: nn.Parameter) -> str:
        """The module that a parameter belongs to, for messages."""
        return self._names.get(id(parameter), "a module")


class Rehearsal(Recorder):
    """Records nothing: for what checkpoints compute again in the backward pass, in the way of the first time."""

    def add(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def _check_precision(tensors: Sequence[torch.Tensor], where: str) -> None:
    """Refuse half precision, whose roundings no bound on norms and sums allows for."""
    for tensor in tensors:
        if tensor.dtype in _HALF:
            raise InvalidArgumentError(
                f"module {where!r}: it computes with {tensor.dtype}; compute in float32 or float64, without "
                "torch.autocast inside the model or its losses, or use ReferenceEngine"
            )


def _describe(output: torch.Tensor) -> Output:
    edge = get_gradient_edge(output) if output.requires_grad else None
    return Output(edge, output.shape, output.dtype, output.device)
