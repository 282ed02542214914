"""Decimals do not follow the program's own context."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np
import pytest

from inosgd._decimals import decimals
from inosgd.accounting.selection import draw_trials, trials_named
from inosgd.errors import BudgetExceededError
from inosgd.noise import rounded_gaussian
from inosgd.randomness import SeededSource
from inosgd.shown import rounded_down, rounded_up

STRANGE = {
    "few digits": decimal.Context(prec=2),
    "other rounding": decimal.Context(rounding=decimal.ROUND_UP),
    "nothing inexact": decimal.Context(traps=[decimal.Inexact, decimal.Rounded, decimal.Subnormal]),
    "small exponents": decimal.Context(Emin=-2, Emax=2),
    "capitals": decimal.Context(capitals=0, clamp=1),
}


@pytest.fixture(params=STRANGE)
def strange(request):
    return decimal.localcontext(STRANGE[request.param])


def test_everything_is_set(strange):
    with decimals(50):
        expected = Decimal(2).sqrt(), Decimal(10) ** -900 / 3
    with strange, decimals(50):
        assert (Decimal(2).sqrt(), Decimal(10) ** -900 / 3) == expected


def test_numbers_that_are_shown(strange):
    values = [(rounded_up, 1.23412, 17), (rounded_down, 9.99999, 4), (rounded_up, 1.5e-7, 3), (rounded_up, 2e9, 3)]
    expected = [show(*given) for show, *given in values]
    with strange:
        assert [show(*given) for show, *given in values] == expected
        assert "would have spent 1.234" in str(BudgetExceededError("owner", 1.0, 1.234, 3))


def test_noise(strange):
    """At a scale where one number in a few hundred is computed by decimals."""
    expected = rounded_gaussian(SeededSource(1), 2_000, 2.0**36).numpy()
    with strange:
        np.testing.assert_array_equal(rounded_gaussian(SeededSource(1), 2_000, 2.0**36).numpy(), expected)


def test_numbers_of_trials(strange):
    trials = trials_named("poisson", 10.0)
    expected = [draw_trials(trials, SeededSource(seed)) for seed in range(20)]
    with strange:
        assert [draw_trials(trials, SeededSource(seed)) for seed in range(20)] == expected
