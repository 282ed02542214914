"""What a group of records spends, against dp-accounting's mixture of Gaussians."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from inosgd.accounting import group
from inosgd.accounting.group import group_epsilon
from inosgd.accounting.privacy_loss import SampledGaussian, compose
from inosgd.errors import InvalidArgumentError
from tests.properties import tries


def reference_epsilon(q, z, steps, delta, size, spacing):
    """dp-accounting, with all but 1e-20 of the binomial."""
    most = min(size, int(binom.isf(1e-20, size, q)) + 1)
    probabilities = binom.pmf(np.arange(most + 1), size, q)
    distribution = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, np.arange(most + 1.0), probabilities / probabilities.sum(), value_discretization_interval=spacing
    )
    return distribution.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("q", "z", "steps", "size", "spacing"),
    [
        (0.02, 4.55, 1000, 2, 2e-4),
        (0.02, 4.55, 1000, 10, 1e-3),
        pytest.param(0.01, 2.0, 200, 5, 3e-4, marks=pytest.mark.long),
        (0.02, 4.55, 300, 50, 5e-3),
    ],
)
def test_agreement_with_dp_accounting(q, z, steps, size, spacing):
    expected = reference_epsilon(q, z, steps, 1e-5, size, spacing)
    assert expected * (1 - 1e-4) <= group_epsilon(q, z, steps, 1e-5, size) <= expected * (1 + 2e-4)


def test_measured_numbers():
    """An owner whose Rényi budget is 0.5 (0.454 by privacy loss): 0.97 for 2 records, 5.97 for 10, 48 for 50."""
    found = [group_epsilon(0.02, 4.96235, 1000, 1e-5, size) for size in (1, 2, 10, 50)]
    assert found == pytest.approx([0.454, 0.97, 5.97, 48.3], rel=2e-3)


def test_one_record_is_the_record():
    single = compose([SampledGaussian(0.02, 2.0, 500)]).epsilon(1e-5)
    assert group_epsilon(0.02, 2.0, 500, 1e-5, 1) == pytest.approx(single, rel=1e-6)
    assert group_epsilon(0.02, 2.0, 500, 1e-5, 1) >= single


def test_a_certain_group_is_one_gaussian():
    plain = compose([SampledGaussian(1.0, 4.0 / 3, 5)]).epsilon(1e-5)
    assert group_epsilon(1.0, 4.0, 5, 1e-5, 3) == pytest.approx(plain, rel=1e-6)


def test_edges():
    assert group_epsilon(0.0, 1.0, 100, 1e-5, 10) == 0
    assert group_epsilon(0.1, 1.0, 0, 1e-5, 10) == 0
    assert group_epsilon(0.1, math.inf, 100, 1e-5, 10) == 0
    assert group_epsilon(0.5, 0.01, 100, 1e-5, 100) > 1e5


@pytest.mark.parametrize("size", [500, 5_000, 50_000])
def test_large_groups_cost_more_than_smaller_ones_and_are_bounded(size):
    found = group_epsilon(0.02, 5.0, 1000, 1e-5, size)
    assert found > group_epsilon(0.02, 5.0, 1000, 1e-5, size // 2)
    # rounding counts up costs little: a group that is always sampled at its mean is a lower bound in spirit
    mean = compose([SampledGaussian(1.0, 5.0 / (0.02 * size), 1000)]).epsilon(1e-5)
    assert mean < found < 1.25 * mean


def test_rounded_counts_dominate_the_binomial():
    for size, q in [(10, 0.3), (1000, 0.02), (50_000, 0.02), (200, 0.9)]:
        shifts, probabilities = group._sampled_counts(size, q, 1e-15)
        assert len(shifts) <= 64
        assert sum(probabilities) <= 1 + 1e-15
        assert 1 - sum(probabilities) < 1e-13
        below = np.cumsum(probabilities)
        exact = binom.cdf(shifts, size, q)
        previous = np.concatenate([[0.0], below[:-1]])
        assert (below <= exact + 1e-12).all()
        # negative control: counts rounded down would not dominate
        assert not (below <= binom.cdf(np.array(shifts) - 1, size, q) + 1e-12).all()
        assert (previous <= below).all()


@tries(5)
@given(st.floats(1e-3, 0.3), st.floats(1, 10), st.integers(1, 300), st.integers(1, 40))
def test_epsilon_grows_with_the_group(q, z, steps, size):
    smaller = group_epsilon(q, z, steps, 1e-5, size)
    assert group_epsilon(q, z, steps, 1e-5, size + 1) >= smaller * (1 - 3e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        (1.1, 1.0, 1, 1e-5, 1),
        (0.1, 0.0, 1, 1e-5, 1),
        (0.1, 1.0, -1, 1e-5, 1),
        (0.1, 1.0, 1, 0.0, 1),
        (0.1, 1.0, 1, 1e-5, 0),
        (0.1, 1.0, 1, math.nan, 1),
    ],
)
def test_invalid_arguments_are_refused(arguments):
    with pytest.raises(InvalidArgumentError):
        group_epsilon(*arguments)
