"""Odds against what is known exactly, and against what an attack reaches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from inosgd.accounting.profile import gaussian_multiplier
from inosgd.errors import InvalidArgumentError
from inosgd.serve.odds import best_of_100

EPSILONS, DELTAS = st.floats(0.01, 20), st.floats(1e-9, 0.1)


def exact(multiplier: float) -> float:
    """Of 100, for one Gaussian release: the best test compares with the middle."""
    return 100 * float(ndtr(1 / (2 * multiplier)))


@given(EPSILONS, DELTAS)
def test_no_gaussian_release_within_the_budget_does_better(epsilon, delta):
    multiplier = gaussian_multiplier(epsilon, delta)
    order = 8
    bound = best_of_100(epsilon, delta, order / (2 * multiplier**2))
    assert bound >= exact(multiplier)
    assert best_of_100(epsilon, delta) >= bound


@given(EPSILONS, DELTAS)
def test_randomized_response_reaches_what_the_budget_allows(epsilon, delta):
    """The bound from a budget alone cannot be smaller: this mechanism has that budget, and is told apart so well."""
    reached = 100 * (delta + (1 - delta) / (1 + math.exp(-epsilon)))
    assert reached <= best_of_100(epsilon, delta) <= reached + 100 * delta + 1 + 1e-6


def test_a_bound_that_forgets_delta_would_be_caught():
    forgetful = math.ceil(100 / (1 + math.exp(-1.0)))
    assert forgetful < 100 * (0.1 + 0.9 / (1 + math.exp(-1.0)))
    assert best_of_100(1.0, 0.1) > forgetful


def test_nothing_spent_is_guessing_and_everything_is_certain():
    assert best_of_100(0.0, 1e-9, 0.0) == 51  # rounded up from a delta above 50
    assert best_of_100(60.0, 1e-5) == 100
    values = [best_of_100(epsilon, 1e-5) for epsilon in np.linspace(0, 10, 50)]
    assert values == sorted(values)


@pytest.mark.parametrize("values", [(-1.0, 1e-5, None), (1.0, 0.0, None), (math.nan, 1e-5, None), (1.0, 1e-5, -1.0)])
def test_what_is_no_budget_is_refused(values):
    with pytest.raises(InvalidArgumentError):
        best_of_100(*values)
