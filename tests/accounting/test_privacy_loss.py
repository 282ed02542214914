"""Privacy-loss accounting against exact profiles, dp-accounting, and itself."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from inosgd.accounting import privacy_loss
from inosgd.accounting.privacy_loss import GaussianMixture, PrivacyProfile, SampledGaussian, compose
from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.errors import InvalidArgumentError
from tests.properties import tries

DELTAS = np.array([1e-3, 1e-5, 1e-8, 1e-10])


def profile_of(q, z, steps, **options):
    return compose([SampledGaussian(q, z, steps)], **options)


def reference(q, z, steps, spacing):
    """dp-accounting on a grid fine enough for the comparison."""
    return privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=spacing
    ).self_compose(steps)


def gaussian_delta(mu, epsilon):
    """The exact profile of N(mu, 1) against N(0, 1), in 50 digits."""
    with mpmath.workdps(50):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def one_step_delta(q, z, epsilon, side):
    """The exact profile of one sampled step at any real epsilon."""
    level = math.expm1(epsilon if side == "remove" else -epsilon) + q
    cut = (z * math.log(level / q) + 1 / (2 * z)) if level > 0 else -math.inf
    if side == "remove":
        return (1 - q) * ndtr(-cut) + q * ndtr(1 / z - cut) - math.exp(epsilon) * ndtr(-cut)
    return ndtr(cut) - math.exp(epsilon) * ((1 - q) * ndtr(cut) + q * ndtr(cut - 1 / z))


def two_step_delta(q, z, epsilon):
    """The exact profile of two sampled steps: the mean of one step's, over the loss of the other."""

    def ratio(t):
        return 1 + q * math.expm1(t / z - 1 / (2 * z * z))

    def remove(t):
        return ratio(t) * one_step_delta(q, z, epsilon - math.log(ratio(t)), "remove")

    def add(t):
        return one_step_delta(q, z, epsilon + math.log(ratio(t)), "add")

    def mean(function):
        return quad(lambda t: function(t) * math.exp(-t * t / 2) / math.sqrt(2 * math.pi), -12, 16, limit=400)[0]

    return max(mean(remove), mean(add))


def undercuts(profile, exact, epsilons, tolerance=1e-9):
    """Whether the profile claims less than the truth anywhere."""
    return any(profile.delta(float(e)) < exact(float(e)) * (1 - tolerance) for e in epsilons)


# Exact profiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "steps"), [(0.2, 1), (1.0, 1), (5.0, 1), (50.0, 1000), (1e3, 10), (3.0, 7), (2e3, 10**5)]
)
def test_plain_gaussian_is_bounded_from_above_and_tightly(z, steps):
    profile = profile_of(1.0, z, steps)
    mu = math.sqrt(steps) / z
    epsilons = mu**2 / 2 + mu * np.array([0.0, 1.0, 2.0, 4.0, 6.0])
    assert not undercuts(profile, lambda e: gaussian_delta(mu, e), epsilons)
    for delta in (1e-3, 1e-6, 1e-10):
        found = profile.epsilon(delta)
        if found > 0:
            assert gaussian_delta(mu, found) <= delta
            assert gaussian_delta(mu, found * (1 - 1.5e-4)) >= delta


@pytest.mark.parametrize(("q", "z"), [(0.02, 2.0), (0.01, 0.2), (0.5, 1.0), (1e-4, 0.5), (0.1, 1e3), (0.999, 3.0)])
def test_one_step_is_bounded_from_above_and_tightly(q, z):
    profile = profile_of(q, z, 1)

    def exact(epsilon):
        return max(one_step_delta(q, z, epsilon, "remove"), one_step_delta(q, z, epsilon, "add"))

    epsilons = [0.0, *(profile.epsilon(delta) for delta in (1e-2 * q, 1e-3 * q, 1e-6 * q, 1e-9 * q))]
    assert not undercuts(profile, exact, epsilons)
    for epsilon in epsilons:
        assert profile.delta(epsilon) <= exact(epsilon) * 1.002


@pytest.mark.parametrize(("q", "z"), [(0.02, 2.0), (0.05, 0.6), (0.4, 1.5)])
def test_two_steps_are_bounded_from_above_and_tightly(q, z):
    profile = profile_of(q, z, 2)
    for epsilon in (0.0, profile.epsilon(1e-3), profile.epsilon(1e-6)):
        exact = two_step_delta(q, z, epsilon)
        assert exact * (1 - 1e-7) <= profile.delta(epsilon) <= exact * 1.002


def test_rounding_losses_down_is_caught(monkeypatch):
    """Negative control: the checks above see an optimistic discretisation."""

    def rounded_down(losses, weights, spacing, infinite, steps):
        indices = np.floor(losses / spacing).astype(np.int64)
        occupied, inverse = np.unique(indices, return_inverse=True)
        return privacy_loss._GridLoss(occupied, np.bincount(inverse, weights), infinite, steps)

    monkeypatch.setattr(privacy_loss, "_grid_atoms", rounded_down)
    for steps in (7, 1000):
        mu = math.sqrt(steps) / 30
        assert undercuts(profile_of(1.0, 30.0, steps), lambda e, mu=mu: gaussian_delta(mu, e), [mu, 3 * mu])
    profile = profile_of(0.02, 2.0, 2)
    assert profile.delta(0.1) < two_step_delta(0.02, 2.0, 0.1) * (1 - 1e-7)


def test_charging_nothing_for_the_tail_is_caught(monkeypatch):
    """Negative control: outcomes beyond the cells must lose everything."""
    monkeypatch.setattr(privacy_loss, "_OUTSIDE_MASS", 1e-4)
    honest = profile_of(1.0, 1.0, 1)
    assert not undercuts(honest, lambda e: gaussian_delta(1.0, e), [4.0, 5.0])
    cut = privacy_loss._cut

    def without_tail(mixture, reach):
        cells = cut(mixture, reach)
        return privacy_loss._Cells(**{**vars(cells), "above": (0.0, 0.0), "below": (0.0, 0.0)})

    monkeypatch.setattr(privacy_loss, "_cut", without_tail)
    assert undercuts(profile_of(1.0, 1.0, 1), lambda e: gaussian_delta(1.0, e), [4.0, 5.0])


# The transform ------------------------------------------------------------------------------------------------------


def repeated_convolution(law, times):
    """The exact power of a law of positive masses, where nothing cancels."""
    result = np.ones(1)
    for _ in range(times):
        result = np.convolve(result, law)
    return result


@pytest.mark.parametrize(("q", "z", "steps"), [(0.1, 3.0, 40), (0.02, 0.7, 25)])
def test_the_charged_error_covers_the_transform_and_the_window(q, z, steps):
    mixture = SampledGaussian(q, z, steps).as_mixture()
    cells = privacy_loss._cut(mixture, 9.0)
    spacing = 0.1 * math.sqrt(privacy_loss._variance(cells))
    loss = privacy_loss._on_grid(cells, "remove", spacing, steps)
    law = privacy_loss._convolve([loss])
    exact = repeated_convolution(privacy_loss._tilted(loss, law.tilt), steps)
    window = np.zeros(max(law.low - steps * int(loss.indices[0]) + len(law.masses), len(exact)))
    window[: len(exact)] = exact
    start = law.low - steps * int(loss.indices[0])
    missing = np.maximum(window[start : start + len(law.masses)] - law.masses, 0).sum()
    outside = window[:start].sum() + window[start + len(law.masses) :].sum()
    assert missing + outside <= law.error
    assert law.error < 1e-10
    damaged = law.masses * (1 - 1e-8)  # negative control
    assert np.maximum(window[start : start + len(law.masses)] - damaged, 0).sum() > law.error


def test_deltas_below_what_is_certified_give_infinity():
    profile = profile_of(0.02, 2.0, 1000)
    floor = profile.deltas[-1]
    assert 0 < floor < 1e-15
    assert math.isinf(profile.epsilon(floor / 2))
    assert math.isinf(profile.epsilon(0.0))
    assert math.isfinite(profile.epsilon(1e-15))
    assert profile.delta(1e6) == floor


# dp-accounting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "z", "steps"),
    [(0.02, 2.0, 1000), (0.01, 1.0, 1000), (0.01, 0.5, 1000), (0.05, 10.0, 300), (0.3, 8.0, 50), (1e-3, 0.3, 100)],
)
def test_agreement_with_dp_accounting(q, z, steps):
    profile = profile_of(q, z, steps)
    other = reference(q, z, steps, profile.epsilons[1] / 3)
    found = profile.epsilon(DELTAS)
    expected = np.array([other.get_epsilon_for_delta(delta) for delta in DELTAS])
    # at 1e-10 dp-accounting's own rounding and truncation show
    np.testing.assert_array_less(expected[:3] * (1 - 1e-6), found[:3])
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-4)
    np.testing.assert_allclose(found[3], expected[3], rtol=5e-4)


def test_several_phases_agree_with_dp_accounting():
    phases = [(0.02, 2.0, 500), (0.1, 6.0, 200), (0.001, 1.0, 300)]
    profile = compose([SampledGaussian(*phase) for phase in phases])
    first, second, third = (reference(*phase, 1e-4) for phase in phases)
    other = first.compose(second).compose(third)
    for delta in (1e-3, 1e-5, 1e-8):
        expected = other.get_epsilon_for_delta(delta)
        assert expected * (1 - 1e-6) <= profile.epsilon(delta) <= expected * (1 + 1.2e-4)


def test_a_fixed_grid_is_loose_where_losses_are_small_and_ours_is_not():
    ours = profile_of(0.05, 200.0, 1000).epsilon(1e-5)
    fine = reference(0.05, 200.0, 1000, 5e-6).get_epsilon_for_delta(1e-5)
    fixed = reference(0.05, 200.0, 1000, 1e-4).get_epsilon_for_delta(1e-5)
    assert ours == pytest.approx(fine, rel=1.5e-4)
    assert fixed > ours * 1.014


# Composition --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "z"), [(0.05, 1.0), (0.02, 4.0)])
def test_single_steps_compose_to_one_phase(q, z):
    together = profile_of(q, z, 60).epsilon(DELTAS)
    merged = compose([SampledGaussian(q, z)] * 60).epsilon(DELTAS)
    distinct = compose([SampledGaussian(q, z * (1 + 1e-13 * step)) for step in range(60)]).epsilon(DELTAS)
    np.testing.assert_array_equal(merged, together)
    np.testing.assert_allclose(distinct, together, rtol=1e-6)


def test_order_of_phases_does_not_matter():
    phases = [SampledGaussian(0.02, 2.0, 100), SampledGaussian(0.2, 9.0, 50), SampledGaussian(1.0, 80.0, 3)]
    np.testing.assert_allclose(compose(phases).epsilon(DELTAS), compose(phases[::-1]).epsilon(DELTAS), rtol=1e-9)


def test_nothing_revealed_costs_nothing():
    for silent in (SampledGaussian(0.0, 1.0, 100), SampledGaussian(0.5, 1.0, 0), SampledGaussian(0.5, math.inf, 9)):
        assert compose([silent]).epsilon(np.array([0.0, 1e-5])).tolist() == [0.0, 0.0]
        assert compose([silent]).delta(0.0) == 0
    assert compose([]).delta(1.0) == 0
    phase = SampledGaussian(0.1, 2.0, 10)
    assert compose([phase, SampledGaussian(0.0, 1.0, 5)]).epsilon(1e-5) == compose([phase]).epsilon(1e-5)


@pytest.mark.parametrize(
    ("q", "z", "steps"),
    [(0.01, 0.2, 1), (0.01, 0.2, 1000), (0.3, 0.2, 1000), (0.01, 1e4, 1), (1e-8, 1.0, 1000), (1 - 1e-12, 2.0, 10)],
)
def test_extremes_stay_finite_and_below_the_plain_gaussian(q, z, steps):
    found, plain = profile_of(q, z, steps).epsilon(1e-5), profile_of(1.0, z, steps).epsilon(1e-5)
    assert 0 <= found <= plain * (1 + 1e-4)
    assert math.isfinite(found)


def test_many_steps():
    profile = profile_of(0.01, 5.0, 10**5)
    # the central limit: a Gaussian with the same variance of the loss
    assert profile.epsilon(1e-5) == pytest.approx(2.627, rel=1e-3)
    assert math.isfinite(profile.epsilon(1e-12))


@tries(8)
@given(st.floats(1e-4, 0.5), st.floats(0.5, 20), st.integers(1, 3000), st.floats(1.02, 1.5), st.floats(1e-9, 1e-3))
def test_epsilon_grows_with_rate_steps_and_less_noise(q, z, steps, factor, delta):
    base = profile_of(q, z, steps).epsilon(delta)
    slack = 1 - 3e-4
    assert profile_of(min(q * factor, 1.0), z, steps).epsilon(delta) >= base * slack
    assert profile_of(q, z / factor, steps).epsilon(delta) >= base * slack
    assert profile_of(q, z, math.ceil(steps * factor)).epsilon(delta) >= base * slack


@tries(8)
@given(st.floats(1e-4, 0.5), st.floats(0.7, 20), st.integers(1, 3000), st.floats(1e-9, 1e-3))
def test_it_is_never_above_renyi_accounting(q, z, steps, delta):
    renyi = epsilon_from_renyi(steps * renyi_divergences(q, z), RENYI_ORDERS, delta)[0][0]
    assert profile_of(q, z, steps).epsilon(delta) <= renyi * (1 + 1e-3) + 1e-6


@tries(8)
@given(st.floats(1e-3, 0.5), st.floats(0.5, 20), st.integers(1, 500), st.floats(0.05, 0.2))
def test_a_coarser_grid_is_never_cheaper(q, z, steps, coarse):
    fine = profile_of(q, z, steps).epsilon(DELTAS[:3])
    assert (profile_of(q, z, steps, resolution=coarse).epsilon(DELTAS[:3]) >= fine * (1 - 2e-4) - 1e-9).all()


# The profile --------------------------------------------------------------------------------------------------------


@tries(8)
@given(st.floats(0.05, 1.0), st.floats(0.3, 5), st.integers(1, 200), st.floats(1e-12, 0.5))
def test_delta_and_epsilon_are_inverse(q, z, steps, delta):
    profile = profile_of(q, z, steps)
    epsilon = profile.epsilon(delta)
    if 0 < epsilon < math.inf:
        assert profile.delta(epsilon) <= delta
        assert profile.delta(epsilon * (1 - 1e-9)) == pytest.approx(delta, rel=1e-5)
    else:
        assert epsilon == math.inf or profile.delta(0.0) <= delta


def test_scalars_and_arrays():
    profile = profile_of(0.1, 2.0, 100)
    assert isinstance(profile.epsilon(1e-5), float)
    assert isinstance(profile.delta(1.0), float)
    assert profile.epsilon(DELTAS).tolist() == [profile.epsilon(float(delta)) for delta in DELTAS]
    epsilons = np.array([0.0, 0.5, 1.0, 100.0])
    assert profile.delta(epsilons).tolist() == [profile.delta(float(epsilon)) for epsilon in epsilons]
    assert (np.diff(profile.deltas) <= 0).all()


def test_profile_between_knots_is_linear_in_the_exponential():
    profile = PrivacyProfile(np.array([0.0, 1.0, 2000.0]), np.array([0.5, 0.1, 1e-9]))
    assert profile.delta(math.log((1 + math.e) / 2)) == pytest.approx(0.3)
    assert profile.epsilon(0.3) == pytest.approx(math.log((1 + math.e) / 2))
    assert profile.delta(1000.0) == pytest.approx(0.1)
    assert profile.epsilon(0.05) == pytest.approx(2000 - math.log(2), rel=1e-6)
    assert profile.epsilon(0.6) == 0
    assert profile.delta(1e9) == 1e-9


@pytest.mark.parametrize(
    "build",
    [
        lambda: SampledGaussian(1.1, 1.0, 1),
        lambda: SampledGaussian(math.nan, 1.0, 1),
        lambda: SampledGaussian(0.1, 0.0, 1),
        lambda: SampledGaussian(0.1, math.nan, 1),
        lambda: SampledGaussian(0.1, 1.0, -1),
        lambda: SampledGaussian(0.1, 1.0, 1.5),
        lambda: GaussianMixture((0.0, 1.0), (0.6, 0.6), 1.0),
        lambda: GaussianMixture((0.0, -1.0), (0.5, 0.5), 1.0),
        lambda: GaussianMixture((0.0,), (0.5, 0.5), 1.0),
        lambda: GaussianMixture((0.0,), (0.0,), 1.0),
        lambda: compose([SampledGaussian(0.1, 1.0, 1)], resolution=0.0),
        lambda: profile_of(0.1, 1.0, 1).epsilon(math.nan),
        lambda: profile_of(0.1, 1.0, 1).delta(-1.0),
    ],
)
def test_invalid_arguments_are_refused(build):
    with pytest.raises(InvalidArgumentError):
        build()


def test_missing_probability_loses_everything():
    whole = compose([GaussianMixture((0.0, 1.0), (0.9, 0.1), 2.0, 10)])
    part = compose([GaussianMixture((0.0, 1.0), (0.9, 0.1 - 1e-6), 2.0, 10)])
    assert part.delta(50.0) == pytest.approx(1e-5, rel=1e-3)
    assert part.delta(0.1) > whole.delta(0.1)
    nothing_else = compose([GaussianMixture((0.0,), (1 - 1e-6,), 1.0, 10)])
    assert nothing_else.epsilon(1.01e-5) < 1e-4
    assert math.isinf(nothing_else.epsilon(0.99e-5))


# Measured numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "z", "epsilon"),
    [(0.20609, 4.0, 8), (0.02065, 4.0, 0.6), (0.05, 4 / 1.7007, 3), (0.05, 4 / 0.3574, 0.5), (0.01, 0.5, 13.36)],
)
def test_numbers_of_the_paper(q, z, epsilon):
    assert profile_of(q, z, 1000).epsilon(1e-5) == pytest.approx(epsilon, rel=5e-4)


def test_the_papers_3_29_would_cost_7_72():
    assert profile_of(0.05, 4 / 3.29, 1000).epsilon(1e-5) == pytest.approx(7.72, abs=0.01)


@pytest.mark.parametrize(
    ("z", "steps", "epsilon", "rate", "gain"),
    [(2.897, 2000, 0.1, 0.001774, 0.138), (2.897, 2000, 1.0, 0.015292, 0.087), (4.0245, 1000, 0.1, 0.003633, 0.108)],
)
def test_the_same_budget_admits_a_larger_rate_than_under_renyi(z, steps, epsilon, rate, gain):
    """MNIST with budgets 0.1 and 1: 14% and 8.7% at batch 512 and 2,000 steps, 10.8% at batch 1,024 and 1,000."""
    renyi = epsilon_from_renyi(steps * renyi_divergences(rate, z), RENYI_ORDERS, 1e-5)[0][0]
    assert renyi == pytest.approx(epsilon, rel=1e-3)
    assert profile_of(rate * (1 + gain), z, steps).epsilon(1e-5) == pytest.approx(epsilon, rel=2e-3)


# Rare sampling ------------------------------------------------------------------------------------------------------


def some_step_is_extreme(q: float, z: float, steps: int, epsilon: float) -> float:
    """A lower bound on delta at ``epsilon``: the best event of the form "some step shows more than t"."""
    best = 0.0
    for t in np.linspace(0.0, 12.0, 2000):
        absent, moved = float(ndtr(-t)), float(ndtr(1 / z - t))
        present = absent + q * (moved - absent)
        with_example, without = (-np.expm1(steps * np.log1p(-min(each, 0.5))) for each in (present, absent))
        best = max(best, with_example - np.exp(epsilon) * without)
    return best


@pytest.mark.parametrize(("q", "z", "steps"), [(1e-12, 0.1, 685), (1e-9, 0.25, 685), (1e-8, 0.3, 5000)])
def test_deltas_of_what_is_hardly_ever_sampled_lie_just_above_a_lower_bound(q, z, steps):
    """The error of the FFT alone used to be above them: 2.7e-9 at 685 steps, where delta is 6.8e-10."""
    profile = compose([SampledGaussian(q, z, steps)])
    for epsilon in (0.5, 2.0, 5.0):
        least = some_step_is_extreme(q, z, steps, epsilon)
        assert least <= profile.delta(epsilon) <= 1.005 * least + 1e-13


@pytest.mark.parametrize("steps", [2, 50, 2000])
def test_composing_apart_from_the_largest_atom_agrees_with_composing_all(steps, monkeypatch):
    """Wherever both ways are possible they bound the same law; the one without the atom is the tighter."""
    apart = compose([SampledGaussian(1e-6, 0.5, steps), SampledGaussian(1e-7, 0.4, 3)])
    monkeypatch.setattr("inosgd.accounting.privacy_loss._RARE", -1.0)
    together = compose([SampledGaussian(1e-6, 0.5, steps), SampledGaussian(1e-7, 0.4, 3)])
    epsilons = np.linspace(0.0, 3.0, 50)
    assert (apart.delta(epsilons) <= together.delta(epsilons) * (1 + 1e-9)).all()
    np.testing.assert_allclose(apart.delta(epsilons), together.delta(epsilons), rtol=1e-6, atol=1e-6)
