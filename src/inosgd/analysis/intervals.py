"""Intervals: how far a score on held-out examples can be believed, from how many they are.

They are about the examples alone: trained again with other noise, a model has another score.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from inosgd.analysis.evaluation import Evaluation, OwnerQuality
from inosgd.analysis.guessing import Guessing

NORMAL_95 = 1.959963984540054

FEW = 30
"""Held-out examples of an owner below which its score is marked: one more or less is three points or more."""


class Interval(NamedTuple):
    """The two ends of a 95 % interval."""

    low: float
    high: float


def share_interval(share: float, count: int) -> Interval:
    """Wilson's 95 % interval of a share of ``count`` examples; it is never empty, also where all are right.

    >>> [round(end, 3) for end in share_interval(1.0, 10)], [round(end, 3) for end in share_interval(0.5, 1000)]
    ([0.722, 1.0], [0.469, 0.531])
    """
    squared = NORMAL_95**2
    middle = (share + squared / (2 * count)) / (1 + squared / count)
    half = NORMAL_95 / (1 + squared / count) * math.sqrt(share * (1 - share) / count + squared / (4 * count**2))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def score_interval(found: Evaluation | OwnerQuality, scored_by: str) -> Interval | None:
    """The 95 % interval of a score: Wilson's for accuracy, by the standard error for what else has one.

    None where there is no example, and where no standard error is known, such as for mean average precision.
    """
    score = found.overall if isinstance(found, Evaluation) else found.score
    if not found.examples:
        return None
    if scored_by == "accuracy":
        return share_interval(score, found.examples)
    return _by_error(score, scored_by, found.guessing)


def _by_error(score: float, scored_by: str, known: Guessing | None) -> Interval | None:
    if known is None or known.measure != scored_by:
        return None
    half = NORMAL_95 * known.error
    return Interval(score - half, min(1.0, score + half))
