"""Guessing: what a model would reach if its answers had nothing to do with its inputs.

A `Guessing` compares what was reached on a group of held-out examples with that level, and knows how uncertain the
comparison is. Which measure is compared depends on the task:

accuracy            the level is that of the model's own answers, dealt out at random within the group: the sum over
                    classes of (share of answers) x (share of the group). A model that always gives one answer is
                    exactly at that level, and the level is never above that of the best constant answer. In a group
                    that is nearly all of one class (`ONE_KIND`), answers are dealt out over all held-out examples
                    instead: what there is to learn is to tell the group from the others.
balanced accuracy   the same, averaged over classes
ROC AUC             for labels, the mean over labels, at a level of 1/2
R²                  against the mean of all held-out targets, at a level of 0

Standard errors are those of shares with two hits and two misses added (so that they are not 0 for tiny groups), of
Mann and Whitney's statistic without ties, and of the mean difference of squared errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.analysis import measures
from inosgd.analysis.task import Task

ONE_KIND = 0.95
"""A group with at least this share of one class is compared with all held-out examples."""

CONFIDENT = 1.645
"""Standard errors on either side: 95 % on each."""

WORTH = 0.2
"""An improvement over guessing is worth having from this share of the way to a perfect score on."""


@dataclass(frozen=True)
class Guessing:
    """What was ``reached`` in a ``measure``, with its standard ``error``, and the ``level`` of guessing."""

    measure: str
    reached: float
    level: float
    error: float

    @property
    def at_level(self) -> bool:
        """Whether the model is no better than guessing, as far as these examples can tell.

        Two things must hold: what was reached is not distinguishable from the level (or lies below it), and the
        examples are enough to rule out an improvement worth having, so that a handful of examples never says so:
        reached - 1.645 error <= level, and reached + 1.645 error < level + 0.2 (1 - level).
        """
        margin = CONFIDENT * self.error
        low, high = self.reached - margin, self.reached + margin
        return low <= self.level and high < self.level + WORTH * (1 - self.level)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**fields)


def guessing(task: Task, outputs: FloatArray, targets: Any, group: BoolArray) -> Guessing | None:
    """What was reached on a ``group`` of held-out examples against guessing; None where that is not defined."""
    if task.kind == "classification":
        return _classes(task, outputs.argmax(1), targets, group)
    if task.kind == "multi-label":
        return _labels(outputs[group], targets[group] > 0.5)
    return _targets(outputs, targets, group)


def class_guessing(recall: float, members: int, predicted_share: float) -> Guessing:
    """The recall of a class against the share of all examples that are predicted as this class."""
    return Guessing("recall", recall, predicted_share, _error_of_share(recall * members, members))


def _classes(task: Task, predicted: IntArray, targets: IntArray, group: BoolArray) -> Guessing | None:
    count = int(group.sum())
    if not count:
        return None
    answers, present = measures.one_hot(predicted, task.outputs), measures.one_hot(targets, task.outputs)
    members = present[group].sum(0)
    shares = members / count
    dealt_within = group if shares.max() < ONE_KIND else np.ones(len(group), dtype=bool)
    dealt = answers[dealt_within].mean(0)
    hits = (answers & present)[group].sum(0)
    if task.score == "accuracy":
        reached = float(hits.sum() / count)
        return Guessing("accuracy", reached, float(dealt @ shares), _error_of_share(float(hits.sum()), count))
    held = members > 0
    errors = [_error_of_share(float(hit), int(size)) for hit, size in zip(hits[held], members[held], strict=True)]
    reached = float(np.mean(hits[held] / members[held]))
    error = math.sqrt(sum(error**2 for error in errors)) / len(errors)
    return Guessing("balanced accuracy", reached, float(dealt[held].mean()), error)


def _labels(outputs: FloatArray, actual: BoolArray) -> Guessing | None:
    found = measures.macro(measures.roc_auc, outputs, actual)
    if found is None:
        return None
    positives = actual.sum(0).astype(np.float64)
    negatives = len(actual) - positives
    both = (positives > 0) & (negatives > 0)
    errors = np.sqrt((len(actual) + 1) / (12 * positives[both] * negatives[both]))
    return Guessing("ROC AUC", found, 0.5, float(errors.mean()))  # as if labels went together: the largest it can be


def _targets(outputs: FloatArray, targets: FloatArray, group: BoolArray) -> Guessing | None:
    varying = np.ptp(targets, axis=0) > 0
    if group.sum() < 2 or not varying.any():
        return None
    scale = targets.var(axis=0)[varying]
    with np.errstate(over="ignore", invalid="ignore"):
        ours = (((outputs - targets)[group][:, varying]) ** 2 / scale).mean(1)
        means = (((targets - targets.mean(0))[group][:, varying]) ** 2 / scale).mean(1)
        gained = means - ours
    if not np.isfinite(gained).all() or not means.mean() > 0:
        return None
    reached = gained.mean() / means.mean()
    error = gained.std(ddof=1) / math.sqrt(len(gained)) / means.mean()
    return Guessing("R²", float(reached), 0.0, float(error))


def _error_of_share(hits: float, count: int) -> float:
    share = (hits + 2) / (count + 4)
    return math.sqrt(share * (1 - share) / (count + 4))
