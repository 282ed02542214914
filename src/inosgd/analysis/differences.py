"""Differences between methods over paired seeds, and how they depend on budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd.analysis.summary import mean_sd

FEWEST_PAIRS = 3
"""Of fewer seeds neither a p-value nor a standard deviation is shown: they would say more than there is."""


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences, its standard deviation, and the two-sided p-value of a paired t-test.

    ``p`` is None where a test has nothing to say: fewer than three seeds.
    """

    mean: float
    sd: float
    p: float | None
    pairs: int

    def to_json(self) -> dict[str, float | int | None]:
        """Plain numbers."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Regression:
    """The least-squares line of changes against budgets, with Pearson's correlation and its two-sided p-value."""

    slope: float
    intercept: float
    correlation: float
    p: float

    def to_json(self) -> dict[str, float]:
        """Plain numbers."""
        return dict(self.__dict__)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """``ours`` minus ``theirs``, entry by entry.

    >>> paired_difference([0.5, 0.7], [0.4, 0.5]).mean
    0.15
    """
    _validate.same_length(ours=ours, theirs=theirs)
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    spread = mean_sd(differences.tolist())
    return Difference(round(spread.mean, 15), spread.sd, _p_value(differences), len(differences))


def _p_value(differences: np.typing.NDArray[np.float64]) -> float | None:
    if len(differences) < FEWEST_PAIRS:
        return None
    if np.ptp(differences) <= 1e-12:  # equal up to rounding: no scatter to test against
        return 1.0 if abs(differences[0]) <= 1e-12 else 0.0
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def regression(budgets: Sequence[float], changes: Sequence[float]) -> Regression | None:
    """The line through (budget, change); None where budgets or changes do not vary, or there are fewer than three."""
    _validate.same_length(budgets=budgets, changes=changes)
    if len(budgets) < 3 or np.ptp(budgets) == 0 or np.ptp(changes) == 0:
        return None
    from scipy import stats

    line = stats.linregress(budgets, changes)
    return Regression(float(line.slope), float(line.intercept), float(line.rvalue), float(line.pvalue))
