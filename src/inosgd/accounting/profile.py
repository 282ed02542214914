"""Risk: what one point (epsilon, delta) leaves open.

Two owners with the same budget can be exposed differently, because a budget fixes one point of the privacy profile
and not the rest. A small noise multiplier with a small rate means: rarely sampled, and badly exposed when it happens,
a heavy tail. These numbers show it, next to those of the plain Gaussian mechanism with the same budget.

>>> from inosgd.accounting.privacy_loss import SampledGaussian, compose
>>> rare = risk_profile(compose([SampledGaussian(0.00158, 0.8, 1000)]), delta=1e-5)
>>> plain = gaussian_profile(epsilon=0.5, delta=1e-5)
>>> round(rare.epsilon_at_thousandth, 2), round(plain.epsilon_at_thousandth, 2)
(1.4, 0.71)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from inosgd import _validate
from inosgd.accounting.privacy_loss import PrivacyProfile


@dataclass(frozen=True)
class RiskProfile:
    """Upper bounds on what an adversary who knows everything else can learn about the presence of one example.

    Attributes:
        delta: The delta of the budget.
        advantage: delta at epsilon 0: the largest true minus false positive rate of any membership test.
        epsilon_at_tenth: epsilon at delta / 10.
        epsilon_at_hundredth: epsilon at delta / 100.
        epsilon_at_thousandth: epsilon at delta / 1000.
        true_positive_rate_at_1_percent: The best true positive rate of a test with false positive rate 1%.
        true_positive_rate_at_1_permille: The same with false positive rate 0.1%.
    """

    delta: float
    advantage: float
    epsilon_at_tenth: float
    epsilon_at_hundredth: float
    epsilon_at_thousandth: float
    true_positive_rate_at_1_percent: float
    true_positive_rate_at_1_permille: float


def risk_profile(profile: PrivacyProfile, delta: float) -> RiskProfile:
    """The risks that ``profile`` allows, around ``delta``.

    Guarantee:
        Every number is an upper bound, because the profile is.
    """
    _validate.open_unit(delta=delta)
    return _risks(delta, profile.delta(0.0), profile.epsilon, lambda rate: best_true_positive_rate(profile, rate))


def gaussian_profile(epsilon: float, delta: float) -> RiskProfile:
    """The risks of one plain Gaussian release with exactly the budget (epsilon, delta)."""
    multiplier = gaussian_multiplier(epsilon, delta)
    return _risks(
        delta,
        gaussian_delta(multiplier, 0.0),
        lambda target: _gaussian_epsilon(multiplier, target),
        lambda rate: float(ndtr(ndtri(rate) + 1 / multiplier)),
    )


def best_true_positive_rate(profile: PrivacyProfile, false_positive_rate: float) -> float:
    """The largest true positive rate that ``profile`` allows to a test with this false positive rate.

    For a test that accepts with probability f without the example and t with it, privacy in both directions says

        t <= e^ε f + δ(ε)    and    1 - f <= e^ε (1 - t) + δ(ε)    for every ε >= 0.

    Both bounds on t are monotone or linear in e^ε between knots of the profile, so their minimum is at a knot.

    Guarantee:
        No test does better, whatever the adversary knows about all other examples.
    """
    _validate.closed_unit(false_positive_rate=false_positive_rate)
    growth = np.exp(np.minimum(profile.epsilons, 700.0))
    direct = growth * false_positive_rate + profile.deltas
    mirrored = 1 - (1 - false_positive_rate - profile.deltas) / growth
    return min(1.0, float(direct.min()), float(mirrored.min()))


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The exact δ(ε) of one plain Gaussian release (Balle and Wang 2018).

    It is Φ(1 / (2z) - ε z) - e^ε Φ(-1 / (2z) - ε z).
    """
    _validate.finite_positive(noise_multiplier=noise_multiplier)
    _validate.non_negative(epsilon=epsilon)
    half = 1 / (2 * noise_multiplier)
    first = float(log_ndtr(half - epsilon * noise_multiplier))
    second = epsilon + float(log_ndtr(-half - epsilon * noise_multiplier))
    return -math.exp(first) * math.expm1(min(second - first, 0.0))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which one plain Gaussian release is (epsilon, delta)-private.

    Guarantee:
        Rounded up: ``gaussian_delta(gaussian_multiplier(ε, δ), ε) <= δ``.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    low = high = 1.0
    while gaussian_delta(low, epsilon) <= delta:
        low /= 2
    while gaussian_delta(high, epsilon) > delta:
        high *= 2
    multiplier = _root(lambda z: gaussian_delta(z, epsilon) - delta, low, high)
    while gaussian_delta(multiplier, epsilon) > delta:
        multiplier *= 1 + 1e-14
    return multiplier


def _gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The epsilon at ``delta``; Φ(1 / (2z) - ε z) <= δ bounds it from above."""
    if gaussian_delta(multiplier, 0.0) <= delta:
        return 0.0
    high = (1 / (2 * multiplier) - float(ndtri(delta))) / multiplier
    return _root(lambda epsilon: gaussian_delta(multiplier, epsilon) - delta, 0.0, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14))


def _risks(
    delta: float,
    advantage: float,
    epsilon: Callable[[float], float],
    true_positive_rate: Callable[[float], float],
) -> RiskProfile:
    return RiskProfile(
        delta=delta,
        advantage=advantage,
        epsilon_at_tenth=epsilon(delta / 10),
        epsilon_at_hundredth=epsilon(delta / 100),
        epsilon_at_thousandth=epsilon(delta / 1000),
        true_positive_rate_at_1_percent=true_positive_rate(0.01),
        true_positive_rate_at_1_permille=true_positive_rate(0.001),
    )
