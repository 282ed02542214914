"""The objective of INO-SGD (Thm. 3.5): which weighted mean of ordered losses it minimises.

Let K examples be included independently with rate q, ranked by falling loss, l_(1) >= ... >= l_(K), each with clipping
threshold C. If the one ranked k is in a batch, the number I of those behind it in the batch is Binomial(K - k, q), and
its weight depends on I alone (`inosgd.importance`, with H the importance kept by the end of a batch):

    rho_I = (H((I + 1) C) - H(I C)) / C,        w_k = E[rho_I].

Without clipping and noise the expected update is the gradient of

    L = (1/K) sum_k w_k l_(k),      1 >= w_1 >= ... >= w_K >= 0.

L is convex if the losses are: for each batch it is a sum of ordered losses with falling weights, a maximum over orders.

As an *ordered weighted average* (OWA) that is what it says. As a *mixture of CVaRs*, with CVaR_a the mean of the worst
share a of the losses,

    L = sum_j m_j CVaR_{j/K},       m_j = (j/K) (w_j - w_{j+1}) >= 0,  w_{K+1} = 0,    sum_j m_j = mean(w) <= 1.

How the paper was read:

- The proof's w_k carries a factor K q / b, which is 1, since b = K q, and by a slip the gradient itself. It takes C = 1
  and a tail whose length is a whole number; neither is needed here.
- "Less than 1" is "at most 1": ranks that the tail cannot reach have weight 1 in float64 and almost 1 exactly.
- The weights average to less than 1, so the mixture's masses do not sum to 1: L is mean(w) times a mixed CVaR (and the
  uncertainty set of App. C.3.4, which needs sum_k p_k = 1, is meant for weights divided by their sum). Minimisers are
  the same.
- The theorem is about the "uniform privacy extension" of the data, in which an example of rate q_n appears about T q_n
  times and everything has rate 1/T. Copies of one example can then meet in a batch. `expected_weights` computes what
  INO-SGD itself does with individual rates, to which the extension is an approximation for small rates; with
  thresholds that are multiples of a unit it covers SCALE too.
- Clipping biases all of this, as it does for SGD. Weights are as stated with every gradient within its threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray, frozen_floats
from inosgd.errors import InvalidArgumentError
from inosgd.importance import Tail


def rank_weights(tail: Tail, count: int, sampling_rate: float, clipping_threshold: float = 1.0) -> FloatArray:
    """w_1 ... w_K of the theorem for ``count`` examples of one rate and one threshold: the highest loss first.

    >>> from inosgd.importance import StepTail
    >>> rank_weights(Tail(StepTail((0.0,)), 1.0), count=3, sampling_rate=0.5).tolist()
    [0.75, 0.5, 0.0]
    """
    _validate.whole(1, count=count)
    ones = np.ones(count, dtype=np.int64)
    return expected_weights(tail, np.full(count, sampling_rate), clipping_threshold, ones)


def expected_weights(
    tail: Tail, sampling_rates: npt.ArrayLike, unit: float = 1.0, multiples: IntArray | None = None
) -> FloatArray:
    """E[rho | in the batch] of every example when each has its own rate and a threshold that is a multiple of a unit.

    The state is the threshold behind an example in the batch, in units. Its law is followed from the lowest rank up,

        P(i) <- (1 - q_k) P(i) + q_k P(i - m_k),

    for positions within the tail; beyond it every weight is 1. Only products and sums of positive numbers occur, so
    that the weights are exact to about K roundings of float64. Time is K times the tail's length in units.

    Args:
        tail: The tail importance function.
        sampling_rates: The rate of each example, ranked from the highest to the lowest loss.
        unit: What thresholds are multiples of.
        multiples: How many units each example's threshold has; one by default.
    """
    rates = np.asarray(sampling_rates, dtype=np.float64)
    steps = np.ones(len(rates), dtype=np.int64) if multiples is None else np.asarray(multiples)
    _validate.closed_unit(sampling_rate=rates)
    _validate.finite_positive(unit=unit)
    _validate.same_length(sampling_rates=rates, multiples=steps)
    if not (np.issubdtype(steps.dtype, np.integer) and np.all(steps >= 1)):
        raise InvalidArgumentError("multiples: give whole numbers of at least 1, the thresholds in units")
    lost = {int(step): _lost_importance(tail, unit, int(step)) for step in np.unique(steps)}
    law = np.zeros(math.ceil(tail.length / unit))
    law[0] = 1.0
    weights = np.empty(len(rates))
    for rank in range(len(rates) - 1, -1, -1):
        rate, step = rates[rank], int(steps[rank])
        weights[rank] = 1.0 - law @ lost[step]
        moved = rate * law[:-step]
        law *= 1.0 - rate
        law[step:] += moved
    return np.clip(weights, 0.0, 1.0)


def ordered_weighted_average(losses: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """(1/K) sum_k w_k l_(k): the objective as an OWA. The weights go with the losses in falling order."""
    values, factors = np.asarray(losses, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    _validate.same_length(losses=values, weights=factors)
    return float(np.mean(np.sort(values)[::-1] * factors))


def conditional_value_at_risk(losses: npt.ArrayLike, level: float) -> float:
    """CVaR: the mean of the worst share ``level`` of the losses, the last one of them counted in part if need be.

    >>> conditional_value_at_risk([1.0, 2.0, 3.0, 4.0], 0.5)
    3.5
    """
    _validate.finite_positive(level=level)
    _validate.closed_unit(level=level)
    falling = np.sort(np.asarray(losses, dtype=np.float64))[::-1]
    shares = np.clip(level * len(falling) - np.arange(len(falling)), 0.0, 1.0)
    return float(falling @ shares / shares.sum())


@dataclass(frozen=True, eq=False)
class CvarMixture(ArrayValue):
    """sum_j masses[j] CVaR_{levels[j]}; the masses sum to the mean weight of the objective, at most 1."""

    levels: FloatArray
    masses: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", frozen_floats(self.levels))
        object.__setattr__(self, "masses", frozen_floats(self.masses))
        _validate.same_length(levels=self.levels, masses=self.masses)
        _validate.non_negative(mass=self.masses)

    def value(self, losses: npt.ArrayLike) -> float:
        """The objective as a mixture of CVaRs."""
        risks = [conditional_value_at_risk(losses, level) for level in self.levels.tolist()]
        return float(np.dot(self.masses, risks))


def cvar_mixture(weights: npt.ArrayLike) -> CvarMixture:
    """The mixture that equals the OWA with these weights on any K losses; parts of mass 0 are left out."""
    factors = np.asarray(weights, dtype=np.float64)
    _validate.closed_unit(weight=factors)
    falls = factors - np.append(factors[1:], 0.0)
    if (falls < -1e-12).any():
        rank = int(np.argmax(falls < -1e-12))
        raise _validate.fail(f"weights[{rank + 1}]", factors[rank + 1], "weights must never rise with the rank")
    levels = np.arange(1, len(factors) + 1) / len(factors)
    present = falls > 0
    return CvarMixture(levels[present], (levels * falls)[present])


def _lost_importance(tail: Tail, unit: float, step: int) -> FloatArray:
    """1 - rho for an example of ``step`` units with 0, 1, ... units behind it, as far as the tail reaches."""
    behind: FloatArray = np.arange(math.ceil(tail.length / unit), dtype=np.float64) * unit
    kept = tail.kept(behind + step * unit) - tail.kept(behind)
    return 1.0 - np.clip(kept / (step * unit), 0.0, 1.0)
