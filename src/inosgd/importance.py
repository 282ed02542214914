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
    lower keep their weights. The weights of those ranked higher do not fall, and with r the sum of the thresholds
    ranked lower than the new example and t that of all the others,

        sum_k C_k (rise of rho_k) = (H(t + C) - H(t)) - (H(r + C) - H(r)),    C rho = H(r + C) - H(r).

    The two add up to H(t + C) - H(t) <= C.

In floating point the sum telescopes only if H is one function of positions that are exact. So

1. lengths are whole numbers, c_k = C_k in units of s = gamma / 2^62, rounded up: C_k <= s c_k (1 + 2^-51) and
   s c_k <= C_k (1 + 2^-51) + s. Positions are sums of whole numbers, without error;
2. f is a table (`Cells`): its values at the ends of equal cells are whole multiples of 2^-40 that never increase, and
   it is a straight line within each cell. H is its integral and exactly convex, however close to the ideal f it is;
3. a weight is a quotient of non-negative sums of non-negative products, 11 roundings deep, hence within a relative
   `WEIGHT_ERROR` = 2^-49 of its exact value, and exactly 1 before the tail.

By 1 and 2 the exact weights move the sum by at most s c (1 + 2^-51) <= C (1 + 2^-50) + 2 s. By 3 the weights of either
batch add at most 11 x 2^-53 (gamma + C_max), since sum_k rho_k C_k over the examples in the tail is at most
gamma + C_max. In all, the sum moves by at most

    C (1 + x),    x = 2^-50 + 2^-48 (gamma + C_max) / C,

for any tail, thresholds and batch. This is 2e-12 for a tail of 500 equal thresholds, and 2e-6 if C is a millionth of
them. The second term is of the kind of the roundings of the sum itself, and smaller.

The tail's length must be a constant of the plan. As a share of the *realised* batch it would break the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, Self

import numpy as np
from scipy.special import betainc

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray, frozen_integers
from inosgd.errors import InvalidArgumentError

_POSITIONS = 2**62
_LEVELS = 2**40
_MOST_CELLS = 2**20
_BETA_CELLS = 2**16

WEIGHT_ERROR = 2.0**-49
"""The relative error of a weight: less than 11 roundings, to be counted with those of the sum."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A tail of length 1 in equal cells, counted from the unimportant end; f is a straight line within each.

    Guarantee:
        The importance function is a non-decreasing function of the distance from the unimportant end and lies in
        [0, 1], exactly: it is made of whole numbers, sorted by running maxima.

    Attributes:
        first: The importance where each cell begins, in units of 2^-40.
        last: The importance where each cell ends.
        sums: Of ``first`` and ``last`` over the cells before each.
    """

    first: IntArray
    last: IntArray
    sums: IntArray

    @classmethod
    def of(cls, first: FloatArray, last: FloatArray) -> Self:
        """Cells with these values; one that is lower than one before it is raised."""
        if not 1 <= len(first) <= _MOST_CELLS:
            raise _validate.fail("cells", len(first), f"give from 1 to {_MOST_CELLS:,}")
        values = np.column_stack([first, last]).ravel()
        _validate.closed_unit(importance=values)
        rising = np.maximum.accumulate(np.rint(values * _LEVELS).astype(np.int64))
        sums = np.append(0, np.cumsum(rising[::2] + rising[1::2]))
        return cls(frozen_integers(rising[::2]), frozen_integers(rising[1::2]), frozen_integers(sums))

    @property
    def width(self) -> int:
        """How many positions there are in a cell."""
        return _POSITIONS // len(self.first)

    @property
    def end(self) -> int:
        """The position at which the tail ends: about 2^62."""
        return self.width * len(self.first)

    def kept(self, start: IntArray, stop: IntArray) -> FloatArray:
        """The integral of the importance function from position ``start`` to ``stop``, start < end and stop <= end.

        Guarantee: the relative error is at most 9 roundings, as only sums and products of non-negative numbers occur.
        """
        cell, last_cell = start // self.width, np.minimum(stop // self.width, len(self.first) - 1)
        begin, rest = start - cell * self.width, stop - last_cell * self.width
        together = cell == last_cell
        left = self._kept_within(cell, begin, np.where(together, rest, self.width))
        between = (self.sums[last_cell] - self.sums[cell + 1]) * (self.width / 2)
        right = between + self._kept_within(last_cell, np.zeros_like(rest), rest)
        return (left + np.where(together, 0.0, right)) / _LEVELS

    def _kept_within(self, cell: IntArray, start: IntArray, stop: IntArray) -> FloatArray:
        """The length times the importance at the middle, for positions within one cell."""
        first, rise = self.first[cell], self.last[cell] - self.first[cell]
        kept: FloatArray = (stop - start) * (first + rise * ((start + stop) / float(2 * self.width)))
        return kept


class TailShape(Protocol):
    """A tail importance function on a tail of length 1."""

    @property
    def cells(self) -> Cells:
        """The function as a table; always the same one."""


@dataclass(frozen=True)
class BetaTail:
    """The paper's tail: the flipped distribution function of Beta(a, b).

    f(c) = I_{1-c}(a, b) with I the regularised incomplete beta function. A larger ``a`` lets the tail fall sooner, a
    larger ``b`` keeps it up for longer; Beta(1, 1) is the straight line.
    """

    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        _validate.finite_positive(a=self.a, b=self.b)

    @property
    def cells(self) -> Cells:
        """65,536 cells that keep what the function itself keeps in each."""
        return _beta_cells(self.a, self.b)


@dataclass(frozen=True)
class StepTail:
    """Constant levels over equal parts of the tail, the most important part first (App. C.2.5)."""

    levels: tuple[float, ...] = (1 / 2, 1 / 4, 1 / 8, 0.0)

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidArgumentError("levels=(): give at least one level")
        _check_tail_values("levels", np.array(self.levels, dtype=np.float64))

    @cached_property
    def cells(self) -> Cells:
        """One cell for each level."""
        levels = np.array(self.levels, dtype=np.float64)[::-1]
        return Cells.of(levels, levels)


@dataclass(frozen=True)
class FunctionTail:
    """Any non-increasing function from [0, 1] into [0, 1], read at ``points`` equal steps and linear in between."""

    function: Callable[[float], float]
    points: int = 4096

    def __post_init__(self) -> None:
        _validate.whole(1, points=self.points)
        _check_tail_values("function", self._values)

    @cached_property
    def _values(self) -> FloatArray:
        positions = np.linspace(0.0, 1.0, self.points + 1)
        return np.array([float(self.function(position)) for position in positions.tolist()])

    @cached_property
    def cells(self) -> Cells:
        """One cell between any two neighbouring points."""
        values = self._values[::-1]
        return Cells.of(values[:-1], values[1:])


@dataclass(frozen=True)
class Tail:
    """A tail importance function: a shape stretched to a length in units of clipping threshold."""

    shape: TailShape
    length: float

    def __post_init__(self) -> None:
        _validate.finite_positive(length=self.length)

    def kept(self, amount: FloatArray) -> FloatArray:
        """H(y): the importance kept by the ``amount`` of threshold at the unimportant end of a batch.

        >>> Tail(BetaTail(1, 1), 2.0).kept(np.array([0.0, 1.0, 2.0, 3.0])).tolist()
        [0.0, 0.25, 1.0, 2.0]
        """
        cells = self.shape.cells
        stops = np.rint(np.minimum(amount / self.length, 1.0) * float(cells.end)).astype(np.int64)
        within = cells.kept(np.zeros_like(stops), np.minimum(stops, cells.end))
        return within * (self.length / cells.end) + np.maximum(amount - self.length, 0.0)


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
    """The weight rho of each example: averages of the batch importance function over whole numbers of positions.

    Args:
        tail: The tail importance function; None keeps everything (every weight is 1).
        thresholds: The clipping threshold of each example.
        ranking: Positions from the most to the least important, from a stable order.

    Guarantee: see the module. An example wholly before the tail has weight 1 exactly.
    """
    weights = np.ones(len(thresholds))
    if tail is None:
        return weights
    cells, upward = tail.shape.cells, ranking[::-1]
    lengths = np.maximum(np.ceil(thresholds[upward] / tail.length * float(cells.end)), 1.0)
    # Beyond 2^62 lengths are cut for the positions, which are then right up to the tail's end, and may wrap after it.
    whole = np.minimum(lengths, float(_POSITIONS)).astype(np.int64)
    stops = np.cumsum(whole)
    tailed = slice(_first(stops >= cells.end) + 1)
    lengths, whole, stops = lengths[tailed], whole[tailed], stops[tailed]
    before_tail = np.maximum(stops - cells.end, 0) + (lengths - whole)
    kept = cells.kept(stops - whole, np.minimum(stops, cells.end)) + before_tail
    weights[upward[tailed]] = np.minimum(kept / lengths, 1.0)
    return weights


def _first(holds: BoolArray) -> int:
    """Where ``holds`` is first true, or its length."""
    return int(np.argmax(holds)) if holds.any() else len(holds)


@lru_cache(maxsize=64)
def _beta_cells(a: float, b: float) -> Cells:
    """Lines between the function's values at both ends of a cell that keep what the function keeps there.

    This is G(end) - G(start), with G(u) = u I_u(a, b) - a / (a + b) I_u(a + 1, b) the integral of I_v(a, b) up to u.
    """
    ends = np.linspace(0.0, 1.0, _BETA_CELLS + 1)
    values = betainc(a, b, ends)
    kept = ends * values - a / (a + b) * betainc(a + 1, b, ends)
    means = np.clip(np.diff(kept) * _BETA_CELLS, values[:-1], values[1:])
    half_rises = np.minimum(means - values[:-1], values[1:] - means)
    return Cells.of(means - half_rises, means + half_rises)


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
