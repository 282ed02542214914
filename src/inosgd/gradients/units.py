"""Gradients of units: the rows of a unit are one example to an engine, with one more dimension.

The units of a batch are gathered by their number of rows, rounded up to a power of two. An engine sees such a bucket as
examples of shape (units, rows, ...); the model sees (units * rows, ...); the losses of a unit's rows become one loss.
Rows that fill a unit up are copies of its first row with weight 0. Units of one row pass as examples do without units,
with the same bits.

A unit of more rows than may pass at once (`MOST_ROWS`, or what the engine is limited to) passes piece by piece, as rows
that are examples of their own: the engine's weighted sum of their gradients, with the rows' weights for coefficients,
is the unit's gradient. It is held in one buffer of the model's size, of which there is one for the whole batch.

Guarantee:
    What is measured of a unit, and what it adds to the sum, are functions of that unit, its drawn rows and the model:
    buckets go by the unit's own number of rows, and pieces hold rows of one unit alone. A gradient that is put together
    from pieces is clipped by the norm of the very numbers that are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.augmentation import Augmentation
from inosgd.gradients.bookkeeping import BookkeepingEngine, RandomState, added_up
from inosgd.gradients.engine import (
    BatchGradients,
    ExampleLosses,
    Examples,
    GradientEngine,
    Measured,
    check_losses,
    parameter_count,
    trainable_parameters,
    with_tensors,
)
from inosgd.gradients.memory import examples_that_fit
from inosgd.gradients.task import Task
from inosgd.mechanism import row_norms
from inosgd.units import DrawnRows

MOST_ROWS = 64
"""Units of more rows pass piece by piece."""

ROWS_AT_ONCE = 256
"""Rows of such a piece."""

Take = Callable[[IntArray], Examples]


@dataclass(frozen=True, eq=False)
class UnitLosses:
    """One loss per unit, the weighted sum of the losses of its rows.

    Batches are pairs of examples with two leading dimensions, units and rows, and a weight for each row: 1 / n for the
    mean of n rows, 1 for their sum, 0 for rows that fill a unit up.

    Attributes:
        rows: The losses of rows.
        reduction: ``mean`` or ``sum``.
    """

    rows: ExampleLosses
    reduction: str = "mean"

    def __call__(self, model: nn.Module, examples: Examples) -> torch.Tensor:
        """One loss per unit."""
        of_rows, weights = examples
        losses = check_losses(self.rows(model, with_tensors(_rows_of_all, of_rows)), weights.numel())
        summed: torch.Tensor = (losses.view_as(weights) * weights.to(losses)).sum(1)
        return summed

    def weights(self, counts: IntArray) -> FloatArray:
        """The weights of rows of units that have so many."""
        return 1.0 / counts if self.reduction == "mean" else np.ones(len(counts))


def _rows_of_all(leaf: torch.Tensor) -> torch.Tensor:
    """Units and rows as one dimension."""
    return leaf.flatten(0, 1)


@lru_cache(maxsize=16)
def unit_losses(rows: ExampleLosses, reduction: str) -> UnitLosses:
    """Always the same value for the same losses, so that what an engine has found out about it stays known."""
    return UnitLosses(rows, reduction)


@dataclass(frozen=True, eq=False, repr=False)
class UnitBatch:
    """The rows of a batch of units. Sensitive.

    Attributes:
        drawn: The rows, unit after unit.
        store_take: Takes rows out of the data.
        augmentation: What is done to the rows that are taken; None for nothing.
    """

    drawn: DrawnRows
    store_take: Take
    augmentation: Augmentation | None = None

    @classmethod
    def of(cls, drawn: DrawnRows, take: Take, augmentation: Augmentation | None = None) -> UnitBatch:
        """The batch, each row with its copies."""
        return cls(drawn if augmentation is None else drawn.copied(augmentation.copies), take, augmentation)

    def __len__(self) -> int:
        return len(self.drawn.counts)

    def take(self, places: IntArray) -> Examples:
        """The examples at these places among the rows of the batch."""
        examples = self.store_take(self.drawn.rows[places])
        return examples if self.augmentation is None else self.augmentation(examples, self.drawn.words[places])

    def bucket(self, units: IntArray, rows: int) -> tuple[Examples, BoolArray]:
        """Units as examples of ``rows`` rows each, and which of these are their own and do not fill them up."""
        within = np.arange(rows)
        own = within < self.drawn.counts[units, None]
        places = self.drawn.starts[units, None] + np.where(own, within, 0)
        flat = self.take(places.ravel())
        shape = len(units), rows
        return with_tensors(lambda leaf: leaf.view(*shape, *leaf.shape[1:]), flat), own


@contextmanager
def gradients_on(
    engine: GradientEngine, model: nn.Module, losses: ExampleLosses, examples: Examples
) -> Iterator[BatchGradients]:
    """The gradients of a batch of examples, or of units where it is a `UnitBatch`."""
    if not isinstance(examples, UnitBatch):
        with engine.on(model, losses, examples) as gradients:
            yield gradients
        return
    if not isinstance(losses, UnitLosses):
        raise _validate.fail("losses", type(losses).__name__, "a batch of units needs UnitLosses")
    counts = examples.drawn.counts
    if (counts == 1).all():  # as without units, to the bit
        with engine.on(model, losses.rows, examples.take(examples.drawn.starts)) as gradients:
            yield gradients
        return
    most, at_once = _rows_at_once(engine, model, losses.rows, examples)
    sizes = _bucket_sizes(counts)
    with ExitStack() as stack:
        parts: list[_Part] = []
        for size in sorted({size for size in sizes.tolist() if size <= most}):
            units = np.flatnonzero(sizes == size)
            part = stack.enter_context(_bucket(engine, model, losses, examples, units, size))
            if len(units) == len(counts) and losses.reduction == "mean":  # what the engine has needs nothing more
                yield part
                return
            parts.append(_Part(units, part))
        large = np.flatnonzero(sizes > most)
        if len(large):
            piecewise = _Piecewise(engine, model, losses, examples, large, at_once)
            parts.append(_Part(large, piecewise))
        yield _UnitGradients(parts, len(examples), losses, counts)


def _bucket(
    engine: GradientEngine, model: nn.Module, losses: UnitLosses, batch: UnitBatch, units: IntArray, size: int
) -> AbstractContextManager[BatchGradients]:
    if size == 1:
        return engine.on(model, losses.rows, batch.take(batch.drawn.starts[units]))
    if isinstance(engine, BookkeepingEngine) and engine.physical_batch_size is not None:
        engine = replace(engine, physical_batch_size=max(1, engine.physical_batch_size // size))
    examples, own = batch.bucket(units, size)
    weights = own * losses.weights(batch.drawn.counts[units])[:, None]
    return engine.on(model, losses, (examples, torch.from_numpy(weights)))


@dataclass(frozen=True, eq=False)
class _Part:
    """Some units of a batch and their gradients."""

    units: IntArray
    gradients: BatchGradients


@dataclass(frozen=True, eq=False, repr=False)
class _UnitGradients:
    parts: Sequence[_Part]
    count: int
    losses: UnitLosses
    row_counts: IntArray

    def measure(self) -> Measured:
        """The mean loss of each unit's rows, and the norm of its gradient."""
        losses, norms = np.empty(self.count), np.empty(self.count)
        for part in self.parts:
            measured = part.gradients.measure()
            losses[part.units], norms[part.units] = measured.losses, measured.grad_norms
        return Measured(losses / self.row_counts if self.losses.reduction == "sum" else losses, norms)

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """Every part may err by its share of ``error``."""
        _validate.same_length(coefficients=coefficients, units=self.row_counts)
        sums = [part.gradients.weighted_sum(coefficients[part.units], error / len(self.parts)) for part in self.parts]
        total = sums[0]
        for each in sums[1:]:
            total = total + each
        return total


class _Piecewise:
    """Units of many rows: each is put together from its pieces, to be measured and once more to be summed.

    The gradient that was put together last is kept: a batch with one such unit passes once.
    """

    def __init__(
        self, engine: GradientEngine, model: nn.Module, losses: UnitLosses, batch: UnitBatch, units: IntArray, rows: int
    ) -> None:
        self._engine, self._model, self._losses, self._batch = engine, model, losses, batch
        self._units, self._rows = units, rows
        self._device = next(iter(trainable_parameters(model).values())).device
        self._before: list[RandomState] = []
        self._after: RandomState | None = None
        self._kept: tuple[int, torch.Tensor] | None = None

    def measure(self) -> Measured:
        """See `BatchGradients.measure`."""
        losses, norms = np.empty(len(self._units)), np.empty(len(self._units))
        for place in range(len(self._units)):
            self._before.append(RandomState.now(self._device))
            losses[place], gradient = self._passed(place)
            norms[place] = row_norms(gradient[None])[0]
            self._kept = place, gradient
        self._after = RandomState.now(self._device)
        return Measured(losses, norms)

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """See `BatchGradients.weighted_sum`."""
        nothing = torch.zeros(parameter_count(self._model), dtype=torch.float64, device=self._device)
        total = added_up(chain([nothing], self._scaled(coefficients)))
        if self._after is not None:
            self._after.restore()
        return total

    def _scaled(self, coefficients: FloatArray) -> Iterator[torch.Tensor]:
        for place in reversed(np.flatnonzero(coefficients).tolist()):
            if self._kept is None or self._kept[0] != place:
                self._kept = None  # one buffer at a time
                self._before[place].restore()
                self._kept = place, self._passed(place)[1]
            yield float(coefficients[place]) * self._kept[1]

    def _passed(self, place: int) -> tuple[float, torch.Tensor]:
        """The loss of a unit and its gradient, in float64."""
        unit = int(self._units[place])
        count, start = int(self._batch.drawn.counts[unit]), int(self._batch.drawn.starts[unit])
        weight, loss = float(self._losses.weights(np.array([count]))[0]), 0.0
        total = torch.zeros(parameter_count(self._model), dtype=torch.float64, device=self._device)
        for first in range(start, start + count, self._rows):
            places = np.arange(first, min(first + self._rows, start + count))
            with self._engine.on(self._model, self._losses.rows, self._batch.take(places)) as gradients:
                loss += weight * float(gradients.measure().losses.sum())
                total += gradients.weighted_sum(np.full(len(places), weight))
        return loss, total


def _bucket_sizes(counts: IntArray) -> IntArray:
    """The numbers of rows that units of so many rows are filled up to: the next powers of two.

    >>> _bucket_sizes(np.array([1, 2, 3, 4, 5, 64, 65])).tolist()
    [1, 2, 4, 4, 8, 64, 128]
    """
    return np.left_shift(1, np.frexp((counts - 1).astype(np.float64))[1].astype(np.int64))


def _rows_at_once(engine: GradientEngine, model: nn.Module, losses: ExampleLosses, batch: UnitBatch) -> tuple[int, int]:
    """How many rows of a unit pass together at most, and how many at once of those that have more."""
    most, at_once = MOST_ROWS, ROWS_AT_ONCE
    if isinstance(engine, BookkeepingEngine):
        if engine.physical_batch_size is not None:
            most, at_once = min(most, engine.physical_batch_size), min(at_once, engine.physical_batch_size)
        if engine.memory_limit is not None and len(batch):
            few = batch.take(np.arange(min(2, len(batch.drawn.rows))))
            fitting = examples_that_fit(Task.of(model, losses), few, engine.memory_limit)
            most, at_once = min(most, fitting), min(at_once, fitting)
    return most, at_once


__all__ = ["UnitBatch", "UnitLosses", "gradients_on", "unit_losses"]
