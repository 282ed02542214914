"""Selection: the bounds against exact calculations on small mechanisms, and against what would be wrong."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import geom, logser, nbinom, poisson

from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.accounting.selection import (
    DRAWS,
    NegativeBinomialTrials,
    PoissonTrials,
    draw_trials,
    profile_epsilons,
    selection_divergences,
    trials_named,
)
from inosgd.errors import InvalidArgumentError
from inosgd.randomness import SecureSource, SeededSource

ORDERS = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0, 64.0, 300.0])


# An oracle: mechanisms with a few outcomes, the best last ----------------------------------------------------------


def generating(trials, x):
    """E[x^K], written down from the family and not from the recurrence that the code has."""
    x = np.asarray(x, dtype=np.float64)
    if isinstance(trials, PoissonTrials):
        return np.exp(trials.mean * (x - 1))
    inner = 1 - (1 - trials.gamma) * x
    if trials.eta == 0:
        return np.log(inner) / np.log(trials.gamma)
    return (inner**-trials.eta - 1) / (trials.gamma**-trials.eta - 1)


def best_of(f, outcomes):
    """The distribution of the best of K draws from ``outcomes``; K = 0 is an outcome of its own."""
    cumulative = np.concatenate([[0.0], np.cumsum(outcomes)])
    cumulative[-1] = 1.0
    nothing = f(np.array(0.0))
    return np.concatenate([[nothing], np.diff(f(cumulative))])


def divergence(first, second, order):
    """Exact, of distributions on a few points; both directions, the larger."""

    def one_way(p, q):
        kept = p > 0
        with np.errstate(divide="ignore"):
            logs = order * np.log(p[kept]) + (1 - order) * np.log(q[kept])
        largest = logs.max()
        return (largest + np.log(np.exp(logs - largest).sum())) / (order - 1)

    return max(one_way(first, second), one_way(second, first), 0.0)


def profile(first, second, epsilon):
    """Exact δ(ε), both directions."""
    growth = math.exp(epsilon)
    return max(
        np.maximum(first - growth * second, 0).sum(),
        np.maximum(second - growth * first, 0).sum(),
    )


def exact(first, second):
    return np.array([divergence(first, second, order) for order in ORDERS])


def exact_deltas(first, second):
    return np.array([profile(first, second, epsilon) for epsilon in profile_epsilons(ORDERS)])


weights = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=6)
some_trials = st.one_of(
    st.builds(PoissonTrials, st.floats(1.01, 200)),
    st.builds(NegativeBinomialTrials, st.floats(-0.9, -0.01) | st.floats(0.01, 5), st.floats(1e-3, 0.95)),
    st.builds(NegativeBinomialTrials.logarithmic, st.floats(1.01, 200)),
)


@given(weights, st.data(), some_trials)
def test_no_small_mechanism_exceeds_the_bound(weights, data, trials):
    first = np.array(weights) / sum(weights)
    tilts = data.draw(st.lists(st.floats(-2, 2), min_size=len(first), max_size=len(first)))
    scale = data.draw(st.sampled_from([0.01, 0.3, 1.0]))
    second = first * np.exp(scale * np.array(tilts))
    second /= second.sum()

    def f(x):
        return generating(trials, x)

    best = best_of(f, first), best_of(f, second)
    kept = (best[0] > 1e-9) & (best[1] > 1e-9)  # differences of f below that are rounding
    if not kept.all():
        best = tuple(np.append(each[kept], max(1 - each[kept].sum(), 0.0)) for each in best)
        if min(each[-1] for each in best) < 1e-6:
            best = tuple(each[:-1] / each[:-1].sum() for each in best)
    found = exact(*best)
    deltas = exact_deltas(first, second)[None]
    bound = selection_divergences(exact(first, second), ORDERS, trials, deltas)[0]
    assert (found <= bound * (1 + 1e-6) + 1e-6).all()
    coarser = selection_divergences(exact(first, second), ORDERS, trials)[0]
    assert (coarser >= bound * (1 - 1e-9)).all()


def two_outcomes(epsilon):
    """Randomized response: a base of pure epsilon, whose better outcome is likely or unlikely."""
    likely = 1 / (1 + math.exp(-epsilon))
    return np.array([1 - likely, likely]), np.array([likely, 1 - likely])


@pytest.mark.parametrize("count", [2, 5, 20])
def test_a_fixed_number_of_trials_is_refuted(count):
    """The control: no bound like these holds for best-of-k, which costs k times the base."""
    first, second = two_outcomes(0.3)
    best = best_of(lambda x: x**count, first)[1:], best_of(lambda x: x**count, second)[1:]
    found, base = exact(*best), exact(first, second)
    assert found[-1] == pytest.approx(0.3 * count, rel=0.05)
    assert (found[-3:] > base[-3:] * 1.5).all()  # charging one trial is refuted
    if count >= 5:  # and so is the bound for a random number of as many trials
        random = selection_divergences(base, ORDERS, NegativeBinomialTrials.geometric(count))[0]
        assert found[-1] > random[-1]


@pytest.mark.parametrize("name", list(DRAWS))
def test_charging_one_trial_only_is_refuted(name):
    """An outcome that is rare in one trial and likely the best of twenty shows many times as much."""
    trials = trials_named(name, 20.0)
    first, second = (np.array([1 - rare, rare]) for rare in (0.05, 0.05 * math.exp(0.3)))
    best = [best_of(lambda x: generating(trials, x), each) for each in (first, second)]
    found, base = exact(*best), exact(first, second)
    assert found[2] > base[2] * 2
    bound = selection_divergences(base, ORDERS, trials, exact_deltas(first, second)[None])[0]
    assert (found <= bound).all()


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_pure_privacy_costs_two_plus_eta(eta):
    """The corollary, at orders so large that nothing else counts; and it is not far from what happens."""
    orders = np.array([1e6, 1e9, 1e12])
    trials = NegativeBinomialTrials(eta, 1e-4)
    bound = selection_divergences(np.full((1, 3), 0.4), orders, trials)[0]
    assert bound[-1] == pytest.approx((2 + eta) * 0.4, rel=1e-6)
    first, second = two_outcomes(0.4)
    best = [best_of(lambda x: generating(trials, x), each)[1:] for each in (first, second)]
    happens = np.abs(np.log(best[0]) - np.log(best[1])).max()
    assert 0.8 * (1 + eta) * 0.4 < happens <= (2 + eta) * 0.4


@given(some_trials, st.floats(0.001, 0.5), st.floats(0.5, 20), st.floats(1.1, 3))
def test_more_exposure_or_more_trials_never_cost_less(trials, rate, multiplier, factor):
    orders = RENYI_ORDERS[::6]
    base = 100 * renyi_divergences(rate, multiplier, orders)
    less = selection_divergences(base, orders, trials)
    assert (less >= base).all()
    assert (selection_divergences(base * factor, orders, trials) >= less).all()
    if isinstance(trials, PoissonTrials):
        more = PoissonTrials(trials.mean * factor)
    else:
        more = NegativeBinomialTrials(trials.eta, trials.gamma / factor)
    assert more.mean >= trials.mean
    assert (selection_divergences(base, orders, more) >= less * (1 - 1e-12)).all()


def test_about_one_trial_costs_about_one_trial():
    base = 200 * renyi_divergences(0.05, 4.0)
    one = epsilon_from_renyi(base, RENYI_ORDERS, 1e-5)[0][0]
    trials = NegativeBinomialTrials(1.0, 1 - 1e-9)
    assert trials.mean == pytest.approx(1.0)
    found = epsilon_from_renyi(selection_divergences(base, RENYI_ORDERS, trials), RENYI_ORDERS, 1e-5)[0][0]
    assert one <= found <= one * 1.001


def test_what_is_not_bounded_is_not_bounded_afterwards():
    base = np.array([[0.1, np.inf, 0.3]])
    for trials in (PoissonTrials(4.0), NegativeBinomialTrials.geometric(4.0)):
        found = selection_divergences(base, [2.0, 3.0, 4.0], trials)
        assert np.isinf(found[0]).tolist() == [False, True, False]


# The number of trials ----------------------------------------------------------------------------------------------


def scipys(trials):
    if isinstance(trials, PoissonTrials):
        return poisson(trials.mean)
    return geom(trials.gamma) if trials.eta == 1 else logser(1 - trials.gamma)


@pytest.mark.parametrize("name", list(DRAWS))
def test_probabilities_and_mean_are_those_of_the_family(name):
    trials = trials_named(name, 7.0)
    assert trials.mean == pytest.approx(7.0)
    counts = np.arange(trials.fewest, 40)
    found = [trials.first()]
    for count in counts[:-1].tolist():
        found.append(found[-1] * trials.ratio(count))
    np.testing.assert_allclose(np.array(found, dtype=float), scipys(trials).pmf(counts), rtol=1e-9)
    np.testing.assert_allclose(float(sum(found)), scipys(trials).cdf(counts[-1]), rtol=1e-9)


@pytest.mark.parametrize("eta", [1e-6, -1e-6])
def test_families_meet_at_eta_zero(eta):
    near, at = NegativeBinomialTrials(eta, 0.2), NegativeBinomialTrials(0.0, 0.2)
    assert float(near.first()) == pytest.approx(float(at.first()), rel=1e-5)
    assert near.mean == pytest.approx(at.mean, rel=1e-5)


def test_a_general_negative_binomial_is_truncated():
    trials = NegativeBinomialTrials(2.5, 0.2)
    whole = nbinom(2.5, 0.2)
    assert float(trials.first()) == pytest.approx(whole.pmf(1) / (1 - whole.pmf(0)))
    assert trials.mean == pytest.approx(whole.mean() / (1 - whole.pmf(0)))


class Fixed:
    """A source of the words that are asked for."""

    def __init__(self, *words):
        self._words = words

    def words(self, count):
        return np.array(self._words[:count], dtype=np.uint64)


@pytest.mark.parametrize("name", list(DRAWS))
def test_draws_follow_their_distribution(name):
    """Chi-squared over 4,000 draws; the control, a mean that is 15% off, is caught."""
    source, trials = SeededSource(3), trials_named(name, 5.0)
    drawn = np.array([draw_trials(trials, source) for _ in range(4000)])
    edges = np.arange(trials.fewest, 16)

    def chi_squared(expected):
        probabilities = np.append(expected.pmf(edges), expected.sf(edges[-1]))
        counts = np.append([(drawn == edge).sum() for edge in edges], (drawn > edges[-1]).sum())
        return ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities)).sum()

    assert chi_squared(scipys(trials)) < 45
    assert chi_squared(scipys(trials_named(name, 5.75))) > 45


def test_draws_at_the_ends_of_the_interval():
    zero, ones = Fixed(0, 0, 0, 0), Fixed(*[2**64 - 1] * 4)
    for name in DRAWS:
        trials = trials_named(name, 3.0)
        assert draw_trials(trials, zero) == trials.fewest
        assert 20 < draw_trials(trials, ones) < 2000
    assert 9_000 < draw_trials(PoissonTrials(10_000.0), Fixed(2**63, 0, 0, 0)) < 11_000
    assert draw_trials(PoissonTrials(3.0), SecureSource()) >= 0


def test_a_draw_uses_all_its_bits():
    trials = NegativeBinomialTrials.geometric(2.0)
    assert draw_trials(trials, Fixed(2**63 - 1, *[2**64 - 1] * 3)) == 1
    assert draw_trials(trials, Fixed(2**63, 0, 0, 0)) == 2
    assert isinstance(trials.first(), Decimal)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NegativeBinomialTrials(-1.0, 0.5), "eta=-1.0"),
        (lambda: NegativeBinomialTrials(math.nan, 0.5), "eta=nan"),
        (lambda: NegativeBinomialTrials(1e-9, 0.5), "eta=1e-09: give 0"),
        (lambda: NegativeBinomialTrials(1.0, 1.0), "gamma=1.0"),
        (lambda: NegativeBinomialTrials(1.0, math.nan), "gamma=nan"),
        (lambda: PoissonTrials(1.0), "mean=1.0"),
        (lambda: PoissonTrials(math.nan), "mean=nan"),
        (lambda: trials_named("five", 5.0), "draw='five': choose one of poisson, geometric, logarithmic"),
        (lambda: trials_named("geometric", 0.5), "mean=0.5"),
    ],
)
def test_bad_distributions_are_refused(make, words):
    with pytest.raises(InvalidArgumentError, match=words):
        make()
