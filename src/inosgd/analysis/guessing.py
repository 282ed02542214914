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

Standard errors are those of shares (around what was reached with two hits and two misses added, so that they are not 0
for tiny groups), of Mann and Whitney's statistic without ties, and of the mean difference of squared errors.
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

FEWEST = 10
"""Fewer examples than this say nothing."""

WORTH = 0.2
"""An improvement over guessing is worth having from this share of the way to a perfect score on."""


@dataclass(frozen=True)
class Guessing:
    """What was reached against guessing.

    Attributes:
        measure: The measure that is compared.
        reached: Its value.
        level: The value that guessing has.
        error: The standard error of what was reached.
        level_error: The standard error that it would have if the model guessed.
    """

    measure: str
    reached: float
    level: float
    error: float
    level_error: float

    @property
    def at_level(self) -> bool:
        """Whether the model is no better than guessing, as far as these examples can tell.

        Two things must hold: what was reached is not distinguishable from the level (or lies below it), and the
        examples are enough to rule out an improvement worth having, so that a handful of examples never says so:
        reached <= level + 1.645 level_error, and reached + 1.645 error < level + 0.2 (1 - level).
        """
        if not self.reached <= self.level + CONFIDENT * self.level_error:
            return False
        return self.reached + CONFIDENT * self.error < self.level + WORTH * (1 - self.level)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**fields)


def guessing(task: Task, outputs: FloatArray, targets: Any, group: BoolArray) -> Guessing | None:
    """What was reached on a ``group`` of held-out examples against guessing.

    None for fewer than 10 examples, and where it is not defined.
    """
    if group.sum() < FEWEST:
        return None
    if task.kind == "classification":
        return _classes(task, outputs.argmax(1), targets, group)
    if task.kind == "multi-label":
        return _labels(outputs[group], targets[group] > 0.5)
    return _targets(outputs, targets, group)


def class_guessing(recall: float, members: int, predicted_share: float) -> Guessing | None:
    """The recall of a class against the share of all examples that are predicted as it; None for fewer than 10."""
    if members < FEWEST:
        return None
    error = _error_near(recall * members, members)
    return Guessing("recall", recall, predicted_share, error, _error(predicted_share, members))


def _classes(task: Task, predicted: IntArray, targets: IntArray, group: BoolArray) -> Guessing:
    count = int(group.sum())
    answers, present = measures.one_hot(predicted, task.outputs), measures.one_hot(targets, task.outputs)
    members = present[group].sum(0)
    shares = members / count
    dealt_within = group if shares.max() < ONE_KIND else np.ones(len(group), dtype=bool)
    dealt = answers[dealt_within].mean(0)
    hits = (answers & present)[group].sum(0)
    if task.score == "accuracy":
        reached, level = float(hits.sum() / count), float(dealt @ shares)
        return Guessing("accuracy", reached, level, _error_near(float(hits.sum()), count), _error(level, count))
    held = members > 0
    by_class = list(zip(hits[held].tolist(), members[held].tolist(), dealt[held].tolist(), strict=True))
    return Guessing(
        "balanced accuracy",
        float(np.mean([hit / size for hit, size, _ in by_class])),
        float(np.mean([level for _, _, level in by_class])),
        math.hypot(*(_error_near(hit, size) for hit, size, _ in by_class)) / len(by_class),
        math.hypot(*(_error(level, size) for _, size, level in by_class)) / len(by_class),
    )


def _labels(outputs: FloatArray, actual: BoolArray) -> Guessing | None:
    found = measures.macro(measures.roc_auc, outputs, actual)
    if found is None:
        return None
    positives = actual.sum(0).astype(np.float64)
    negatives = len(actual) - positives
    both = (positives > 0) & (negatives > 0)
    errors = np.sqrt((len(actual) + 1) / (12 * positives[both] * negatives[both]))
    error = float(errors.mean())  # as if labels went together: the largest that it can be
    return Guessing("ROC AUC", found, 0.5, error, error)


def _targets(outputs: FloatArray, targets: FloatArray, group: BoolArray) -> Guessing | None:
    varying = np.ptp(targets, axis=0) > 0
    if not varying.any():
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
    return Guessing("R²", float(reached), 0.0, float(error), float(error))


def _error(share: float, count: int) -> float:
    return math.sqrt(max(share * (1 - share), 0.0) / count)


def _error_near(hits: float, count: int) -> float:
    return _error((hits + 2) / (count + 4), count + 4)
