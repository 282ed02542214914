"""Evaluation: how well a model serves each owner's kind of data, on held-out examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray


@dataclass(frozen=True)
class OwnerQuality:
    """Recall (the share of the group's examples that are classified right) and mean loss on an owner's group."""

    recall: float
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """A model's accuracy on all held-out examples, and its quality on the group of each owner."""

    step: int
    overall: float
    owners: dict[str, OwnerQuality]

    @property
    def worst(self) -> float:
        """The lowest recall of any owner."""
        return min(quality.recall for quality in self.owners.values())

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "step": self.step,
            "overall": self.overall,
            "worst": self.worst,
            "owners": {name: {"recall": quality.recall, "loss": quality.loss} for name, quality in self.owners.items()},
        }


def evaluate(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, groups: IntArray, names: tuple[str, ...], step: int
) -> Evaluation:
    """Classify held-out ``inputs``; ``groups`` names the owner whose kind of data each of them is.

    The examples must not be training data: un-noised results on training data are outside the guarantee.
    """
    _validate.same_length(inputs=inputs, targets=targets, groups=groups)
    training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
        losses = F.cross_entropy(outputs, targets, reduction="none").double().numpy()
        correct = (outputs.argmax(1) == targets).numpy()
    model.train(training)
    owners = {name: _quality(correct, losses, groups == row) for row, name in enumerate(names) if (groups == row).any()}
    return Evaluation(step, float(correct.mean()), owners)


def _quality(correct: Any, losses: FloatArray, members: Any) -> OwnerQuality:
    return OwnerQuality(float(np.mean(correct[members])), float(np.mean(losses[members])))
