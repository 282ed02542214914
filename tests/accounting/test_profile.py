"""Risk profiles: the measured table, the plain Gaussian, and attacks that no bound may undercut."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from inosgd.accounting.privacy_loss import PrivacyProfile, SampledGaussian, compose
from inosgd.accounting.profile import (
    best_true_positive_rate,
    gaussian_delta,
    gaussian_multiplier,
    gaussian_profile,
    risk_profile,
)
from inosgd.errors import InvalidArgumentError
from tests.properties import tries


def profile_at(z, epsilon, steps=1000):
    """The profile of the rate that costs ``epsilon`` at 1e-5."""

    def gap(log_rate):
        return compose([SampledGaussian(math.exp(log_rate), z, steps)]).epsilon(1e-5) - epsilon

    rate = math.exp(brentq(gap, math.log(1e-4), math.log(0.5), xtol=1e-6))
    return rate, compose([SampledGaussian(rate, z, steps)])


@pytest.mark.parametrize(
    ("z", "rate", "advantage", "epsilons"),
    [
        (0.8, 0.00158, 0.038, (0.735, 1.043, 1.400)),
        (1.2, 0.00417, 0.052, (0.588, 0.669, 0.748)),
        (3.0, 0.01288, 0.056, (0.580, 0.653, 0.720)),
        (10.0, 0.04463, 0.056, (0.579, 0.650, 0.715)),
    ],
)
def test_the_same_budget_carries_different_risks(z, rate, advantage, epsilons):
    found_rate, profile = profile_at(z, 0.5)
    risks = risk_profile(profile, 1e-5)
    assert found_rate == pytest.approx(rate, abs=6e-6)
    assert risks.advantage == pytest.approx(advantage, abs=6e-4)
    found = (risks.epsilon_at_tenth, risks.epsilon_at_hundredth, risks.epsilon_at_thousandth)
    assert found == pytest.approx(epsilons, abs=1.1e-3)


def test_large_noise_approaches_the_plain_gaussian():
    plain, large = gaussian_profile(0.5, 1e-5), risk_profile(profile_at(10.0, 0.5)[1], 1e-5)
    for name in ("advantage", "epsilon_at_thousandth", "true_positive_rate_at_1_percent"):
        assert getattr(large, name) == pytest.approx(getattr(plain, name), rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (3.0, 1e-6), (0.01, 1e-8), (20.0, 1e-5)])
def test_gaussian_profile_agrees_with_composition(epsilon, delta):
    exact = gaussian_profile(epsilon, delta)
    profile = compose([SampledGaussian(1.0, gaussian_multiplier(epsilon, delta), 1)], resolution=0.01)
    bounds = risk_profile(profile, delta)
    assert profile.epsilon(delta) == pytest.approx(epsilon, rel=1e-4)
    for name, value in vars(exact).items():
        bound = getattr(bounds, name)
        assert value * (1 - 1e-9) <= bound <= value * (1 + 2e-4)


@tries(15)
@given(st.floats(0, 30), st.floats(1e-12, 0.5))
def test_calibrated_gaussian_is_exact_and_on_the_private_side(epsilon, delta):
    z = gaussian_multiplier(epsilon, delta)
    assert gaussian_delta(z, epsilon) <= delta
    with mpmath.workdps(40):
        half, product = 1 / (2 * mpmath.mpf(z)), mpmath.mpf(epsilon) * mpmath.mpf(z)
        exact = mpmath.ncdf(half - product) - mpmath.exp(epsilon) * mpmath.ncdf(-half - product)
    assert float(exact) == pytest.approx(delta, rel=1e-8)


@pytest.mark.parametrize("z", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3])
def test_the_best_test_against_a_gaussian_is_bounded_tightly(z, rate):
    """The likelihood-ratio test attains Φ(Φ^-1(f) + 1/z); a bound below it would be a lie."""
    attained = float(ndtr(ndtri(rate) + 1 / z))
    bound = best_true_positive_rate(compose([SampledGaussian(1.0, z)]), rate)
    assert attained <= bound <= attained * (1 + 1e-3)
    optimistic = compose([SampledGaussian(1.0, z * 1.02)])  # negative control
    assert best_true_positive_rate(optimistic, rate) < attained


@pytest.mark.parametrize(("q", "z"), [(0.1, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize("threshold", [0.5, 1.0, 2.0, 3.0])
def test_no_threshold_attack_on_a_sampled_step_beats_the_bound(q, z, threshold):
    false_positive = float(ndtr(-threshold))
    true_positive = float((1 - q) * ndtr(-threshold) + q * ndtr(1 / z - threshold))
    profile = compose([SampledGaussian(q, z)])
    assert true_positive <= best_true_positive_rate(profile, false_positive)
    assert 1 - false_positive <= best_true_positive_rate(profile, 1 - true_positive)
    assert true_positive - false_positive <= risk_profile(profile, 1e-5).advantage


def test_trade_off_edges():
    profile = compose([SampledGaussian(0.1, 2.0, 100)])
    assert best_true_positive_rate(profile, 1.0) == 1
    assert best_true_positive_rate(profile, 0.0) < 1e-12
    nothing = PrivacyProfile(np.zeros(1), np.zeros(1))
    assert best_true_positive_rate(nothing, 0.2) == pytest.approx(0.2)
    assert risk_profile(nothing, 1e-5).advantage == 0
    rates = [best_true_positive_rate(profile, rate) for rate in np.linspace(0, 1, 30)]
    assert rates == sorted(rates)


def test_highest_area_under_the_curve_at_epsilon_1():
    """Membership tests against a Gaussian release at (1, 1e-5) have an area of at most Φ(1 / (z sqrt 2)) = 0.575."""
    z = gaussian_multiplier(1.0, 1e-5)
    profile = compose([SampledGaussian(1.0, z)])
    rates = np.linspace(0, 1, 401)
    area = np.trapezoid([best_true_positive_rate(profile, float(rate)) for rate in rates], rates)
    assert area == pytest.approx(float(ndtr(1 / (z * math.sqrt(2)))), abs=1e-4)
    assert area == pytest.approx(0.575, abs=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_profile(-1.0, 1e-5),
        lambda: gaussian_profile(1.0, 0.0),
        lambda: gaussian_delta(0.0, 1.0),
        lambda: gaussian_delta(1.0, math.nan),
        lambda: risk_profile(PrivacyProfile(np.zeros(1), np.zeros(1)), 1.0),
        lambda: best_true_positive_rate(PrivacyProfile(np.zeros(1), np.zeros(1)), math.nan),
    ],
)
def test_invalid_arguments_are_refused(call):
    with pytest.raises(InvalidArgumentError):
        call()
