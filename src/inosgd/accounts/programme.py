"""Programmes: all trainings of a collection, declared before the first, accounted for by privacy-loss distributions.

Privacy-loss distributions (PLD) compose mechanisms whose parameters are fixed in advance. There is no filter for them:
no theorem lets trainings be chosen in view of earlier outcomes and still be composed by PLD. If all trainings of a
collection are declared before the first, nothing is chosen any more, and PLD holds for all of them together, also if
their steps are interleaved as an adversary likes (Vadhan and Zhang 2023, "Concurrent composition theorems for
differential privacy", for mechanisms with fixed trade-off functions).

A collection with a programme accepts the declared trainings, each once, and nothing else. Steps that a training does
not take are forfeited. If a budget is lowered below what the whole programme costs its owner, nothing more of it takes
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from inosgd._arrays import IntArray
from inosgd.accounting import epsilons
from inosgd.accounts.charge import Charge
from inosgd.accounts.collection import Collection, split
from inosgd.accounts.writing import Writing
from inosgd.errors import AccountError, InvalidArgumentError
from inosgd.shown import rounded_up

if TYPE_CHECKING:
    from inosgd.accounts.book import Accounts


@dataclass(frozen=True, eq=False)
class Programme:
    """The declared trainings of a collection.

    Attributes:
        entry: The entry that declared them.
        charges: Their mechanisms, a row for each class of then.
        used: Those that have been reserved.
    """

    entry: int
    charges: tuple[Charge, ...]
    used: frozenset[int]

    @property
    def classes(self) -> int:
        """How many classes there were when it was declared."""
        return len(self.charges[0].table)

    @classmethod
    def of(cls, book: Accounts, collection: Collection) -> Programme | None:
        """The programme of a collection, if it has one."""
        found = book.entries(collection.number, "declared")
        if not found:
            return None
        declared, charges = found[0], []
        for part, fields in enumerate(declared.fields["trainings"]):
            charges.append(Charge.from_json(fields, book.required_array(declared.number, f"mechanisms {part}")))
        reserved = [entry.fields.get("programme") for entry in book.entries(collection.number, "reserved")]
        return cls(declared.number, tuple(charges), frozenset(part for _, part in filter(None, reserved)))

    @classmethod
    def declared(
        cls, book: Accounts, write: Writing, collection: Collection, names: Sequence[str], charges: Sequence[Charge]
    ) -> Programme:
        """Write a programme, or raise if it does not fit into the budgets by PLD.

        Raises:
            AccountError: If anything was charged or reserved before, or a budget is exceeded.
        """
        if any(book.entries(collection.number, kind) for kind in ("declared", "reserved")):
            raise AccountError(f"collection {collection.name!r}: a programme is declared before the first training")
        if not charges or any(charge.trials is not None for charge in charges):
            raise InvalidArgumentError("charges: a programme is of one or several trainings")
        places = book.places(collection, names)
        tables = [charge.at(places, collection.owners) for charge in charges]
        parts = split(book.members(collection), len(collection), list(np.column_stack(tables).T))
        grown = collection.with_parents(parts.parents)
        by_class = [replace(charge, table=table[parts.first]) for charge, table in zip(charges, tables, strict=True)]
        exposures = [exposure for charge in by_class for exposure in charge.exposures[0]]
        spent = epsilons(exposures, grown.deltas, "pld")
        over = np.flatnonzero(~(spent <= grown.epsilons))
        if len(over):
            name = book.name_at(collection, int(parts.first[over[0]]))
            raise AccountError(
                f"owner {name!r}: the programme asks for epsilon={rounded_up(spent[over[0]], 6)}, and "
                f"{grown.epsilons[over[0]]:g} is left; declare fewer steps or more noise"
            )
        arrays = {f"mechanisms {part}": charge.table for part, charge in enumerate(by_class)} | parts.arrays
        fields = {"trainings": [charge.to_json() for charge in by_class]}
        entry = write.entry("declared", collection.number, fields, arrays)
        book.store(parts.moved(grown, entry.number))
        return cls(entry.number, tuple(by_class), frozenset())

    def check_budgets(self, book: Accounts, collection: Collection) -> None:
        """Raise unless the budgets in force allow the whole programme, also where they were lowered since.

        It was within those of its time; of others it is computed again.
        """
        declared = max(
            entry.number
            for kind in ("opened", "budgets")
            for entry in book.entries(collection.number, kind)
            if entry.number < self.entry
        )
        then, ancestors = book.required_array(declared, "budgets"), collection.ancestors(self.classes)
        then = then[collection.ancestors(len(then))]
        if (collection.epsilons >= then[:, 0]).all() and (collection.deltas >= then[:, 1]).all():
            return
        exposures = [exposure for charge in self.charges for exposure in charge.rows(ancestors).exposures[0]]
        over = np.flatnonzero(~(epsilons(exposures, collection.deltas, "pld") <= collection.epsilons))
        if len(over):
            place = int(np.argmax(book.members(collection) == over[0]))
            raise AccountError(
                f"owner {book.name_at(collection, place)!r}: its budget was lowered to "
                f"epsilon={collection.epsilons[over[0]]:g}, which does not allow the programme that was declared; "
                "nothing more of it takes place"
            )

    def part(self, charge: Charge, ancestors: IntArray) -> int:
        """Which of the declared trainings ``charge`` is, of those that are left.

        Args:
            charge: What is to be reserved, a row for each class of now.
            ancestors: The class of then that each class of now comes from.
        """
        for part, declared in enumerate(self.charges):
            same = declared.steps == charge.steps and charge.trials is None
            if part not in self.used and same and np.array_equal(declared.table[ancestors], charge.table):
                return part
        raise AccountError(
            "this training is not one that the collection's programme has left; run the declared ones as declared, "
            "each once, or open another collection"
        )
