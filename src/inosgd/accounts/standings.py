"""Standings: whether an owner takes part, and what it asked for when it last changed its budget.

    open        the budget in force is what the owner asked for
    paused      the budget in force is epsilon 0, until the owner resumes what it asked for before
    withdrawn   the budget in force is epsilon 0, for good

An owner that never changed anything is open and has no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.accounts.database import Database
from inosgd.errors import AccountError
from inosgd.owners import Budget
from inosgd.units import parts_of

OPEN, PAUSED, WITHDRAWN = STATES = ("open", "paused", "withdrawn")

FEW = 1000
"""Up to so many rows are written one by one."""


@dataclass(frozen=True)
class Standing:
    """Where an owner stands.

    Attributes:
        state: "open", "paused" or "withdrawn".
        budget: What it asked for; in force while it is open.
        entry: The entry of its last change; 0 if it never changed anything.
    """

    state: str
    budget: Budget
    entry: int = 0

    @property
    def epsilon_in_force(self) -> float:
        """The epsilon that charges are held to."""
        return self.budget.epsilon if self.state == OPEN else 0.0


def read_standings(database: Database, collection: int, owners: Sequence[str] | None = None) -> dict[str, Standing]:
    """The standings of the owners of a collection that have a row, of all or of some of them."""
    statement = "SELECT owner, state, epsilon, delta, entry FROM standings WHERE collection = ?"
    if owners is None or len(owners) > FEW:
        found = database.rows(statement, [collection])
    else:
        found = [row for owner in owners for row in database.rows(f"{statement} AND owner = ?", [collection, owner])]
    return {
        owner: Standing(state, Budget(epsilon=epsilon, delta=delta), entry)
        for owner, state, epsilon, delta, entry in found
    }


def keep_standings(database: Database, collection: int, changed: Mapping[str, Standing]) -> None:
    """Keep the rows of owners that have changed, inside a transaction."""
    if len(changed) > FEW:
        changed = {**read_standings(database, collection), **changed}
        database.rows("DELETE FROM standings WHERE collection = ?", [collection])
    else:
        for owner in changed:
            database.rows("DELETE FROM standings WHERE collection = ? AND owner = ?", [collection, owner])
    rows = [
        (collection, owner, each.state, each.budget.epsilon, each.budget.delta, each.entry)
        for owner, each in changed.items()
    ]
    database.fill("standings", rows)


def check_may_change(before: Mapping[str, Standing], owners: Sequence[str], seen: int | None) -> None:
    """Raise if an owner has withdrawn, or its last change is not the one that was ``seen``."""
    for owner in owners:
        if owner in before and before[owner].state == WITHDRAWN:
            raise AccountError(f"owner {owner!r} has withdrawn, for good; open another collection for it to come back")
        if seen is not None and (before[owner].entry if owner in before else 0) != seen:
            raise AccountError(f"owner {owner!r} has changed its budget meanwhile; look again, and nothing was changed")


def epsilons_asked(names: Sequence[str], epsilons: FloatArray, standings: Mapping[str, Standing]) -> FloatArray:
    """Epsilons with what owners asked for that allow nothing now; of units of several, the smallest among them."""
    asked = {name: standings[name].budget.epsilon for name in names if name in standings}
    asked |= {name: epsilon for name, epsilon in zip(names, epsilons.tolist(), strict=True) if epsilon > 0}
    every = dict.fromkeys(names)
    return np.array(
        [asked[name] if name in asked else min(asked[part] for part in parts_of(name, every)) for name in names]
    )
