"""Selection: what it costs to train several times on private examples and keep the best (Papernot and Steinke 2022).

A *base* mechanism Q is a whole training, with a candidate chosen at random and the score that its result is ranked by.
The selection draws a number of trials K from a fixed distribution, runs Q independently K times, and shows the best
result and nothing else: not K, not the other results, not even how many there were.

With f(x) = E[x^K] and F the distribution function of Q's results in the order of their scores, the best of K has the
distribution function f(F). Its density towards Q's is f'(F), and so, by Hölder, order by order

    D_λ(best ‖ best') <= D_λ(Q ‖ Q') + max log(f'(p)^λ f'(p')^(1 - λ)) / (λ - 1),

where p and p' are the probabilities that some event has under Q and Q'. A fixed K makes the second term grow with K:
seeing the best of k reveals as much as k releases can. Distributions whose f' changes slowly keep it small:

    negative binomial, truncated to K >= 1, with η > -1 and 0 < γ < 1 (their Theorem 2): for every λ > 1, λ' >= 1
        D_λ + (1 + η) ((1 - 1/λ') D_λ' + log(1 / γ) / λ') + log E[K] / (λ - 1);
    Poisson with mean µ, where K = 0 shows that there is nothing (their Theorem 6): for every λ > 1
        D_λ + µ δ(log(λ / (λ - 1))) + log µ / (λ - 1).

D is the base's divergence and δ(ε) its privacy profile. For a base of pure ε, λ and λ' to infinity leave (2 + η) ε.

>>> from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
>>> divergences = 200 * renyi_divergences(0.05, 4.0)
>>> chosen = selection_divergences(divergences, RENYI_ORDERS, NegativeBinomialTrials.geometric(8.0))
>>> [round(float(epsilon_from_renyi(each, RENYI_ORDERS, 1e-5)[0][0]), 2) for each in (divergences, chosen)]
[0.73, 1.54]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd._decimals import decimals
from inosgd.accounting.renyi import delta_from_renyi
from inosgd.randomness import RandomSource

_ROUNDING = 1e-12  # relative, upwards: far more than the arithmetic here can lose
_DIGITS = 100  # of the probabilities that numbers of trials are drawn by
_SMALLEST_ETA = 1e-6  # other than 0: closer to it, probabilities would lose their digits
_WORDS = 4  # of 64 bits each: a draw has 256
_NEGLIGIBLE = Decimal(10) ** -90  # beyond the mean: what follows cannot be told from nothing by 256 bits


class Trials(Protocol):
    """A distribution of the number of trials."""

    @property
    def mean(self) -> float:
        """E[K]."""

    @property
    def fewest(self) -> int:
        """The smallest K that has a probability."""

    def first(self) -> Decimal:
        """The probability of ``fewest``."""

    def ratio(self, count: int) -> Decimal:
        """The probability of ``count + 1`` over that of ``count``."""

    def divergences(self, base: FloatArray, orders: FloatArray, deltas: FloatArray) -> FloatArray:
        """Of the selection, by rows; ``deltas`` are the base's at log(λ / (λ - 1))."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """K >= 1 with P(k + 1) / P(k) = (1 - γ) (k + η) / (k + 1): geometric for η = 1, logarithmic for η = 0."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise _validate.fail("eta", self.eta, "give a finite number greater than -1")
        if 0 < abs(self.eta) < _SMALLEST_ETA:
            raise _validate.fail("eta", self.eta, f"give 0, or a number at least {_SMALLEST_ETA:g} away from it")
        _validate.open_unit(gamma=self.gamma)

    @classmethod
    def geometric(cls, mean: float) -> Self:
        """Each trial is followed by another with the same probability."""
        _check_mean(mean)
        return cls(1.0, 1 / mean)

    @classmethod
    def logarithmic(cls, mean: float) -> Self:
        """P(k) proportional to (1 - γ)^k / k: mostly few trials, sometimes many."""
        _check_mean(mean)
        exponent = brentq(lambda x: math.log(math.expm1(x) / x) - math.log(mean), 1e-9, 700.0)
        return cls(0.0, math.exp(-exponent))

    @property
    def mean(self) -> float:
        """η (1 - γ) / (γ (1 - γ^η)); for η = 0 its limit, (1 / γ - 1) / log(1 / γ)."""
        log = -math.log(self.gamma)
        share = log if self.eta == 0 else -math.expm1(-self.eta * log) / self.eta
        return (1 - self.gamma) / (self.gamma * share)

    @property
    def fewest(self) -> int:
        """One trial there always is."""
        return 1

    def first(self) -> Decimal:
        """P(1) = η (1 - γ) / (γ^-η - 1), or for η = 0 its limit, (1 - γ) / log(1 / γ)."""
        eta, gamma = Decimal(self.eta), Decimal(self.gamma)
        return (1 - gamma) / (-gamma.ln() if eta == 0 else ((-eta * gamma.ln()).exp() - 1) / eta)

    def ratio(self, count: int) -> Decimal:
        """(1 - γ) (k + η) / (k + 1)."""
        return (1 - Decimal(self.gamma)) * (count + Decimal(self.eta)) / (count + 1)

    def divergences(self, base: FloatArray, orders: FloatArray, deltas: FloatArray) -> FloatArray:
        """Theorem 2; the order λ' that gives the smallest bound is looked for among ``orders`` and 1."""
        log = -math.log(self.gamma)
        at_others = np.minimum(((1 - 1 / orders) * base + log / orders).min(axis=1, keepdims=True), log)
        found: FloatArray = base + (1 + self.eta) * at_others + math.log(max(self.mean, 1.0)) / (orders - 1)
        return found

    def to_json(self) -> dict[str, Any]:
        """Family and parameters."""
        return {"family": "truncated negative binomial", "eta": self.eta, "gamma": self.gamma, "mean": self.mean}


@dataclass(frozen=True)
class PoissonTrials:
    """K with P(k + 1) / P(k) = µ / (k + 1): close to its mean, and with probability e^-µ no trial at all."""

    mean: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)

    @property
    def fewest(self) -> int:
        """There may be no trial."""
        return 0

    def first(self) -> Decimal:
        """P(0) = e^-µ."""
        return (-Decimal(self.mean)).exp()

    def ratio(self, count: int) -> Decimal:
        """µ / (k + 1)."""
        return Decimal(self.mean) / (count + 1)

    def divergences(self, base: FloatArray, orders: FloatArray, deltas: FloatArray) -> FloatArray:
        """Theorem 6."""
        found: FloatArray = base + self.mean * deltas + math.log(self.mean) / (orders - 1)
        return found

    def to_json(self) -> dict[str, Any]:
        """Family and parameter."""
        return {"family": "poisson", "mean": self.mean}


DRAWS: dict[str, Callable[[float], Trials]] = {
    "poisson": PoissonTrials,
    "geometric": NegativeBinomialTrials.geometric,
    "logarithmic": NegativeBinomialTrials.logarithmic,
}
"""Distributions by name, each from its mean."""


def trials_named(name: str, mean: float) -> Trials:
    """The distribution called ``name`` with this mean."""
    if name not in DRAWS:
        raise _validate.fail("draw", name, f"choose one of {', '.join(DRAWS)}")
    return DRAWS[name](mean)


def selection_divergences(
    divergences: npt.ArrayLike, orders: npt.ArrayLike, trials: Trials, deltas: FloatArray | None = None
) -> FloatArray:
    """The Rényi divergences of showing the best of K independent runs, from those of one run.

    Guarantee:
        If ``divergences`` bound those of the base mechanism in both directions, the result bounds those of the
        selection, order by order, provided that K is drawn from ``trials`` independently of the examples, by a source
        that cannot be predicted, and that nothing but the best run is shown.

    Args:
        divergences: Of one run: shape (rows, orders), or one row.
        orders: The order λ of each column.
        trials: The distribution of K.
        deltas: Of one run, its δ at each log(λ / (λ - 1)), in the same shape; by default the divergences' own bound,
            which for Poisson trials is a good deal coarser than a privacy profile.
    """
    base = np.atleast_2d(np.asarray(divergences, dtype=np.float64))
    alphas = np.asarray(orders, dtype=np.float64)
    bounds = _own_deltas(base, alphas) if deltas is None else np.atleast_2d(deltas)
    with np.errstate(invalid="ignore", over="ignore"):
        found = trials.divergences(base, alphas, bounds) * (1 + _ROUNDING)
    return np.where(np.isfinite(base) & np.isfinite(found), np.maximum(found, base), np.inf)


def profile_epsilons(orders: npt.ArrayLike) -> FloatArray:
    """log(λ / (λ - 1)), rounded down: where Theorem 6 asks for the base's δ."""
    alphas = np.asarray(orders, dtype=np.float64)
    return np.log1p(1 / (alphas - 1)) * (1 - _ROUNDING)


def draw_trials(trials: Trials, source: RandomSource) -> int:
    """K, by 256 random bits and probabilities of 100 digits.

    Guarantee:
        The distance in total variation from the distribution of ``trials`` is below 2^-200, which adds less than
        2^-200 (1 + e^ε) to δ. The draw depends on ``source`` alone.
    """
    bits = 0
    for word in source.words(_WORDS).tolist():
        bits = (bits << 64) | int(word)
    with decimals(_DIGITS):
        threshold = Decimal(bits) / Decimal(1 << (64 * _WORDS))
        count, probability = trials.fewest, trials.first()
        below = probability
        while below <= threshold and (count <= trials.mean or probability > _NEGLIGIBLE):
            probability *= trials.ratio(count)
            below += probability
            count += 1
    return count


def _own_deltas(base: FloatArray, orders: FloatArray) -> FloatArray:
    targets = profile_epsilons(orders)
    finite = np.where(np.isfinite(base), base, 1e100)  # certifies nothing, and does not overflow
    columns = [delta_from_renyi(finite, orders, np.full(len(base), target))[0] for target in targets.tolist()]
    return np.minimum(np.stack(columns, axis=1), 1.0)


def _check_mean(mean: float) -> None:
    if not (mean > 1 and math.isfinite(mean)):
        raise _validate.fail("mean", mean, "give a finite mean number of trials greater than 1")
