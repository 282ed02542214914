"""Collections: units with owners, and where each class of owners stands.

A class is a set of owners with the same budget and the same history. Each owner has a *place*, in the order of the
table that the collection was opened with, and ``members`` says of which class the owner at each place is. A charge that
tells owners of one class apart splits it: new classes get the next numbers, and remember the class they come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd._arrays import FloatArray, IntArray, distinct_rows
from inosgd.accounts.chain import Array
from inosgd.accounts.filter import rooms

Classes = npt.NDArray[np.int32]

COLUMNS = {
    "epsilons": "<f8",
    "deltas": "<f8",
    "orders": "<i8",
    "parents": "<i4",
    "spent": "<i8",
    "held": "<i8",
}
"""The columns of a collection with a number per class, and their types on disk."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Where a collection stands. ``spent`` and ``held`` are in units of `inosgd.accounts.filter`.

    Attributes:
        number: Of the collection in its book.
        name: What it is called.
        owners: How many owners there are.
        roster: A digest of their names, in the order of their places.
        members: The entry with the array that says of which class each owner is.
        epsilons: The budgets in force, and so on: one number per class.
        parents: The class that each comes from, -1 for those of the beginning.
        spent: What is charged.
        held: What is reserved and not charged yet.
    """

    number: int
    name: str
    owners: int
    roster: str
    members: int
    epsilons: FloatArray
    deltas: FloatArray
    orders: IntArray
    parents: Classes
    spent: IntArray
    held: IntArray

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Collection:
        """From id, name, owners, roster, members and the columns."""
        columns = [np.frombuffer(content, dtype=kind) for content, kind in zip(row[5:], COLUMNS.values(), strict=True)]
        return cls(*row[:5], *columns)

    def contents(self) -> list[bytes]:
        """The columns as they are stored."""
        return [np.asarray(getattr(self, name), dtype=kind).tobytes() for name, kind in COLUMNS.items()]

    def __len__(self) -> int:
        return len(self.epsilons)

    @property
    def rooms(self) -> IntArray:
        """What the budgets in force allow each class."""
        return rooms(self.epsilons, self.deltas, self.orders)

    @property
    def left(self) -> IntArray:
        """What is neither charged nor reserved; 0 after a lowering below that."""
        left: IntArray = np.maximum(self.rooms - self.spent - self.held, 0)
        return left

    def with_parents(self, parents: Classes) -> Collection:
        """The collection with one more class for each of ``parents``, which starts where that one stands."""
        if not len(parents):
            return self
        every = np.concatenate([np.arange(len(self), dtype=np.int32), parents])
        grown = {name: getattr(self, name)[every] for name in COLUMNS if name != "parents"}
        return replace(self, parents=np.concatenate([self.parents, parents.astype(np.int32)]), **grown)

    def ancestors(self, classes: int) -> IntArray:
        """For each class, which of the first ``classes`` it comes from."""
        found = np.arange(len(self), dtype=np.int64)
        while (later := found >= classes).any():
            found[later] = self.parents[found[later]]
        return found


@dataclass(frozen=True, eq=False)
class Split:
    """Classes within which all owners are asked the same.

    Attributes:
        members: The class of each owner.
        parents: Of the new classes, whose numbers follow those that were there.
        first: The place of one owner of each class; no class is without owners.
    """

    members: Classes
    parents: Classes
    first: IntArray

    @property
    def arrays(self) -> dict[str, Array]:
        """What an entry tells about classes that it has split."""
        return {"members": self.members, "parents": self.parents} if len(self.parents) else {}

    def moved(self, collection: Collection, entry: int) -> Collection:
        """The collection with the members that an entry tells, if it has split classes."""
        return replace(collection, members=entry) if len(self.parents) else collection


def split(members: Classes, classes: int, columns: Sequence[Array]) -> Split:
    """Split classes whose owners differ in one of ``columns``, which have a value per place."""
    first = _first(members, classes)
    known = first[members]
    if all((column == column[known]).all() for column in columns):
        return Split(members, np.zeros(0, dtype=np.int32), first)
    places, group = distinct_rows(members, *columns)
    owner = members[places]
    repeated = np.append(False, owner[1:] == owner[:-1])
    numbers = np.where(repeated, classes + np.cumsum(repeated) - 1, owner).astype(np.int32)
    parents = owner[repeated].astype(np.int32)
    regrouped = numbers[group]
    return Split(regrouped, parents, _first(regrouped, classes + len(parents)))


def _first(members: Classes, classes: int) -> IntArray:
    first = np.full(classes, -1, dtype=np.int64)
    first[members[::-1]] = np.arange(len(members) - 1, -1, -1)
    return first


def roster_digest(names: Sequence[str]) -> str:
    """A digest of names in their order."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()
