"""LiRA, the likelihood-ratio attack of Carlini et al. (2022), as in the paper's App. D.

For each example, the confidences of shadow models that were trained with it and of those trained without it are taken
as normal. With the means and standard deviations of both, the score of a target model's confidence x is

    online    log N(x; in) - log N(x; out),    the likelihood ratio;
    offline   (x - mean_out) / sd_out,         for an attacker who never trains with the example; ordered like the
                                               probability that a model without it is less confident.

A target model's own confidences are never part of the statistics that it is scored by: `leave_one_out_scores` takes
them out, and `scores_against` is for targets apart from the shadow models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.errors import InvalidArgumentError

FORMS = ("online", "offline")

FEWEST_MODELS = 8
"""Below this there are hardly any statistics to speak of."""

ENOUGH_FOR_VARIANCES = 64
"""With fewer shadow models, all examples share one standard deviation for "in" and one for "out"."""

_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class Sums:
    """Counts, sums and sums of squares of confidences, in (row 1) and out (row 0), one column per example.

    Confidences are taken relative to ``centre``, so that differences of squares keep their digits.
    """

    counts: IntArray
    sums: FloatArray
    squares: FloatArray
    centre: FloatArray

    @classmethod
    def of(cls, confidences: FloatArray, members: BoolArray) -> Sums:
        """Of shadow models in rows."""
        centre = confidences.mean(axis=0)
        shifted = confidences - centre
        sides = (~members, members)
        return cls(
            np.stack([side.sum(axis=0) for side in sides]),
            np.stack([np.where(side, shifted, 0.0).sum(axis=0) for side in sides]),
            np.stack([np.where(side, shifted**2, 0.0).sum(axis=0) for side in sides]),
            centre,
        )

    def without(self, confidences: FloatArray, members: BoolArray) -> Sums:
        """The sums without one of the models."""
        shifted, sides = confidences - self.centre, np.stack([~members, members])
        return Sums(self.counts - sides, self.sums - sides * shifted, self.squares - sides * shifted**2, self.centre)

    def scores(self, confidences: FloatArray, form: str) -> FloatArray:
        """One score per example for one target model; NaN where an example was never in, or never out."""
        _validate.one_of(FORMS, form=form)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.sums / self.counts
            deviations = self._deviations(means)
            distances = (confidences - self.centre - means) / deviations
        if form == "offline":
            return np.asarray(distances[0])
        logs = -np.log(deviations) - distances**2 / 2
        return np.asarray(logs[1] - logs[0])

    def _deviations(self, means: FloatArray) -> FloatArray:
        spread = np.maximum(self.squares - self.counts * means**2, 0.0)
        if int(self.counts.sum(axis=0).min()) >= ENOUGH_FOR_VARIANCES:
            variances = spread / np.maximum(self.counts - 1, 1)
        else:
            freedom = np.maximum(np.maximum(self.counts - 1, 0).sum(axis=1, keepdims=True), 1)
            variances = np.broadcast_to(np.nansum(spread, axis=1, keepdims=True) / freedom, spread.shape)
        return np.maximum(np.sqrt(variances), _LEAST_DEVIATION)


def leave_one_out_scores(confidences: FloatArray, members: BoolArray, form: str) -> FloatArray:
    """Every model in turn as the target, scored by all the others."""
    _check(confidences)
    sums = Sums.of(confidences, members)
    rows = zip(confidences, members, strict=True)
    return np.stack([sums.without(values, present).scores(values, form) for values, present in rows])


def scores_against(shadows: FloatArray, shadow_members: BoolArray, targets: FloatArray, form: str) -> FloatArray:
    """Target models scored by shadow models that are none of them."""
    _check(shadows)
    sums = Sums.of(shadows, shadow_members)
    return np.stack([sums.scores(values, form) for values in targets])


def _check(confidences: FloatArray) -> None:
    if not len(confidences) >= FEWEST_MODELS:
        raise InvalidArgumentError(f"models={len(confidences)}: train at least {FEWEST_MODELS} shadow models")
