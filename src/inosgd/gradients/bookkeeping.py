"""The book-keeping engine: per-example norms and a weighted sum from one backward pass.

The forward pass notes what every layer saw. One backward pass then asks for the gradients of the layers' outputs
and of nothing else, so that no weight gradient is computed. From input and output gradient each layer's rule
gives the norms of its per-example gradients without forming them, and later their weighted sum at about the cost
of the weight gradients that were left out: a step costs what a plain step costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.errors import InosgdError
from inosgd.gradients.allocator import keep_freed_memory
from inosgd.gradients.checks import check_structure
from inosgd.gradients.engine import BatchGradients, ExampleLosses, Examples, Measured, count_examples
from inosgd.gradients.invariance import laid_out, passing
from inosgd.gradients.memory import examples_that_fit
from inosgd.gradients.page import Page
from inosgd.gradients.precision import full_precision
from inosgd.gradients.recording import flatten, record_pass, take
from inosgd.gradients.seen import UncheckedError
from inosgd.gradients.task import Task

TOGETHER = 512
"""How many sums of pieces are added up one after the other."""


@dataclass(frozen=True)
class BookkeepingEngine:
    """Norms and weighted sums of per-example gradients at about the cost of a plain step.

    Before every batch the model's structure is checked, and at batches 1, 2, 4, 8, ... the losses and gradients of the
    batch are compared to those of its parts by plain autograd (see `inosgd.gradients.checks`).

    Attributes:
        physical_batch_size: At most this many examples are on the way through the model at once, or a block of 8 to
            64 if that is more (see `inosgd.gradients.invariance`); None for all. A larger batch is measured piece by
            piece and then passed a second time for the weighted sum: the result is the same, and memory no longer
            grows with the batch.
        memory_limit: About how many bytes a pass may take on top of the model and its batch; None for any number.
            What an example takes is measured on a few of them before the first batch, and batches are split as far
            as needed, at most into single examples. No batch fails for its size, however far above its mean.
        allow_untested_device: The type of a device, such as "cuda", that no test of this library has run on, to use it
            all the same; see `inosgd.gradients.precision`.
    """

    physical_batch_size: int | None = None
    memory_limit: int | None = None
    allow_untested_device: str | None = None

    def __post_init__(self) -> None:
        if self.physical_batch_size is not None:
            _validate.whole(1, physical_batch_size=self.physical_batch_size)
        if self.memory_limit is not None:
            _validate.whole(1, memory_limit=self.memory_limit)

    @contextmanager
    def on(self, model: nn.Module, losses: ExampleLosses, examples: Examples) -> Iterator[BatchGradients]:
        """See `GradientEngine.on`. The model has hooks on it during forward passes only."""
        task = Task.of(model, losses)
        if task.device.type == "cpu":
            keep_freed_memory()
        with full_precision(task.device, allow_untested_device=self.allow_untested_device):
            yield self._passed(task, laid_out(examples))

    def _passed(self, task: Task, examples: Examples) -> BatchGradients:
        checks = check_structure(task, examples)
        size = self._size_of_pieces(task, examples)
        checks.values(task, examples, size)
        try:
            return self._recorded(checks.known(task), examples, size)
        except UncheckedError:
            checks.values(task, examples, size, anew=True)
            return self._recorded(checks.known(task), examples, size)

    def _recorded(self, task: Task, examples: Examples, size: int | None) -> BatchGradients:
        task, rows = passing(task, examples, _measured, size)
        count = count_examples(examples)
        if count <= rows:
            return record_pass(task, examples, rows)
        if size is None or count <= size:
            return PiecedBatch.recorded(task, examples, rows)
        return SplitBatch.measured(task, examples, rows)

    def _size_of_pieces(self, task: Task, examples: Examples) -> int | None:
        """How many examples may pass at once; None for any number."""
        if self.memory_limit is None:
            return self.physical_batch_size
        fitting = examples_that_fit(task, examples, self.memory_limit)
        return fitting if self.physical_batch_size is None else min(fitting, self.physical_batch_size)


def _measured(task: Task, examples: Examples) -> BatchGradients:
    return record_pass(task, examples)


@dataclass(frozen=True, eq=False, repr=False)
class PiecedBatch:
    """A batch that fits into memory and passes in pieces all the same (`inosgd.gradients.invariance`): all are kept."""

    pages: Sequence[Page]

    @classmethod
    def recorded(cls, task: Task, examples: Examples, rows: int) -> PiecedBatch:
        """The batch after its pass, in pieces of so many rows."""
        return cls([record_pass(task, take(examples, piece), rows) for piece in _pieces(examples, rows)])

    def measure(self) -> Measured:
        """See `BatchGradients.measure`."""
        return _joined([page.measure() for page in self.pages])

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """See `BatchGradients.weighted_sum`. Pieces are added in float64, and have equal parts of the error."""
        counts = [page.count for page in self.pages]
        _validate.same_length(coefficients=coefficients, losses=range(sum(counts)))
        parts = zip(self.pages, np.split(coefficients, np.cumsum(counts)[:-1]), strict=True)
        return added_up(page.weighted_sum(part, error / len(counts)) for page, part in parts)


@dataclass(frozen=True, eq=False, repr=False)
class SplitBatch:
    """A batch that passes through the model in pieces, once to be measured and once to be summed.

    Both passes are recorded, so that a batch is summed in the same way whether it is split or not. Examples with
    c_i = 0 need not pass a second time. If the model draws random numbers (dropout), a piece passes again whole and
    with the generators where they stood, so that what is summed is what was measured.
    """

    task: Task
    examples: Examples
    rows: int
    pieces: Sequence[torch.Tensor]
    result: Measured
    before: Sequence[RandomState]
    after: RandomState

    @classmethod
    def measured(cls, task: Task, examples: Examples, rows: int) -> SplitBatch:
        """The batch after its first pass, in pieces of so many rows."""
        pieces = _pieces(examples, rows)
        results, before = [], []
        for piece in pieces:
            before.append(RandomState.now(task.device))
            results.append(record_pass(task, take(examples, piece), rows).measure())
        return cls(task, examples, rows, pieces, _joined(results), before, RandomState.now(task.device))

    def measure(self) -> Measured:
        """See `BatchGradients.measure`."""
        return self.result

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """See `BatchGradients.weighted_sum`."""
        _validate.same_length(coefficients=coefficients, losses=self.result.losses)
        parameters = list(self.task.parameters.values())
        nothing = flatten([None] * len(parameters), parameters)
        total = added_up(chain([nothing], self._sums(coefficients, error / len(self.pieces))))
        self.after.restore()
        return total

    def _sums(self, coefficients: FloatArray, error: float) -> Iterator[torch.Tensor]:
        """The sums of the pieces that have any coefficient but 0, each in error by at most ``error``."""
        drawn = not self.before[0].same_as(self.after)
        for piece, state in zip(self.pieces, self.before, strict=True):
            passing = piece if drawn else piece[torch.from_numpy(coefficients)[piece] != 0]
            scales = coefficients[passing.numpy()]
            if scales.any():
                state.restore()
                page = record_pass(self.task, take(self.examples, passing), self.rows)
                self._check_unchanged(passing, page.losses[: page.count])
                yield page.weighted_sum(scales, error)

    def _check_unchanged(self, rows: torch.Tensor, losses: torch.Tensor) -> None:
        first = torch.from_numpy(self.result.losses[rows.numpy()]).to(losses)
        tolerance = torch.finfo(losses.dtype).eps ** 0.5
        if not torch.allclose(losses, first, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise InosgdError(
                "a second pass over the same examples gave other losses: the model changes between passes or draws "
                "random numbers that torch.manual_seed does not govern; leave physical_batch_size and memory_limit None"
            )


def added_up(sums: Iterable[torch.Tensor], together: int = TOGETHER) -> torch.Tensor:
    """The sum of sums in float64; the first of them is changed.

    Guarantee:
        Groups of ``together`` are added up, and then the groups: of n sums none is rounded more than
        ``together`` + n / ``together`` times. For up to 2^18 that is 2^10 times, half of what float64 sums have room
        for (`inosgd.gradients.rules.sums`); batches that pass one by one would need n roundings.
    """
    sums = iter(sums)
    total = next(sums)
    group: torch.Tensor | None = None
    for number, each in enumerate(sums, 1):
        if number < together:
            total += each
        elif group is None or number % together == 0:
            total, group = total if group is None else total.add_(group), each
        else:
            group += each
    return total if group is None else total.add_(group)


def _pieces(examples: Examples, rows: int) -> Sequence[torch.Tensor]:
    return torch.split(torch.arange(count_examples(examples), device="cpu"), rows)


def _joined(results: Sequence[Measured]) -> Measured:
    losses = np.concatenate([result.losses for result in results])
    return Measured(losses, np.concatenate([result.grad_norms for result in results]))


@dataclass(frozen=True, eq=False)
class RandomState:
    """Global random state of torch, on the CPU and on the model's device."""

    device: torch.device
    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """The present global random state."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the global random state back to this one."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)

    def same_as(self, other: RandomState) -> bool:
        """Whether nothing was drawn between the two."""
        same_cuda = self.cuda is None or other.cuda is None or torch.equal(self.cuda, other.cuda)
        return torch.equal(self.cpu, other.cpu) and same_cuda
