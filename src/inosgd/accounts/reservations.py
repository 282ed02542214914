"""Reservations: what a plan will spend at most, and how much of it is committed.

It is *reserved* before the first release, *committed* piece by piece, each piece before the noise of its releases is
drawn, and settled at the end: what no noise was drawn for is given back.

    reserved    some releases may follow
    committed   it has ended, and every release took place
    refunded    it has ended, and some releases did not take place
    void        it has ended, and no release took place
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inosgd.accounts.database import Database


@dataclass(frozen=True)
class Reservation:
    """Where a reservation stands.

    Attributes:
        id: Its identifier.
        collection: The number of its collection.
        entry: The entry that made it.
        state: "reserved", "committed", "refunded" or "void".
        purpose: "training", "tuning", "counting" or whatever was given.
        run: The folder of the run, if there is one.
        plan: The SHA-256 of the plan's JSON, if there is one.
        begun: How many releases the ledger of the run had before.
        releases: How many releases each price is for.
        committed: How many releases are committed.
    """

    id: str
    collection: int
    entry: int
    state: str
    purpose: str
    run: str | None
    plan: str | None
    begun: int
    releases: tuple[int, ...]
    committed: int

    @property
    def total(self) -> int:
        """How many releases it is for."""
        return sum(self.releases)


def ended(taken: int, total: int) -> str:
    """The state of a reservation that has ended with ``taken`` of its ``total`` releases."""
    return "committed" if taken == total else "refunded" if taken else "void"


def read_reservations(database: Database, chosen: str = "1 = 1", values: Sequence[Any] = ()) -> list[Reservation]:
    """The reservations of a book that a condition chooses, in the order in which they were made."""
    found = database.rows(f"SELECT * FROM reservations WHERE {chosen} ORDER BY entry", values)  # noqa: S608
    return [replace(Reservation(*row), releases=tuple(json.loads(row[8]))) for row in found]


def add_reservation(database: Database, state: Reservation) -> None:
    """Add the row of a new reservation, inside a transaction."""
    values = [*vars(state).values()]
    values[8] = json.dumps(state.releases)
    marks = ", ".join("?" * len(values))
    database.rows(f"INSERT INTO reservations VALUES ({marks})", values)  # noqa: S608


def keep_reservation(database: Database, state: Reservation) -> None:
    """Keep where a reservation stands, inside a transaction."""
    database.rows(
        "UPDATE reservations SET state = ?, committed = ? WHERE id = ?", [state.state, state.committed, state.id]
    )
