"""Budget classes: owners with the same budget plan alike, so planning costs what its distinct budgets cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from inosgd._arrays import FloatArray, IntArray
from inosgd.owners import OwnerTable

MOST_EXACT = 256
"""Up to this many distinct budgets are planned exactly; beyond, budgets are rounded down to a grid first."""

EPSILON_GRID = 0.004
DELTA_GRID = 0.05
"""Relative spacing of the grids. Rounding down gives away at most 0.4% of epsilon, and 0.3% through delta."""


@dataclass(frozen=True, eq=False)
class BudgetClasses:
    """The distinct budgets of a table, strictest first within each delta.

    Guarantee:
        The budget of an owner's class is at most the owner's own in both epsilon and delta, so terms that
        respect the class respect the owner.

    Attributes:
        epsilons: One per class.
        deltas: One per class.
        records: The number of examples of all owners of the class.
        of_owner: The class of each owner.
        names: The name of one owner of each class, for messages.
    """

    epsilons: FloatArray
    deltas: FloatArray
    records: IntArray
    of_owner: IntArray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.epsilons)

    def only(self, chosen: IntArray) -> BudgetClasses:
        """Some of the classes, without their owners."""
        names = tuple(self.names[index] for index in chosen)
        nobody = np.zeros(0, dtype=np.int64)
        return BudgetClasses(self.epsilons[chosen], self.deltas[chosen], self.records[chosen], nobody, names)

    @classmethod
    def of(cls, table: OwnerTable) -> Self:
        """The classes of ``table``."""
        pairs, first, inverse = _distinct_pairs(table.deltas, table.epsilons)
        if len(pairs) > MOST_EXACT:
            deltas = _rounded_down(table.deltas, DELTA_GRID) if len(np.unique(table.deltas)) > 8 else table.deltas
            pairs, first, inverse = _distinct_pairs(deltas, _rounded_down(table.epsilons, EPSILON_GRID))
        records = np.bincount(inverse, weights=table.sizes, minlength=len(pairs)).astype(np.int64)
        names = tuple(table.names[row] for row in first)
        return cls(pairs[:, 1], pairs[:, 0], records, inverse, names)


def _distinct_pairs(deltas: FloatArray, epsilons: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Distinct (delta, epsilon) in ascending order, a row where each occurs first, and the place of every row."""
    order = np.lexsort((epsilons, deltas))
    sorted_pairs = np.column_stack([deltas, epsilons])[order]
    starts = np.append(True, (np.diff(sorted_pairs, axis=0) != 0).any(axis=1))
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.cumsum(starts) - 1
    return sorted_pairs[starts], order[starts], inverse


def _rounded_down(values: FloatArray, spacing: float) -> FloatArray:
    """Each value moved down to the grid smallest x (1 + spacing)^k, by at most a factor 1 + spacing."""
    smallest = float(values.min())
    powers = np.floor(np.log(values / smallest) / np.log1p(spacing) * (1 - 1e-12))
    rounded: FloatArray = smallest * (1 + spacing) ** powers
    return np.minimum(rounded, values)
