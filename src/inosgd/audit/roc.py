"""ROC curves: how many members an attack finds at the price of how many false alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates at every threshold, from "no example is a member" to "all are"."""

    false_positive_rates: FloatArray
    true_positive_rates: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, members: BoolArray) -> Roc:
        """The curve of guessing "member" at high scores; equal scores share a point."""
        if members.all() or not members.any():
            raise InvalidArgumentError(
                f"members: {int(members.sum())} of {members.size} scores are of members; a curve needs members and "
                "others, so train more models"
            )
        order = np.argsort(-scores, kind="stable")
        last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
        hits = np.cumsum(members[order])[last]
        alarms = np.cumsum(~members[order])[last]
        return cls(np.append(0.0, alarms / alarms[-1]), np.append(0.0, hits / hits[-1]))

    @property
    def auc(self) -> float:
        """The area under the curve: the probability that a member scores higher than a non-member."""
        heights = (self.true_positive_rates[1:] + self.true_positive_rates[:-1]) / 2
        return float((np.diff(self.false_positive_rates) * heights).sum())

    def true_positive_rate_at(self, false_positive_rate: float) -> float:
        """The largest true positive rate at no more false alarms than this."""
        allowed = self.false_positive_rates <= false_positive_rate
        return float(self.true_positive_rates[allowed].max())

    def thinned(self) -> tuple[FloatArray, FloatArray]:
        """The curve at a few false positive rates, half of them below 5%, to draw or to keep."""
        grid = np.unique(np.append(np.geomspace(1e-4, 0.05, 100), np.linspace(0.0, 1.0, 100)))
        return grid, np.interp(grid, self.false_positive_rates, self.true_positive_rates)


Interval = tuple[float, float]


@dataclass(frozen=True)
class Intervals:
    """Approximate confidence intervals, each by itself, of what a ROC curve is summed up by."""

    auc: Interval
    at_1_percent: Interval
    at_1_permille: Interval


def roc_intervals(
    scores: FloatArray, members: BoolArray, confidence: float, *, seed: int = 0, resamples: int = 200
) -> Intervals:
    """Intervals for the AUC, and for the true positive rates at 1% and 0.1%, of scores (models, examples).

    Scores of one model depend on each other, so that models are resampled, not pairs; an interval is normal around
    what was found, with the standard deviation over resamples. For these examples, over trainings: nothing is said
    about examples that were not attacked. Approximate: no verdict rests on it.
    """
    usable = np.isfinite(scores)
    order = np.argsort(-scores[usable], kind="stable")
    model_of = np.broadcast_to(np.arange(len(scores))[:, None], scores.shape)[usable][order]
    present = members[usable][order]
    rng, count = np.random.default_rng(seed), len(scores)
    drawn = [
        _weighted_summary(np.bincount(rng.integers(count, size=count), minlength=count)[model_of], present)
        for _ in range(resamples)
    ]
    found = Roc.of(scores[usable], members[usable])
    centres = np.array([found.auc, found.true_positive_rate_at(0.01), found.true_positive_rate_at(0.001)])
    reach = float(ndtri(1 - (1 - confidence) / 2)) * np.std(drawn, axis=0, ddof=1)
    ends = zip(np.maximum(centres - reach, 0.0).tolist(), np.minimum(centres + reach, 1.0).tolist(), strict=True)
    return Intervals(*ends)


def _weighted_summary(weights: IntArray, present: BoolArray) -> tuple[float, float, float]:
    """AUC and true positive rates at 1% and 0.1% of weighted pairs in descending order of score, ties as they come."""
    hits, alarms = np.cumsum(np.where(present, weights, 0)), np.cumsum(np.where(present, 0, weights))
    area = float(np.dot(np.where(present, 0, weights), hits)) / (float(hits[-1]) * float(alarms[-1]))
    ends = [int(np.searchsorted(alarms, rate * alarms[-1], side="right")) - 1 for rate in (0.01, 0.001)]
    first, second = (float(hits[end]) / float(hits[-1]) if end >= 0 else 0.0 for end in ends)
    return area, first, second
