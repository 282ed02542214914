"""Paired differences and regressions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from inosgd.analysis.differences import paired_difference, regression
from inosgd.errors import InvalidArgumentError


def test_paired_differences_are_a_paired_t_test():
    rng = np.random.default_rng(0)
    theirs = rng.normal(0.5, 0.2, 8)
    ours = theirs + rng.normal(0.03, 0.01, 8)  # pairs differ little although the values scatter much
    found = paired_difference(ours, theirs)
    assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert found.mean == pytest.approx((ours - theirs).mean())
    assert found.p < 0.001 < stats.ttest_ind(ours, theirs).pvalue  # unpaired, the same difference would not show


def test_p_values_where_a_test_has_nothing_to_say():
    assert paired_difference([0.4], [0.3]).p is None
    assert paired_difference([0.4, 0.7], [0.3, 0.5]).p is None  # two seeds are too few
    assert paired_difference([0.4] * 3, [0.4] * 3).p == 1.0
    assert paired_difference([0.5] * 3, [0.25] * 3).p == 0.0
    with pytest.raises(InvalidArgumentError):
        paired_difference([0.4], [0.3, 0.2])


def test_regression_finds_the_line():
    budgets = np.linspace(0.5, 5, 10)
    line = regression(budgets, 0.2 - 0.03 * budgets)
    assert (line.slope, line.intercept, line.correlation) == pytest.approx((-0.03, 0.2, -1.0))
    assert line.p < 1e-9
    assert regression([1, 5], [0.1, 0.0]) is None
    assert regression([1, 1, 1], [0.1, 0.0, 0.2]) is None
