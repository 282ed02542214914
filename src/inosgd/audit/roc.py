"""ROC curves: how many members an attack finds at the price of how many false alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from inosgd._arrays import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates at every threshold, from "nobody is a member" to "everybody is"."""

    false_positive_rates: FloatArray
    true_positive_rates: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, members: BoolArray) -> Roc:
        """The curve of guessing "member" at high scores; equal scores share a point."""
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

    def thinned(self, points: int = 201) -> tuple[FloatArray, FloatArray]:
        """The curve at a few false positive rates, half of them below 5%, to draw or to keep."""
        grid = np.unique(np.append(np.geomspace(1e-4, 0.05, points // 2), np.linspace(0.0, 1.0, points // 2)))
        return grid, np.interp(grid, self.false_positive_rates, self.true_positive_rates)


def auc_interval(
    scores: FloatArray, members: BoolArray, confidence: float, *, seed: int = 0, resamples: int = 200
) -> tuple[float, float]:
    """An approximate confidence interval for the AUC of scores (models, examples).

    Scores of one model depend on each other, so that models are resampled, not pairs; the interval is normal around
    the AUC with the standard deviation over resamples. It is approximate: verdicts do not rest on it.
    """
    usable = np.isfinite(scores)
    order = np.argsort(scores[usable], kind="stable")
    model_of = np.broadcast_to(np.arange(len(scores))[:, None], scores.shape)[usable][order]
    present = members[usable][order]
    rng, count = np.random.default_rng(seed), len(scores)
    areas = []
    for _ in range(resamples):
        weights = np.bincount(rng.integers(count, size=count), minlength=count)[model_of].astype(np.float64)
        areas.append(_weighted_area(weights, present))
    centre = Roc.of(scores[usable], members[usable]).auc
    reach = float(ndtri(1 - (1 - confidence) / 2)) * float(np.std(areas, ddof=1))
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


def _weighted_area(weights: FloatArray, present: BoolArray) -> float:
    """The AUC of weighted pairs in ascending order of score; ties, which reals do not have, count as they come."""
    absent = np.where(present, 0.0, weights)
    below = np.cumsum(absent) - absent
    inside = np.where(present, weights, 0.0)
    return float((inside * below).sum() / (inside.sum() * absent.sum()))
