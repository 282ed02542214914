"""Importance functions: how much of each example's gradient a batch keeps.

Lay the examples of a batch end to end in their order, each as long as its clipping threshold. The *tail
importance function* f on [0, gamma] is fixed before training and never increases; the *batch importance
function* is 1 on everything but the last gamma of the batch and f there (Def. 3.2 and App. C.2.3). An
example's weight is the average of the batch importance function over its own interval:

    H(y)   = the importance kept by the last y of the batch
           = gamma G(min(y / gamma, 1)) + max(y - gamma, 0),    G(u) = the integral of f over the tail's last u,
    rem_k  = the sum of the thresholds of the examples ranked k or lower,
    rho_k  = (H(rem_k) - H(rem_{k+1})) / C_k.

Everything is measured from the least important end, so a batch shorter than its tail needs no case of its own.

Guarantee (Thm. 3.3):
    For every H that is convex, non-decreasing and of slope at most 1, and examples with |g_k| <= C_k, adding
    one example with threshold C anywhere in the order moves sum_k rho_k g_k by at most C. Examples ranked
    lower keep their weights; the weights of those ranked higher rise by a telescoping sum; together they stay
    within the integral of f over an interval of length C. In float64 the bound holds to 1 + 1e-6 for hundreds of
    examples whose thresholds span five orders of magnitude; `inosgd.plan` limits batch and span to where it holds to
    1 + 5e-6, half of the clipping margin.

The tail's length must be a constant of the plan. As a share of the *realised* batch it would break the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import betainc

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.errors import InvalidArgumentError


class TailShape(Protocol):
    """A tail importance function on a tail of length 1."""

    def kept(self, end: FloatArray) -> FloatArray:
        """G(u) for u in [0, 1]: convex, non-decreasing, slope at most 1, G(0) = 0."""


@dataclass(frozen=True)
class BetaTail:
    """The paper's tail: the flipped distribution function of Beta(a, b).

    f(c) = I_{1-c}(a, b) with I the regularised incomplete beta function, and in closed form

        G(u) = u I_u(a, b) - a / (a + b) I_u(a + 1, b).

    A larger ``a`` lets the tail fall sooner, a larger ``b`` keeps it up for longer; Beta(1, 1) is the straight line.

    >>> BetaTail(1, 1).kept(np.array([0.0, 0.5, 1.0])).tolist()
    [0.0, 0.125, 0.5]
    """

    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        _validate.finite_positive(a=self.a, b=self.b)

    def kept(self, end: FloatArray) -> FloatArray:
        """The closed form; its error against quadrature is below 1e-13."""
        first: FloatArray = end * betainc(self.a, self.b, end)
        return first - self.a / (self.a + self.b) * betainc(self.a + 1, self.b, end)


@dataclass(frozen=True)
class StepTail:
    """Constant levels over equal parts of the tail, the most important part first (App. C.2.5).

    >>> StepTail((0.5, 0.0)).kept(np.array([0.5, 0.75, 1.0])).tolist()
    [0.0, 0.125, 0.25]
    """

    levels: tuple[float, ...] = (1 / 2, 1 / 4, 1 / 8, 0.0)

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidArgumentError("levels=(): give at least one level")
        _check_tail_values("levels", np.array(self.levels, dtype=np.float64))

    def kept(self, end: FloatArray) -> FloatArray:
        """Exact: the cumulative of a step function is linear between the steps."""
        return _interpolated(end, np.array(self.levels, dtype=np.float64)[::-1])


@dataclass(frozen=True)
class FunctionTail:
    """Any non-increasing function from [0, 1] into [0, 1], read at ``points`` equal steps.

    Between the points the function is taken as the mean of its two ends. The cumulative is therefore linear
    between points and convex, so the sensitivity bound is exact whatever the function does in between.
    """

    function: Callable[[float], float]
    points: int = 4096

    def __post_init__(self) -> None:
        _validate.whole(1, points=self.points)
        _check_tail_values("function", self._values)

    @cached_property
    def _values(self) -> FloatArray:
        positions = np.linspace(0.0, 1.0, self.points + 1)
        return np.array([float(self.function(position)) for position in positions.tolist()])

    def kept(self, end: FloatArray) -> FloatArray:
        """The linearly interpolated cumulative."""
        means = (self._values[1:] + self._values[:-1]) / 2
        return _interpolated(end, means[::-1])


@dataclass(frozen=True)
class Tail:
    """A tail importance function: a shape stretched to a length in units of clipping threshold."""

    shape: TailShape
    length: float

    def __post_init__(self) -> None:
        _validate.finite_positive(length=self.length)

    def kept(self, amount: FloatArray) -> FloatArray:
        """H(y): the importance kept by the ``amount`` of threshold at the unimportant end of a batch."""
        within = np.minimum(amount / self.length, 1.0)
        return self.length * self.shape.kept(within) + np.maximum(amount - self.length, 0.0)


@dataclass(frozen=True)
class Importance:
    """A tail as it is configured: its shape, and its length either absolute or relative to the plan.

    Exactly one of the lengths is given: ``length`` in units of threshold, or ``share`` of the expected sum of
    thresholds in a batch, a constant of the plan (50% is what the paper advises).
    """

    shape: TailShape = BetaTail()
    share: float | None = 0.5
    length: float | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.length is None):
            raise InvalidArgumentError(
                f"share={self.share!r}, length={self.length!r}: give one of them and leave the other None"
            )
        if self.share is not None:
            _validate.finite_positive(share=self.share)
        if self.length is not None:
            _validate.finite_positive(length=self.length)

    def tail(self, expected_threshold_sum: float) -> Tail:
        """The tail of a plan whose batches hold ``expected_threshold_sum`` of threshold on average."""
        if self.length is not None:
            return Tail(self.shape, self.length)
        return Tail(self.shape, (self.share or 0.0) * expected_threshold_sum)


def importance_weights(tail: Tail | None, thresholds: FloatArray, ranking: IntArray) -> FloatArray:
    """The weight rho of each example: exact averages of the batch importance function, in float64.

    Args:
        tail: The tail importance function; None keeps everything (every weight is 1).
        thresholds: The clipping threshold of each example.
        ranking: Positions from the most to the least important, from a stable order.

    Guarantee: see the module. An example wholly before the tail has weight 1 exactly.
    """
    weights = np.ones(len(thresholds))
    if tail is None:
        return weights
    ranked = thresholds[ranking]
    ends = np.append(np.cumsum(ranked[::-1])[::-1], 0.0)
    remaining, after = ends[:-1], ends[1:]
    # Differences of H are taken only where the tail is: elsewhere they would round, and 1 is exact.
    tailed = after < tail.length
    kept = tail.kept(remaining[tailed]) - tail.kept(after[tailed])
    weights[ranking[tailed]] = np.clip(kept / ranked[tailed], 0.0, 1.0)
    return weights


def _interpolated(end: FloatArray, levels_from_the_end: FloatArray) -> FloatArray:
    """The cumulative of equal steps, linear in between."""
    grid = np.linspace(0.0, 1.0, len(levels_from_the_end) + 1)
    cumulative = np.append(0.0, np.cumsum(levels_from_the_end)) / len(levels_from_the_end)
    return np.interp(end, grid, cumulative)


def _check_tail_values(argument: str, values: FloatArray) -> None:
    """A tail importance function must map into [0, 1] and never increase."""
    _validate.closed_unit(**{argument: values})
    rises = np.flatnonzero(np.diff(values) > 0)
    if len(rises):
        index = int(rises[0])
        shown = f"{values[index]:g} then {values[index + 1]:g}"
        raise InvalidArgumentError(
            f"{argument} rises ({shown}): a tail importance function must never increase; sort it or flip it"
        )
