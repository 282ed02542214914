"""Insertion: worst-case gradients put into an ordinary training.

A *canary* is an example whose gradient is the audit's choice. Each canary has a coordinate of its own beside the
model's parameters, and its gradient points along that coordinate with a norm far above its owner's threshold; its
loss is a constant, also the audit's choice, so that its place in the order is known. Real examples do not touch these
coordinates. Of the worst cases that the guarantee speaks of this is one: the released sum along the coordinate is

    noise                                     if the canary was not in the batch,
    noise + the threshold, all that it may    if it was.

Nothing else about the training changes: sampling, order, weights, factors, sums, the ledger, noise and update are
those of `inosgd.training.train_step`, and the real examples go through the engine. *Accomplices* are inserted
examples that share a canary's coordinate and are always present: with them an audit makes visible what a canary does
to the weights of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray, IntArray
from inosgd.examples import ExampleStore
from inosgd.gradients import BookkeepingEngine, ExampleLosses, GradientEngine
from inosgd.gradients.engine import BatchGradients, Measured


@dataclass(frozen=True, eq=False)
class Inserted:
    """Inserted examples, one entry each: along which coordinate, with which signed norm, at which loss."""

    coordinates: IntArray
    gradients: FloatArray
    losses: FloatArray

    def __len__(self) -> int:
        return len(self.coordinates)

    def take(self, rows: IntArray) -> Inserted:
        """Some of them."""
        return Inserted(self.coordinates[rows], self.gradients[rows], self.losses[rows])


@dataclass(frozen=True, eq=False)
class MixedBatch:
    """Real examples first, inserted ones behind them."""

    real: Any
    count: int
    inserted: Inserted


class MixedStore:
    """Real examples under their own indices, inserted ones under the indices that follow."""

    def __init__(self, real: ExampleStore, inserted: Inserted) -> None:
        self._real, self._inserted = real, inserted

    def __len__(self) -> int:
        return len(self._real) + len(self._inserted)

    def take(self, indices: IntArray) -> MixedBatch:
        """The batch of the examples at ``indices``, which are sorted."""
        count = int(np.searchsorted(indices, len(self._real)))
        behind = indices[count:] - len(self._real)
        return MixedBatch(self._real.take(indices[:count]), count, self._inserted.take(behind))


class CanaryModel(nn.Module):
    """A model with coordinates for canaries beside its parameters; they come first in a flat gradient."""

    def __init__(self, model: nn.Module, coordinates: int) -> None:
        super().__init__()
        self.canaries = nn.Parameter(torch.zeros(coordinates, dtype=torch.float64))
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model says; canaries have no inputs."""
        outputs: torch.Tensor = self.model(inputs)
        return outputs


@dataclass(frozen=True)
class CanaryEngine:
    """Real examples through ``engine``, inserted ones as they are."""

    engine: GradientEngine = field(default_factory=BookkeepingEngine)

    @contextmanager
    def on(self, model: nn.Module, losses: ExampleLosses, examples: MixedBatch) -> Iterator[BatchGradients]:
        """See `GradientEngine.on`; ``model`` is a `CanaryModel`."""
        inner, coordinates = model.get_submodule("model"), model.get_parameter("canaries").numel()
        with self.engine.on(inner, losses, examples.real) as gradients:
            yield _MixedGradients(gradients, examples, coordinates)


@dataclass(frozen=True, eq=False)
class _MixedGradients:
    real: BatchGradients
    batch: MixedBatch
    coordinates: int

    def measure(self) -> Measured:
        measured, inserted = self.real.measure(), self.batch.inserted
        return Measured(
            np.concatenate([measured.losses, inserted.losses]),
            np.concatenate([measured.grad_norms, np.abs(inserted.gradients)]),
        )

    def weighted_sum(self, coefficients: FloatArray) -> torch.Tensor:
        inserted = self.batch.inserted
        moved = coefficients[self.batch.count :] * inserted.gradients
        along = np.bincount(inserted.coordinates, moved, self.coordinates)
        return torch.cat([torch.from_numpy(along), self.real.weighted_sum(coefficients[: self.batch.count]).double()])
