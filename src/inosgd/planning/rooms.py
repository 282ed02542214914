"""Rooms: what accounts that trainings share leave for one plan (`inosgd.accounts`)."""

from __future__ import annotations

from dataclasses import dataclass

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray, frozen_floats, frozen_integers


@dataclass(frozen=True, eq=False)
class Rooms(ArrayValue):
    """For each owner of a table, the order of its account and the Rényi divergence of that order that is left.

    Guarantee:
        A plan that is made with rooms costs every owner at most its room at its order, besides its budget.
    """

    orders: IntArray
    divergences: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", frozen_integers(self.orders))
        object.__setattr__(self, "divergences", frozen_floats(self.divergences))
        _validate.same_length(orders=self.orders, divergences=self.divergences)
        _validate.non_negative(divergences=self.divergences)

    def of(self, rows: IntArray) -> Rooms:
        """The rooms of some owners."""
        return Rooms(self.orders[rows], self.divergences[rows])
