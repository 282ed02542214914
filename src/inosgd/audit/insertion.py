"""Insertion: worst-case gradients put into an ordinary training.

A *canary* is an example whose gradient is the audit's choice. Each canary has a coordinate of its own beside the
model's parameters, and its gradient points along that coordinate with a norm far above its owner's threshold; its
loss is a constant, also the audit's choice, so that its place in the order is known. Real examples do not touch these
coordinates. Of the worst cases that the guarantee speaks of this is one: the released sum along the coordinate is

    noise                                     if the canary was not in the batch,
    noise + the threshold, all that it may    if it was.

Nothing else about the training changes. A canary is an ordinary row of the examples, and its gradient is that of its
loss: `inosgd.training.train_step` samples, measures, orders, weights, clips, sums, records and releases it, by the
engine that real examples go through. *Accomplices* are inserted examples that share a canary's coordinate and are
always present: with them an audit makes visible what a canary does to the weights of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray, IntArray
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import ExampleLosses, OffsetLosses


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


class MixedExamples(NamedTuple):
    """Real examples and inserted ones, one row each.

    Attributes:
        inputs: Zeros for inserted examples.
        targets: Zeros for inserted examples.
        coordinates: Of inserted examples; -1 marks real ones.
        gradients: The signed norm of an inserted example's gradient.
        losses: The loss of an inserted example.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    coordinates: torch.Tensor
    gradients: torch.Tensor
    losses: torch.Tensor


def mixed(inputs: torch.Tensor, targets: torch.Tensor, inserted: Inserted, dtype: torch.dtype) -> MixedExamples:
    """Real examples first, under their own indices, and inserted ones behind them."""
    real, more = len(targets), len(inserted)

    def behind(start: float, values: FloatArray) -> torch.Tensor:
        return torch.cat([torch.full((real,), start, dtype=dtype), torch.from_numpy(values).to(dtype)])

    return MixedExamples(
        torch.cat([inputs, inputs.new_zeros((more, *inputs.shape[1:]))]),
        torch.cat([targets, targets.new_zeros((more, *targets.shape[1:]))]),
        torch.from_numpy(np.concatenate([np.full(real, -1), inserted.coordinates])),
        behind(0.0, inserted.gradients),
        behind(0.0, inserted.losses),
    )


class CanaryModel(nn.Module):
    """A model with one more linear layer, a weight for every canary; they come first in a flat gradient.

    What the layer says about a canary is the canary's weight times its gradient: who may only ask the model about
    a canary learns its weight, and no more.
    """

    def __init__(self, model: nn.Module, coordinates: int) -> None:
        super().__init__()
        dtype = next(model.parameters()).dtype
        self.canaries = nn.Linear(coordinates, 1, bias=False, dtype=dtype)
        nn.init.zeros_(self.canaries.weight)
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model says about real examples."""
        outputs: torch.Tensor = self.model(inputs)
        return outputs

    def about(self, coordinates: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        """What the layer says about canaries; 0 about real examples, which do not touch it."""
        inserted = coordinates >= 0
        rows = torch.zeros(len(coordinates), self.canaries.in_features, dtype=gradients.dtype)
        rows[inserted, coordinates[inserted]] = gradients[inserted]
        said: torch.Tensor = self.canaries(rows)[:, 0]
        return said


@dataclass(frozen=True)
class CanaryLosses:
    """``usual`` losses for real examples; for an inserted one its constant loss, with its own gradient alone."""

    usual: ExampleLosses

    def __call__(self, model: nn.Module, examples: MixedExamples) -> torch.Tensor:
        """One loss per example."""
        if not isinstance(model, CanaryModel):
            raise TypeError(f"model: {type(model).__name__} has no coordinates for canaries; give a CanaryModel")
        said = model.about(examples.coordinates, examples.gradients)
        constant = examples.losses + (said - said.detach())
        usual = self.usual(model, (examples.inputs, examples.targets))
        return torch.where(examples.coordinates >= 0, constant, usual)

    def with_offsets(self, offsets: FloatArray) -> CanaryLosses:
        """The same with a number added to the logit of each class of real examples."""
        if not isinstance(self.usual, OffsetLosses):
            raise InvalidArgumentError("losses: they take no offsets, which the method adds to the logits of classes")
        return CanaryLosses(self.usual.with_offsets(offsets))
