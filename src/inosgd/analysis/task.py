"""Tasks: classification, multi-label classification and regression as values.

A task says what a model is trained and judged for: its targets, its loss, its score, and how outputs become
predictions. Whatever differs between kinds of task is looked up in tables of functions; a task itself is plain values,
so that it can be written as JSON and sent to workers.

>>> task = classification(["no", "yes"])
>>> task.outputs, task.score, task.loss
(2, 'accuracy', 'cross-entropy')
>>> predictions(task, np.array([[0.0, 0.0], [0.0, 999.0]]))
{'prediction': ['no', 'yes'], 'probability': [0.5, 1.0], 'probability_no': [0.5, 0.0], 'probability_yes': [0.5, 1.0]}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.analysis import measures
from inosgd.analysis.score import Score, score_named
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import ExampleLosses, supervised

HUBER_CORNER = 0.2
"""Where Huber's loss turns from a square into a line: a tenth of a range that is scaled to -1 to 1."""


@dataclass(frozen=True)
class Task:
    """What a model is trained and judged for.

    Attributes:
        kind: ``classification``, ``multi-label`` or ``regression``.
        names: The classes, the labels or the targets.
        score: The name of the score that owners are compared in; see `inosgd.analysis.score`.
        loss: The name of the loss of one example.
        ranges: For regression with scaled targets, the public range (low, high) of each: a model is trained on
            2 (y - low) / (high - low) - 1. Empty if targets are trained on as they are.

    The targets of examples are class numbers, shape (n,), or numbers, shape (n, len(names)): 0 and 1 for labels,
    scaled values for regression.
    """

    kind: str
    names: tuple[str, ...]
    score: str
    loss: str
    ranges: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        _validate.one_of(KINDS, kind=self.kind)
        least = 2 if self.kind == "classification" else 1
        if len(self.names) < least or len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(f"names={self.names!r}: name at least {least}, each once")
        for field, known in (("score", KINDS[self.kind].scores), ("loss", KINDS[self.kind].losses)):
            _validate.one_of(known, **{field: getattr(self, field)})
        _check_ranges(self)

    @property
    def outputs(self) -> int:
        """How many outputs a model must have."""
        return len(self.names)

    @property
    def scoring(self) -> Score:
        """The row of its score."""
        return score_named(self.score)

    @property
    def losses(self) -> ExampleLosses:
        """Its loss as engines take it: always the same function, so that what was checked of it stays known."""
        return _supervised(self.loss)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        ranges = tuple((float(low), float(high)) for low, high in fields["ranges"])
        return cls(fields["kind"], tuple(fields["names"]), fields["score"], fields["loss"], ranges)


def classification(classes: Sequence[str], *, balanced: bool = False) -> Task:
    """One of several classes; ``balanced`` scores by the mean recall of classes, for classes that differ in size."""
    score = "balanced accuracy" if balanced else "accuracy"
    return Task("classification", tuple(classes), score, "cross-entropy")


def multi_label(labels: Sequence[str]) -> Task:
    """Any number of labels for each example, scored by mean average precision.

    Average precision needs no threshold, which rare labels seldom reach. The score of an owner is the mean over labels
    that some held-out example of the owner has; an owner without any has no score.
    """
    return Task("multi-label", tuple(labels), "mean average precision", "binary cross-entropy")


def regression(
    targets: Sequence[str], *, ranges: Sequence[tuple[float, float]] = (), loss: str = "squared error"
) -> Task:
    """One or several numbers, scored by R² with one yardstick for all owners; see `inosgd.analysis.score`."""
    return Task("regression", tuple(targets), "R²", loss, tuple((float(low), float(high)) for low, high in ranges))


def example_losses(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each example."""
    values = LOSSES[task.loss](outputs, targets, reduction="none")
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def scaled(task: Task, values: FloatArray, *, within: bool = True) -> FloatArray:
    """Targets as a model is trained on them; ``within`` brings those outside their range to its ends.

    Guarantee: a function of one value at a time, so with public ranges it costs no privacy.

    >>> scaled(regression(["age"], ranges=[(0, 120)]), np.array([[30.0], [500.0]])).tolist()
    [[-0.5], [1.0]]
    """
    if not task.ranges:
        return values
    low, high = np.array(task.ranges).T
    kept = np.clip(values, low, high) if within else values
    brought: FloatArray = 2 * ((kept - low) / (high - low)) - 1
    return brought


def in_units(task: Task, values: FloatArray) -> FloatArray:
    """Scaled values in the units of their targets."""
    if not task.ranges:
        return values
    low, high = np.array(task.ranges).T
    brought: FloatArray = low + (values + 1) / 2 * (high - low)
    return brought


def predictions(task: Task, outputs: FloatArray) -> dict[str, list[Any]]:
    """What a model says of each example, as columns by name.

    classification    the class and its probability, then the probability of each class
    multi-label       the probability of each label; it is predicted from one half on
    regression        each target in its own units
    """
    if task.kind == "classification":
        chances = measures.softmax(outputs)
        best = {
            "prediction": [task.names[row] for row in outputs.argmax(1).tolist()],
            "probability": chances.max(1, initial=0.0).tolist(),
        }
        return best | {f"probability_{name}": each for name, each in zip(task.names, chances.T.tolist(), strict=True)}
    values = measures.sigmoid(outputs) if task.kind == "multi-label" else in_units(task, outputs)
    return dict(zip(task.names, values.T.tolist(), strict=True))


def measured(task: Task, outputs: FloatArray, targets: Any) -> measures.Measures:
    """All measures of a kind of task; those of regression in the units of the targets."""
    if task.kind == "regression":
        return measures.target_measures(in_units(task, outputs), in_units(task, targets))
    return KINDS[task.kind].measures(outputs, targets)


@dataclass(frozen=True)
class Kind:
    """One row: the scores, losses and measures that a kind of task may have."""

    scores: tuple[str, ...]
    losses: tuple[str, ...]
    measures: Callable[[FloatArray, Any], measures.Measures]


KINDS = {
    "classification": Kind(("accuracy", "balanced accuracy"), ("cross-entropy",), measures.class_measures),
    "multi-label": Kind(("mean average precision",), ("binary cross-entropy",), measures.label_measures),
    "regression": Kind(("R²",), ("squared error", "huber"), measures.target_measures),
}


def _per_label(outputs: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
    """Binary cross-entropy; the loss of an example is the mean over labels."""
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs), reduction=reduction)


def _squared_error(outputs: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
    """Squared error; the loss of an example is the mean over targets."""
    return F.mse_loss(outputs, _shaped_like(outputs, targets), reduction=reduction)


def _huber(outputs: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
    """Huber's loss, whose gradient is bounded; the loss of an example is the mean over targets."""
    return F.huber_loss(outputs, _shaped_like(outputs, targets), reduction=reduction, delta=HUBER_CORNER)


def _shaped_like(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Without it, n outputs of shape (n, 1) and n targets would make a table of n x n errors."""
    return targets.to(outputs).reshape(outputs.shape)


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "binary cross-entropy": _per_label,
    "squared error": _squared_error,
    "huber": _huber,
}


@cache
def _supervised(loss: str) -> ExampleLosses:
    return supervised(LOSSES[loss])


def _check_ranges(task: Task) -> None:
    if not task.ranges:
        return
    if task.kind != "regression" or len(task.ranges) != len(task.names):
        raise _validate.fail("ranges", task.ranges, "give one range for each target of a regression, or none")
    for low, high in task.ranges:
        if not (low < high and math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
            raise _validate.fail("ranges", (low, high), "give two finite numbers, the lower one first")
