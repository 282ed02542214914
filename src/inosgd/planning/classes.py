"""Budget classes: owners with the same budget plan alike, so planning costs what its distinct budgets cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting.profile import gaussian_profile
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
        limit_deltas: Where on its privacy profile each class is limited, a column per limit; the first is its delta.
        limit_epsilons: The epsilon allowed at each of them; the first is its budget.
    """

    epsilons: FloatArray
    deltas: FloatArray
    records: IntArray
    of_owner: IntArray
    names: tuple[str, ...]
    limit_deltas: FloatArray
    limit_epsilons: FloatArray

    def __len__(self) -> int:
        return len(self.epsilons)

    def only(self, chosen: IntArray) -> BudgetClasses:
        """Some of the classes, without their owners."""
        names = tuple(self.names[index] for index in chosen)
        nobody = np.zeros(0, dtype=np.int64)
        return BudgetClasses(
            self.epsilons[chosen],
            self.deltas[chosen],
            self.records[chosen],
            nobody,
            names,
            self.limit_deltas[chosen],
            self.limit_epsilons[chosen],
        )

    @classmethod
    def of(cls, table: OwnerTable, profile_margin: float | None = None) -> Self:
        """The classes of ``table``.

        With a ``profile_margin`` m, epsilon at delta / 10, / 100 and / 1000 is limited too: to (1 + m) times that of
        a plain Gaussian mechanism with the same budget.
        """
        pairs, first, inverse = _distinct_pairs(table.deltas, table.epsilons)
        if len(pairs) > MOST_EXACT:
            deltas = _rounded_down(table.deltas, DELTA_GRID) if len(np.unique(table.deltas)) > 8 else table.deltas
            pairs, first, inverse = _distinct_pairs(deltas, _rounded_down(table.epsilons, EPSILON_GRID))
        records = np.bincount(inverse, weights=table.sizes, minlength=len(pairs)).astype(np.int64)
        names = tuple(table.names[row] for row in first)
        limits = _limits(pairs[:, 1], pairs[:, 0], profile_margin)
        return cls(pairs[:, 1], pairs[:, 0], records, inverse, names, *limits)


def _limits(epsilons: FloatArray, deltas: FloatArray, margin: float | None) -> tuple[FloatArray, FloatArray]:
    if margin is None:
        return deltas[:, None], epsilons[:, None]
    gaussians = [gaussian_profile(*budget) for budget in zip(epsilons.tolist(), deltas.tolist(), strict=True)]
    beyond = [[g.epsilon_at_tenth, g.epsilon_at_hundredth, g.epsilon_at_thousandth] for g in gaussians]
    limit_epsilons = np.column_stack([epsilons, (1 + margin) * np.array(beyond)])
    return deltas[:, None] / np.array([1.0, 10.0, 100.0, 1000.0]), limit_epsilons


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
