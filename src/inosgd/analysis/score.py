"""Scores: the one number in which owners are compared, as rows of data.

A score is at most 1, and larger is better. `value` takes predictions and targets of one group, and the targets of all
held-out examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.analysis import measures

LOWEST_R2 = -1.0
"""Squared errors beyond twice the variance of the targets count as twice the variance.

One owner for whom a model diverged would otherwise drown all others in means, charts and imbalance. The measure ``r2``
is not cut off.
"""


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, as everywhere.

    >>> percent(0.4185), percent(0.124, 0)
    ('41.9 %', '12 %')
    """
    return f"{100 * share:.{digits}f} %"


@dataclass(frozen=True)
class Score:
    """One row: what a score is called, how it is shown, and how it is computed.

    Attributes:
        name: What tables and charts call it.
        form: The format of one value, for Python and for charts alike.
        lowest: No value is below it.
        value: From outputs, targets and the targets of all held-out examples to the score; None if it is not defined.
    """

    name: str
    form: str
    lowest: float
    value: Callable[[FloatArray, Any, Any], float | None]

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.form.endswith("%")

    @property
    def axis(self) -> str:
        """The format of ticks."""
        return "~%" if self.is_share else ".3~r"

    def shown(self, value: float) -> str:
        """One value.

        >>> SCORES["accuracy"].shown(0.8312), SCORES["R²"].shown(-0.25)
        ('83.1 %', '-0.250')
        """
        return percent(value) if self.is_share else format(value, self.form)

    def shown_spread(self, sd: float) -> str:
        """A standard deviation behind a value, without the sign for percent."""
        return f"± {100 * sd:.1f}" if self.is_share else f"± {format(sd, self.form)}"

    def shown_range(self, low: float, high: float) -> str:
        """The two ends of an interval behind a value, without the sign for percent.

        >>> SCORES["accuracy"].shown_range(0.78, 0.873)
        '78.0 to 87.3'
        """
        return " to ".join(self.shown(each).removesuffix(" %") for each in (low, high))

    def change(self, difference: float) -> str:
        """A difference of two values.

        >>> SCORES["accuracy"].change(0.012), SCORES["R²"].change(0.012)
        ('+1.2 points', '+0.012')
        """
        return f"{100 * difference:+.1f} points" if self.is_share else format(difference, f"+{self.form}")

    def place(self, value: float) -> float:
        """Where a value stands between the lowest and 1, as a share."""
        return min(1.0, max(0.0, (value - self.lowest) / (1 - self.lowest)))


def _accuracy(outputs: FloatArray, targets: Any, _: Any) -> float | None:
    return measures.accuracy(outputs.argmax(1), targets)


def _balanced_accuracy(outputs: FloatArray, targets: Any, _: Any) -> float | None:
    return measures.balanced_accuracy(outputs.argmax(1), targets)


def _average_precision(outputs: FloatArray, targets: Any, _: Any) -> float | None:
    return measures.macro(measures.average_precision, outputs, np.asarray(targets) > 0.5)


def _common_r2(outputs: FloatArray, targets: npt.NDArray[Any], among: npt.NDArray[Any]) -> float | None:
    """1 - (mean squared error of the group) / (variance of the targets of *all* held-out examples), at least -1.

    With one yardstick for all owners, owners with few or constant targets have a score like any other, scores of two
    owners differ as their errors do, and the overall score is R² itself and, but for the cut at -1, the mean of the
    owners' scores weighted by their sizes. Several targets are averaged; one that does not vary at all is left out,
    unless none does: then a group is 1 if it is predicted exactly, and -1 if it is not.
    """
    variances = among.var(axis=0)
    varying = np.ptp(among, axis=0) > 0
    chosen = varying if varying.any() else ~varying
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        errors = np.mean((outputs - targets) ** 2, axis=0)[chosen]
        ratios = np.where(errors == 0, 0.0, errors / np.where(varying, variances, 0.0)[chosen])
    return float(np.mean(1 - np.fmin(ratios, 1 - LOWEST_R2)))  # fmin: NaN counts as the worst


SCORES = {
    score.name: score
    for score in (
        Score("accuracy", ".1%", 0.0, _accuracy),
        Score("balanced accuracy", ".1%", 0.0, _balanced_accuracy),
        Score("mean average precision", ".3f", 0.0, _average_precision),
        Score("R²", ".3f", LOWEST_R2, _common_r2),
    )
}


def score_named(name: str) -> Score:
    """The row called ``name``."""
    _validate.one_of(SCORES, score=name)
    return SCORES[name]
