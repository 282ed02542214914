"""Bounds: from counts of right and wrong guesses to a lower bound on the privacy loss, with its confidence.

Two ways, and what each assumes:

`Counts` with Clopper and Pearson's intervals
    Independent trials, each a training of its own with one example in or out by a fair coin. If the mechanism is
    (ε, δ)-private for that example, a test with false positive rate f and true positive rate t has

        t <= e^ε f + δ    and    1 - f <= e^ε (1 - t) + δ.

    With probability at least 1 - α both t >= t_low and f <= f_high, the one-sided exact bounds at 1 - α / 2 each; then

        ε >= max(log((t_low - δ) / f_high), log((1 - f_high - δ) / (1 - t_low))).

`one_run_epsilon` (Steinke, Nasr and Jagielski 2023)
    One training into which each of ``bits`` examples was put by its own fair coin. Guesses within a training depend
    on each other, so that intervals for independent trials do not apply; the theorem of `one_run_p_value` does.

A claim is a whole profile, δ for every ε. Every point of it bounds the same probability, and the smallest of several
bounds is a bound: `rates_reject` and `one_run_rejects` use the best point and need no correction for having looked at
all of them. `rejects` uses the point ε = 0, where right guesses are all that counts.

Thresholds and numbers of guesses that are chosen on trials are never used on the same trials: `best_threshold` and
`one_run_bound` take trials, or bits, of their own to choose on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, binom

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray
from inosgd.accounting.privacy_loss import PrivacyProfile
from inosgd.accounting.profile import best_true_positive_rate
from inosgd.errors import InvalidArgumentError

LARGEST_EPSILON = 100.0
"""Bounds are not searched beyond this: no audit has so many trials."""


@dataclass(frozen=True)
class Counts:
    """What a test with a threshold fixed beforehand said in independent trials."""

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def __post_init__(self) -> None:
        for right, all_of_them in ((self.true_positives, self.positives), (self.false_positives, self.negatives)):
            if not 0 <= right <= all_of_them:
                raise InvalidArgumentError(f"{self}: successes must lie between 0 and the trials")

    @classmethod
    def at(cls, threshold: float, scores: FloatArray, included: BoolArray) -> Counts:
        """Guess "in" where a score is at least ``threshold``."""
        guessed = scores >= threshold
        return cls(
            int((guessed & included).sum()),
            int(included.sum()),
            int((guessed & ~included).sum()),
            int((~included).sum()),
        )

    @property
    def correct(self) -> int:
        """How many guesses were right."""
        return self.true_positives + self.negatives - self.false_positives

    def rates(self, confidence: float) -> tuple[float, float]:
        """A lower bound on the true and an upper bound on the false positive rate; both hold with ``confidence``."""
        each = 1 - (1 - confidence) / 2
        low, _ = clopper_pearson(self.true_positives, self.positives, each)
        _, high = clopper_pearson(self.false_positives, self.negatives, each)
        return low, high


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two one-sided bounds on a probability, each with at least ``confidence`` (Clopper and Pearson 1934).

    The lower one is the probability at which so many successes or more have probability 1 - confidence.

    >>> [round(end, 4) for end in clopper_pearson(0, 100, 0.95)]
    [0.0, 0.0295]
    """
    _validate.open_unit(confidence=confidence)
    low = float(beta.ppf(1 - confidence, successes, trials - successes + 1)) if successes > 0 else 0.0
    high = float(beta.ppf(confidence, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def epsilon_lower_bound(counts: Counts, delta: float, confidence: float) -> float:
    """A lower bound on the mechanism's epsilon at ``delta``.

    Guarantee:
        If trials are independent and the threshold was fixed before them, a mechanism that is (ε, δ)-private gets a
        bound above ε with probability at most 1 - confidence.
    """
    _validate.closed_unit(delta=delta)
    low, high = counts.rates(confidence)
    return max(_log_ratio(low - delta, high), _log_ratio(1 - high - delta, 1 - low), 0.0)


def advantage_lower_bound(counts: Counts, confidence: float) -> float:
    """A lower bound on t - f, the advantage of the test; at least 0.

    With a fair coin a guess is right with probability (1 + t - f) / 2, so that right guesses are one binomial number
    over all trials: a sharper bound than one on each rate.

    Guarantee:
        If coins are fair and independent, trials independent and the threshold fixed before them, above the truth with
        probability at most 1 - confidence.
    """
    low, _ = clopper_pearson(counts.correct, counts.positives + counts.negatives, confidence)
    return max(2 * low - 1, 0.0)


def rejects(profile: PrivacyProfile, counts: Counts, confidence: float) -> bool:
    """Whether no mechanism with this ``profile`` can have done that: its advantage is at most delta at epsilon 0.

    Guarantee:
        For a mechanism that has the profile, true with probability at most 1 - confidence. A profile is a claim about
        every ε at once, so that it is refuted by far fewer trials than its one point (ε, δ).
    """
    return advantage_lower_bound(counts, confidence) > profile.delta(0.0)


def rates_reject(profile: PrivacyProfile, counts: Counts, confidence: float) -> bool:
    """Whether no mechanism with this ``profile`` can have these rates: they lie above its best ROC curve.

    Guarantee:
        For a mechanism that has the profile, true with probability at most 1 - confidence: it takes that one of the two
        bounds of `Counts.rates` fails. Whenever `epsilon_lower_bound` exceeds the profile's epsilon, this is true.
    """
    low, high = counts.rates(confidence)
    return low > best_true_positive_rate(profile, high)


def epsilon_within_family(
    family: Callable[[float], PrivacyProfile], refuted: Callable[[PrivacyProfile], bool], delta: float
) -> float:
    """A lower bound on epsilon at ``delta`` for a mechanism of which only the amount of noise is unknown.

    ``family(s)`` is the profile of the claimed mechanism with s times its noise, and ``refuted`` says whether trials
    contradict a profile (`rejects` or `one_run_rejects`). Profiles fall as s grows, so whatever refutes one s refutes
    all larger ones: the truth lies below the smallest refuted s, and its epsilon above that one's. Tighter than
    `epsilon_lower_bound`, which must find the worst (ε, δ) by rare events, and as good as the assumption.

    Guarantee:
        If the assumption holds, above the truth with no more probability than ``refuted`` refutes a true profile with.
    """
    low, high = -6.0, 6.0  # noise from a 64th of the claim to 64 times it, as powers of two
    if not refuted(family(2.0**high)):
        return 0.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(family(2.0**middle)) else (middle, high)
    return family(2.0**high).epsilon(delta)


def best_threshold(scores: FloatArray, included: BoolArray) -> float:
    """The threshold with the most right guesses, to be used on other trials than these.

    Of several that do equally well the middle one is taken: between two heaps it lies between them.
    """
    values, places = np.unique(scores, return_inverse=True)
    if len(values) == 1:
        return float(values[0])
    present = np.bincount(places, weights=included, minlength=len(values))
    absent = np.bincount(places, weights=~included, minlength=len(values))
    right = np.cumsum(absent)[:-1] + present.sum() - np.cumsum(present)[:-1]
    best = np.flatnonzero(right == right.max())
    chosen = best[(len(best) - 1) // 2]
    return float((values[chosen] + values[chosen + 1]) / 2)


def most_revealing_threshold(
    scores: FloatArray, included: BoolArray, delta: float, confidence: float, candidates: int = 60
) -> float:
    """The threshold with the largest `epsilon_lower_bound`, to be used on other trials than these."""
    ends = np.geomspace(1e-3, 0.5, candidates // 2)
    thresholds = np.unique(np.quantile(scores, np.concatenate([ends, 1 - ends]))).tolist()
    return float(
        max(thresholds, key=lambda each: epsilon_lower_bound(Counts.at(each, scores, included), delta, confidence))
    )


def mean_lower_bound(values: FloatArray, confidence: float) -> float:
    """A lower bound on the mean of independent numbers from [0, 1], whatever their laws.

    By betting (Waudby-Smith and Ramdas 2024): if every mean is at most m, the capital of a gambler who stakes the share
    λ <= 1 / m against it, the product of 1 + λ (x - m), has expectation at most 1, and so has the average over several
    λ. By Markov's inequality it exceeds 1 / α with probability at most α; the bound is the largest m at which it does.

    Guarantee:
        Above the largest of the means with probability at most 1 - confidence. Little spread gives a sharp bound.
    """
    _validate.open_unit(confidence=confidence)
    _validate.closed_unit(values=values)
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _log_capital(values, middle) >= -math.log(1 - confidence) else (low, middle)
    return low


def _log_capital(values: FloatArray, mean: float) -> float:
    stakes = np.linspace(0.05, 0.95, 19)[:, None] / mean
    fortunes = np.log1p(stakes * (values - mean)).sum(axis=1)
    return float(np.logaddexp.reduce(fortunes) - math.log(len(stakes)))


def one_run_p_value(bits: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely ``correct`` right guesses or more are, at most, if the mechanism is (epsilon, delta)-private.

    Theorem (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", main theorem): ``bits``
    fair coins S are given to a mechanism that is (ε, δ)-private for each of them. From its output alone, some bits are
    guessed and ``guesses`` are not abstained from. With B binomial (guesses, e^ε / (1 + e^ε)),

        P[right guesses >= v] <= P[B >= v] + 2 δ bits max over i >= 1 of P[v - i <= B < v] / i.

    With δ = 0 it is the exact binomial test on the share of right guesses, Clopper and Pearson's.
    """
    if not 0 <= correct <= guesses <= bits:
        raise InvalidArgumentError(
            f"correct={correct}, guesses={guesses}, bits={bits}: give 0 <= correct <= guesses <= bits"
        )
    _validate.non_negative(epsilon=epsilon)
    _validate.closed_unit(delta=delta)
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    steepest = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * delta * bits * steepest)


def one_run_epsilon(bits: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """A lower bound on epsilon at ``delta`` from one training.

    Guarantee:
        If the coins were fair and independent and the guesses a function of what the mechanism released, a mechanism
        that is (ε, δ)-private gets a bound above ε with probability at most 1 - confidence.
    """
    _validate.open_unit(confidence=confidence)
    level = 1 - confidence
    if not one_run_p_value(bits, guesses, correct, 0.0, delta) < level:
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if one_run_p_value(bits, guesses, correct, middle, delta) < level else (low, middle)
    return low


_POINTS = 24


def one_run_rejects(profile: PrivacyProfile, bits: int, guesses: int, correct: int, confidence: float) -> bool:
    """Whether no mechanism with this ``profile`` can have been guessed so well, by the best of some of its points.

    Guarantee:
        Under the conditions of `one_run_p_value`, for a mechanism that has the profile, true with probability at most
        1 - confidence. For each v the smallest of the bounds on P[right guesses >= v] is a bound; let v be the smallest
        number at which it is below 1 - confidence: nothing is rejected below v, and v is reached that rarely.
    """
    _validate.open_unit(confidence=confidence)
    if not guesses:
        return False
    furthest = min(profile.epsilon(0.01 * (1 - confidence) / bits), LARGEST_EPSILON)
    return any(
        one_run_p_value(bits, guesses, correct, epsilon, profile.delta(epsilon)) < 1 - confidence
        for epsilon in np.linspace(0.0, furthest, _POINTS).tolist()
    )


def guess_extremes(scores: FloatArray, high: int, low: int) -> tuple[BoolArray, BoolArray]:
    """Guess "in" for the ``high`` highest and "out" for the ``low`` lowest scores; who was guessed, and what.

    Looks at scores only. Ties are taken as they come.
    """
    _validate.whole(0, high=high, low=low)
    if not high + low <= len(scores):
        raise InvalidArgumentError(f"high={high}, low={low}: there are {len(scores)} scores; guess each once at most")
    order = np.argsort(scores, kind="stable")
    guessed, guess = np.zeros(len(scores), dtype=np.bool_), np.zeros(len(scores), dtype=np.bool_)
    guess[order[len(scores) - high :]] = True
    guessed[order[:low]] = True
    guessed |= guess
    return guessed, guess


SHARES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Which shares of the bits may be guessed at either end. Rarely sampled examples show only at the high one."""


@dataclass(frozen=True)
class OneRun:
    """The outcome of an audit by guesses: how many bits, guesses and right ones, and the bound."""

    bits: int
    guesses: int
    correct: int
    epsilon: float

    def rejects(self, profile: PrivacyProfile, confidence: float) -> bool:
        """See `one_run_rejects`."""
        return one_run_rejects(profile, self.bits, self.guesses, self.correct, confidence)


def one_run_bound(
    scores: FloatArray, included: BoolArray, calibrating: BoolArray, delta: float, confidence: float
) -> OneRun:
    """Guess the extremes of ``scores`` and bound epsilon.

    How many are guessed is chosen on the ``calibrating`` bits, which are then given away: given their coins, the rest
    is a mechanism on the other bits, private for each of them as before, so that the theorem holds for those. A bit
    whose score is NaN is never guessed, and counts as a bit all the same.
    """
    there = ~np.isnan(scores)
    known, tested = calibrating & there, ~calibrating & there
    bits, level = int((~calibrating).sum()), 1 - confidence
    shares = max(
        itertools.product(SHARES, SHARES),
        key=lambda pair: _promise(
            scores[known], included[known], pair, int(tested.sum()), confidence, 2 * delta * bits / level
        ),
    )
    guessed, guess = guess_extremes(scores[tested], *_numbers(shares, int(tested.sum())))
    correct = int((guess == included[tested])[guessed].sum())
    guesses = int(guessed.sum())
    return OneRun(bits, guesses, correct, one_run_epsilon(bits, guesses, correct, delta, confidence))


def _promise(
    scores: FloatArray,
    included: BoolArray,
    shares: tuple[float, float],
    among: int,
    confidence: float,
    lost: float,
) -> float:
    """The bound that guessing these shares would give if it went on as it did on these scores.

    ``lost``: so many right guesses more than expected are needed before delta's part of the p-value is small enough.
    """
    guessed, guess = guess_extremes(scores, *_numbers(shares, len(scores)))
    guesses = sum(_numbers(shares, among))
    if not guessed.any() or not guesses:
        return -1.0
    right = int((guess == included)[guessed].sum())
    accuracy = (right + 0.5) / (int(guessed.sum()) + 1)  # a share that was right by luck alone is not believed
    low, _ = clopper_pearson(max(int(accuracy * guesses - lost), 0), guesses, confidence)
    return _log_ratio(low, 1 - low)


def _numbers(shares: tuple[float, float], bits: int) -> tuple[int, int]:
    return int(shares[0] * bits), int(shares[1] * bits)


def _log_ratio(numerator: float, denominator: float) -> float:
    """Their logarithmic ratio; minus infinity where the numerator is not positive."""
    if not numerator > 0:
        return -math.inf
    return math.inf if denominator <= 0 else math.log(numerator / denominator)
