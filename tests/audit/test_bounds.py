"""Bounds: never above the truth more often than stated, and close to it when there is much to see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from inosgd.accounting.privacy_loss import PrivacyProfile, SampledGaussian, compose
from inosgd.accounting.profile import gaussian_delta
from inosgd.audit.bounds import (
    Counts,
    OneRun,
    best_threshold,
    clopper_pearson,
    epsilon_lower_bound,
    epsilon_within_family,
    guess_extremes,
    mean_lower_bound,
    most_revealing_threshold,
    one_run_bound,
    one_run_epsilon,
    one_run_p_value,
    one_run_rejects,
    rates_reject,
    rejects,
)
from inosgd.errors import InvalidArgumentError


@given(trials=st.integers(1, 400), data=st.data(), confidence=st.sampled_from([0.9, 0.95, 0.999]))
def test_clopper_pearson_inverts_the_binomial(trials, data, confidence):
    successes = data.draw(st.integers(0, trials))
    low, high = clopper_pearson(successes, trials, confidence)
    assert 0 <= low <= successes / trials <= high <= 1
    if successes > 0:
        assert binom.sf(successes - 1, trials, low) == pytest.approx(1 - confidence, rel=1e-6)
    if successes < trials:
        assert binom.cdf(successes, trials, high) == pytest.approx(1 - confidence, rel=1e-6)


def test_rates_hold_together_as_often_as_stated():
    """1,000 experiments: a true coverage of 95% misses 73 times or more with probability 0.1%."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(1000):
        counts = Counts(int(rng.binomial(150, 0.4)), 150, int(rng.binomial(150, 0.1)), 150)
        low, high = counts.rates(0.95)
        missed += not (low <= 0.4 and high >= 0.1)
    assert missed < 73


def _randomized_response(rng: np.random.Generator, epsilon: float, delta: float, bits: int):
    """Coins, and a release of each that is exactly (epsilon, delta)-private: with probability delta it is shown."""
    coins = rng.random(bits) < 0.5
    truthful = rng.random(bits) < 1 / (1 + math.exp(-epsilon))
    shown = rng.random(bits) < delta
    said = np.where(truthful | shown, coins, ~coins)
    return coins, said.astype(np.float64) + 0.1 * rng.random(bits) + shown


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3)])
def test_one_run_bound_is_valid_and_nearly_tight(epsilon, delta):
    """100 trainings at 95%: a valid bound exceeds the truth 13 times or more with probability 0.15%."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(100):
        coins, said = _randomized_response(rng, epsilon, delta, 3000)
        correct = int(((said >= 1) == coins).sum())
        found.append(one_run_epsilon(3000, 3000, correct, delta, 0.95))
    assert sum(bound > epsilon for bound in found) < 13
    # with a delta the theorem allows for the worst way to spend it, which shown bits are not: it costs a little
    assert np.median(found) > epsilon - (0.15 if delta == 0 else 0.25)


def test_one_run_bound_with_calibration_is_valid():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(50):
        coins, said = _randomized_response(rng, 1.0, 0.0, 2000)
        found.append(one_run_bound(said, coins, np.arange(2000) < 500, 0.0, 0.95).epsilon)
    assert sum(bound > 1.0 for bound in found) <= 7  # more has probability 0.3% at 5%
    assert np.median(found) > 0.7


def test_one_run_p_value_catches_a_mechanism_that_is_worse_than_claimed():
    rng = np.random.default_rng(3)
    coins, said = _randomized_response(rng, 2.0, 0.0, 1000)
    correct = int(((said >= 1) == coins).sum())
    assert one_run_p_value(1000, 1000, correct, 1.0, 1e-5) < 1e-3
    assert one_run_p_value(1000, 1000, correct, 2.0, 1e-5) > 0.01


def test_one_run_holds_when_guesses_hang_together():
    """All bits of a training follow one coin: independent trials would be far too sure of themselves.

    The mechanism tells "more in than out" by randomized response and nothing else, so it is epsilon-private for each
    bit. 500 trainings at 90%: a valid bound exceeds epsilon 80 times or more with probability below 1e-4.
    """
    rng, epsilon, bits = np.random.default_rng(4), 1.0, 15
    exceeded = 0
    for _ in range(500):
        coins = rng.random(bits) < 0.5
        majority = coins.sum() > bits / 2
        told = majority if rng.random() < 1 / (1 + math.exp(-epsilon)) else not majority
        exceeded += one_run_epsilon(bits, bits, int((coins == told).sum()), 0.0, 0.9) > epsilon
    assert exceeded < 80


@given(
    guesses=st.integers(0, 200),
    extra=st.integers(0, 100),
    data=st.data(),
    epsilon=st.floats(0, 5),
    more=st.floats(0, 2),
)
def test_p_value_grows_with_epsilon_and_delta_and_shrinks_with_right_guesses(guesses, extra, data, epsilon, more):
    correct = data.draw(st.integers(0, guesses))
    bits = guesses + extra
    base = one_run_p_value(bits, guesses, correct, epsilon, 1e-5)
    assert 0 <= base <= 1
    assert one_run_p_value(bits, guesses, correct, epsilon, 1e-3) >= base
    assert one_run_p_value(bits, guesses, correct, epsilon, 0.0) <= base
    for delta in (0.0, 1e-5, 1e-3):  # `one_run_epsilon` bisects: its guarantee rests on this
        assert one_run_p_value(bits, guesses, correct, epsilon + more, delta) >= (
            one_run_p_value(bits, guesses, correct, epsilon, delta) - 1e-12
        )


def test_p_value_by_hand():
    """Two guesses, both right, at epsilon 0: a quarter; with delta, 2 delta bits times the steeper of 1/2 and 3/8."""
    assert one_run_p_value(2, 2, 2, 0.0, 0.0) == pytest.approx(0.25)
    assert one_run_p_value(5, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 2 * 0.01 * 5 * 0.5)


@pytest.mark.parametrize("numbers", [(5, 6, 1), (5, 3, 4), (5, 3, -1)])
def test_impossible_counts_are_refused(numbers):
    with pytest.raises(InvalidArgumentError, match="correct"):
        one_run_p_value(*numbers, 1.0, 0.0)
    with pytest.raises(InvalidArgumentError, match="between 0"):
        Counts(3, 2, 0, 1)


def _gaussian_counts(rng, shift: float, trials: int, threshold: float) -> Counts:
    included = rng.random(trials) < 0.5
    return Counts.at(threshold, rng.normal(size=trials) + shift * included, included)


def _epsilon_of_gaussian(multiplier: float, delta: float) -> float:
    grid = np.linspace(0, 20, 20001)
    return float(grid[np.argmax([gaussian_delta(multiplier, each) <= delta for each in grid.tolist()])])


def test_bounds_of_a_gaussian_release_are_below_the_truth_and_the_family_is_close():
    """One plain Gaussian with multiplier 1: epsilon 4.38 at 1e-5. 20 experiments, all bounds valid at 99.9%."""
    rng, delta = np.random.default_rng(5), 1e-5
    truth = _epsilon_of_gaussian(1.0, delta)

    def family(factor):
        return compose([SampledGaussian(1.0, factor, 1)])

    found = []
    for _ in range(20):
        counts = _gaussian_counts(rng, 1.0, 4000, 0.5)
        plain = epsilon_lower_bound(counts, delta, 0.999)
        of_noise = epsilon_within_family(family, lambda profile, seen=counts: rejects(profile, seen, 0.999), delta)
        assert plain <= of_noise <= truth
        assert not rejects(family(1.0), counts, 0.999)
        found.append(of_noise)
    assert np.median(found) > 0.8 * truth


def test_profile_test_rejects_half_the_noise_with_few_trials():
    """Shift 2 against a claim of 1: 400 trials have a power beyond 99.9%; one point (eps, delta) says little."""
    rng = np.random.default_rng(6)
    claimed = compose([SampledGaussian(1.0, 1.0, 1)])
    counts = _gaussian_counts(rng, 2.0, 400, 1.0)
    assert rejects(claimed, counts, 0.95)
    assert epsilon_lower_bound(counts, 1e-5, 0.95) < claimed.epsilon(1e-5)


def test_profile_test_keeps_its_false_alarm_rate():
    """400 correct audits at 95%, at the tightest threshold: 38 alarms or more have probability 1e-4 at a true 5%."""
    rng = np.random.default_rng(7)
    claimed = compose([SampledGaussian(1.0, 1.0, 1)])
    assert sum(rejects(claimed, _gaussian_counts(rng, 1.0, 100, 0.5), 0.95) for _ in range(400)) < 38


def test_nothing_is_claimed_without_trials_or_separation():
    nothing = Counts(0, 0, 0, 0)
    assert epsilon_lower_bound(nothing, 1e-5, 0.95) == 0.0
    assert not rejects(PrivacyProfile(np.zeros(1), np.zeros(1)), nothing, 0.95)
    assert not rates_reject(PrivacyProfile(np.zeros(1), np.zeros(1)), nothing, 0.95)
    assert epsilon_within_family(lambda _: PrivacyProfile(np.zeros(1), np.zeros(1)), lambda _: False, 1e-5) == 0.0
    assert one_run_epsilon(10, 0, 0, 1e-5, 0.95) == 0.0
    assert not one_run_rejects(PrivacyProfile(np.zeros(1), np.zeros(1)), 10, 0, 0, 0.95)


def test_rates_reject_whatever_the_bound_at_one_point_does_and_more():
    """Never the other way round: an epsilon above the profile's is a point above its curve."""
    rng, claimed, sharper = np.random.default_rng(10), compose([SampledGaussian(1.0, 1.0, 1)]), 0
    for _ in range(60):
        counts = _gaussian_counts(rng, 2.5, 300, rng.uniform(0.5, 2.5))
        by_rates, above = rates_reject(claimed, counts, 0.95), epsilon_lower_bound(counts, 1e-5, 0.95) > 4.38
        assert by_rates or not above
        sharper += by_rates and not above
    assert sharper > 30
    # 300 correct audits at 95%: 27 alarms or more have probability 0.3% at a true 5%
    assert sum(rates_reject(claimed, _gaussian_counts(rng, 1.0, 200, 0.5), 0.95) for _ in range(300)) < 27


def test_guesses_in_one_run_are_held_against_the_whole_profile():
    """2,000 bits, each released by a plain Gaussian; the claim is a multiplier of 4, the truth 4 or 1.

    40 correct audits at 90%: 11 alarms have probability 0.1% at a true 10%. At 1 the expected share of right guesses is
    69%, and 68% would do: the claim's point at 1e-5 allows 71% and sees nothing.
    """
    rng, claimed = np.random.default_rng(11), compose([SampledGaussian(1.0, 4.0, 1)])

    def guessed(multiplier: float) -> OneRun:
        coins = rng.random(2000) < 0.5
        guesses = rng.normal(size=2000) + coins / multiplier > 0.5 / multiplier
        correct = int((guesses == coins).sum())
        return OneRun(2000, 2000, correct, one_run_epsilon(2000, 2000, correct, 1e-5, 0.9))

    assert sum(guessed(4.0).rejects(claimed, 0.9) for _ in range(40)) < 11
    worse = [guessed(1.0) for _ in range(5)]
    assert all(each.rejects(claimed, 0.9) for each in worse)
    assert not any(each.epsilon > claimed.epsilon(1e-5) for each in worse)


def test_bits_without_a_score_are_bits_all_the_same():
    """A mechanism may make its scores NaN; what it costs delta is counted over all bits."""
    rng = np.random.default_rng(12)
    coins = rng.random(2000) < 0.5
    scores = np.where(rng.random(2000) < 0.5, np.nan, coins + 0.0)
    found = one_run_bound(scores, coins, np.arange(2000) < 500, 1e-4, 0.95)
    assert found.bits == 1500
    assert found.guesses <= int(np.isfinite(scores[500:]).sum())
    assert found.epsilon < one_run_epsilon(found.guesses, found.guesses, found.correct, 1e-4, 0.95)


def test_a_threshold_chosen_on_the_trials_that_are_counted_would_not_be_valid():
    """The control of choosing on trials apart: the best threshold for noise finds more than there is.

    200 audits of a release that says nothing, at 80%. On other trials than the chosen ones, 60 alarms have probability
    0.04%; on the same trials the audit would be wrong most of the time.
    """
    rng, nothing, same, apart = np.random.default_rng(13), PrivacyProfile(np.zeros(1), np.zeros(1)), 0, 0
    for _ in range(200):
        scores, included = rng.normal(size=(2, 120)), rng.random((2, 120)) < 0.5
        threshold = best_threshold(scores[0], included[0])
        same += rejects(nothing, Counts.at(threshold, scores[0], included[0]), 0.8)
        apart += rejects(nothing, Counts.at(threshold, scores[1], included[1]), 0.8)
    assert apart < 60
    assert same > 120


def test_most_revealing_threshold_finds_rare_certainty():
    """Members that give themselves away once in twenty times: the best threshold by right guesses would miss it."""
    rng = np.random.default_rng(14)
    included = rng.random(4000) < 0.5
    scores = rng.normal(size=4000) + 8 * (included & (rng.random(4000) < 0.05))
    threshold = most_revealing_threshold(scores, included, 0.0, 0.95)
    assert threshold > 2.5
    assert epsilon_lower_bound(Counts.at(threshold, scores, included), 0.0, 0.95) > 2.0


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40),
)
def test_best_threshold_is_as_good_as_any(pairs):
    scores = np.array([score for score, _ in pairs], dtype=float)
    included = np.array([present for _, present in pairs])
    found = Counts.at(best_threshold(scores, included), scores, included).correct
    between = [each + 0.5 for each in range(int(scores.min()), int(scores.max()))] or [float(scores[0])]
    assert found == max(Counts.at(each, scores, included).correct for each in between)


def test_best_threshold_lies_between_two_heaps():
    scores = np.array([0.0] * 30 + [10.0] * 30)
    assert best_threshold(scores, scores > 5) == 5.0
    rng = np.random.default_rng(8)
    included = rng.random(2000) < 0.5
    assert best_threshold(rng.normal(size=2000) + 2 * included, included) == pytest.approx(1.0, abs=0.3)


def test_mean_lower_bound_is_valid_and_sharp_where_there_is_little_spread():
    """300 experiments at 95%: 26 misses or more have probability 0.5% at a true 5%; values hang on their target."""
    rng = np.random.default_rng(9)
    missed = [mean_lower_bound(rng.binomial(24, 0.6, size=40) / 24, 0.95) for _ in range(300)]
    assert sum(bound > 0.6 for bound in missed) < 26
    assert np.median(missed) > 0.52
    extreme = [mean_lower_bound((rng.random(40) < 0.6).astype(float), 0.95) for _ in range(300)]
    assert sum(bound > 0.6 for bound in extreme) < 26
    assert mean_lower_bound(np.zeros(0), 0.95) < 1e-5


def test_guess_extremes_takes_both_ends():
    guessed, guess = guess_extremes(np.array([3.0, 1.0, 2.0, 0.0]), 1, 1)
    assert guessed.tolist() == [True, False, False, True]
    assert guess.tolist() == [True, False, False, False]
    with pytest.raises(InvalidArgumentError, match="high=3, low=2"):
        guess_extremes(np.zeros(4), 3, 2)
