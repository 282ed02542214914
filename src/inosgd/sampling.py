"""Sampling: every example is included independently, with its owner's rate.

The cost of a batch grows with the batch, not with the data set. An example with rate q is included when at
least one point of a Poisson process falls into a cell of length

    intensity = -log(1 - q),     since  P(no point) = exp(-intensity) = 1 - q;

cells are disjoint, so inclusions are independent. Drawing the points and keeping each example once is
therefore exactly Poisson sampling: nothing is rejected, nothing truncated, and an empty batch is a batch.

>>> from inosgd.randomness import SeededSource
>>> sampler = PoissonSampler(np.full(1000, 0.01))
>>> sampler.draw(SeededSource(7)).shape[0] in range(0, 40)
True
"""

from __future__ import annotations

import math

import numpy as np

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray, RowArray, pieces
from inosgd.members import Members, members_of
from inosgd.randomness import RandomSource, integers_below, uniforms

MOST_GROUPS = 4096
"""With more distinct rates than this, rates within an eighth of an octave share a group and are thinned."""


class PoissonSampler:
    """Batches of example indices for fixed per-example rates.

    Guarantee:
        In every batch each example i is present with probability ``rates[i]``, independently of all other
        examples, batches and data, up to the rounding of float64: 2e-16 of the expected batch in all, so that even
        rates of 1e-7 are right to a millionth in a batch of 1,000.

    The rates are public functions of budgets and sizes; the indices drawn are sensitive.

    Memory: with ``owners`` given, at most one byte per example beyond 4 million of them, and ``owners`` itself, which
    may be memory-mapped and of any integer type. Which batches are drawn does not depend on how examples are kept.
    """

    def __init__(self, rates: FloatArray, owners: RowArray | None = None) -> None:
        """Prepare for drawing.

        Args:
            rates: One rate per owner when ``owners`` is given, otherwise one rate per example.
            owners: The row in ``rates`` of each example.
        """
        _validate.closed_unit(sampling_rate=rates)
        rows = np.arange(len(rates)) if owners is None else owners
        self._certain = _examples_where(rates == 1.0, rows)
        with np.errstate(divide="ignore"):
            intensities = -np.log1p(-rates)
        self._groups = _Groups(intensities, rows)

    def draw(self, source: RandomSource) -> IntArray:
        """One batch: sorted, distinct example indices; possibly none."""
        return np.union1d(self._groups.draw(source), self._certain)


class _Groups:
    """Examples gathered by intensity; a point falls on each member of its group alike."""

    def __init__(self, intensities: FloatArray, rows: RowArray) -> None:
        group_of_row, ceilings = _group_rows(intensities)
        self._members: Members = members_of(group_of_row, rows, len(ceilings) + 1)
        self._acceptance = _acceptance(intensities, group_of_row, ceilings)
        self._rows = rows
        masses = self._members.counts[1:] * ceilings
        # Ascending, so that the boundaries of a small group are sums of small numbers and keep its precision.
        self._by_mass = np.argsort(masses, kind="stable")
        self._ends = np.cumsum(masses[self._by_mass])

    def draw(self, source: RandomSource) -> IntArray:
        """The examples hit by a Poisson process on all cells laid end to end, each once, sorted."""
        if not len(self._ends):
            return np.zeros(0, dtype=np.int64)
        arrivals = _poisson_arrivals(source, float(self._ends[-1]))
        groups = self._by_mass[np.searchsorted(self._ends, arrivals, side="right")] + 1
        hits = self._members.at(groups, integers_below(source, self._members.counts[groups]))
        return np.unique(hits[self._accepted(source, hits)])

    def _accepted(self, source: RandomSource, hits: IntArray) -> BoolArray:
        if self._acceptance is None:
            return np.ones(len(hits), dtype=np.bool_)
        accepted: BoolArray = uniforms(source, len(hits)) < self._acceptance[self._rows[hits]]
        return accepted


def _examples_where(wanted: BoolArray, rows: RowArray) -> IntArray:
    """The examples whose row is ``wanted``."""
    if not wanted.any():
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([start + np.flatnonzero(wanted[piece]) for start, piece in pieces(rows)])


def _group_rows(intensities: FloatArray) -> tuple[IntArray, FloatArray]:
    """Group 0 for rows that are never or always drawn; further groups with the largest intensity of each."""
    drawn = (intensities > 0) & np.isfinite(intensities)
    values = intensities[drawn]
    keys = np.unique(values)
    if len(keys) > MOST_GROUPS:
        values = np.floor(8 * np.log2(values))
        keys = np.unique(values)
    groups = np.zeros(len(intensities), dtype=np.uint16 if len(keys) < 2**16 else np.int64)
    groups[drawn] = np.searchsorted(keys, values) + 1
    ceilings = np.zeros(len(keys))
    np.maximum.at(ceilings, groups[drawn].astype(np.int64) - 1, intensities[drawn])
    return groups, ceilings  # type: ignore[return-value]


def _acceptance(intensities: FloatArray, groups: IntArray, ceilings: FloatArray) -> FloatArray | None:
    """With which probability a row keeps a point of its group's process; None when always.

    Keeping each point of a Poisson process with probability p, independently, leaves a Poisson process of p
    times the intensity.
    """
    ceiling_of = np.append(0.0, ceilings)[groups]
    if np.array_equal(intensities[groups > 0], ceiling_of[groups > 0]):
        return None
    ratios: FloatArray = np.divide(intensities, ceiling_of, out=np.zeros(len(intensities)), where=ceiling_of > 0)
    return ratios


def _poisson_arrivals(source: RandomSource, length: float) -> FloatArray:
    """The points of a Poisson process of intensity 1 on [0, length): sums of exponential gaps."""
    reached, parts = 0.0, []
    while reached < length:
        missing = length - reached
        gaps = -np.log(uniforms(source, int(missing + 5 * math.sqrt(missing)) + 8))
        points = reached + np.cumsum(gaps)
        parts.append(points)
        reached = float(points[-1])
    arrivals = np.concatenate(parts) if parts else np.zeros(0)
    return arrivals[arrivals < length]
