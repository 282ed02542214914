"""Account books: collections of units, their budgets, and everything that was ever charged.

What a plan will spend at most is reserved before the first release, and committed before noise is drawn
(`inosgd.accounts.reservations`).

Guarantee:
    Let an owner's account have order α. At every moment, the releases that were committed have together a Rényi
    divergence, at order α, of at most what the budget that was in force at the last commitment allows, for each unit of
    the owner: by the theorem in `inosgd.accounts.filter`, if every release on the collection's units goes through the
    book, and if no change of the budget depends on what was released; if one does, at most what the largest budget
    that could have been in force allows. What is reserved and committed never exceeds the budget in force when it was
    reserved.

After a budget was lowered, commitments of running trainings are refused where the lowered budget does not allow them;
what was spent before stays as it is.
"""

from __future__ import annotations

import datetime
import hmac
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Names
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounts.chain import START, Array, Entry, Head
from inosgd.accounts.charge import Charge, cost
from inosgd.accounts.collection import COLUMNS, Classes, Collection, roster_digest, split
from inosgd.accounts.database import Database, connect
from inosgd.accounts.filter import UNIT
from inosgd.accounts.opening import check_names, first_classes, open_accounts
from inosgd.accounts.programme import Programme
from inosgd.accounts.reservations import Reservation, add_reservation, ended, keep_reservation, read_reservations
from inosgd.accounts.schema import migrate
from inosgd.accounts.standings import (
    OPEN,
    STATES,
    Standing,
    check_may_change,
    epsilons_asked,
    keep_standings,
    read_standings,
)
from inosgd.accounts.writing import Writing
from inosgd.errors import AccountError, AccountExceededError, InvalidArgumentError, UnknownOwnerError
from inosgd.ledger.records import Position
from inosgd.owners import EXAMPLE, Budget, OwnerTable
from inosgd.planning.rooms import Rooms
from inosgd.units import parts_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FEW = 1000
"""Up to so many owners are looked up one by one."""

LEAST_LEFT = 1e-3
"""With less than this share of its room an owner takes no further part in a run: it could take next to none."""

Clock = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """The time of the machine."""
    return datetime.datetime.now(datetime.UTC)


def in_one_state(
    read: Callable[Concatenate[Accounts, Arguments], Result],
) -> Callable[Concatenate[Accounts, Arguments], Result]:
    """A function that reads a book, its first argument, in one state of it, whatever others write meanwhile."""

    @wraps(read)
    def run(book: Accounts, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with book.database.reading():
            return read(book, *args, **kwargs)

    return run


class Accounts:
    """A book. Every method that changes it is one transaction: it happens whole or not at all.

    Use one in each process and thread; a connection does not survive a fork.
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        """From an open database; `open` and `create` give one."""
        self._database, self._clock = database, clock
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        ((self.id, self._salt),) = database.rows("SELECT id, salt FROM book")

    @classmethod
    def open(cls, url: str, *, folder: Path | None = None, clock: Clock = utc_now) -> Self:
        """The book at ``url``, brought to the current schema.

        Args:
            url: ``sqlite:///accounts.db``, or ``postgresql://host/database`` (the extra ``accounts``).
            folder: What a path in ``url`` is relative to; by default the working folder.
            clock: The time of new entries.
        """
        database = connect(url, folder=folder)
        if not database.has("book"):
            database.close()
            raise InvalidArgumentError(f"account={url!r}: there is no book; make one with `inosgd account create`")
        return cls(database, clock=clock)

    @classmethod
    def create(cls, url: str, *, folder: Path | None = None, clock: Clock = utc_now) -> Self:
        """A new book at ``url``."""
        database = connect(url, folder=folder, create=True)
        if database.has("book"):
            database.close()
            raise InvalidArgumentError(f"account={url!r}: there is a book already; open it")
        return cls(database, clock=clock)

    def close(self) -> None:
        """End the connection."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Collections -----------------------------------------------------------------------------------------------

    def open_collection(
        self,
        name: str,
        table: OwnerTable,
        *,
        orders: IntArray | int | None = None,
        fingerprints: Array | None = None,
        acknowledged: Names[str] = (),
    ) -> Collection:
        """Open accounts for the owners of ``table``, each with its budget and, from now on, one order.

        Args:
            name: What the collection of units is called.
            table: Owners, budgets and numbers of units.
            orders: One for all, or one for each owner; by default that at which most Gaussian releases fit.
            fingerprints: Of the units (`inosgd.accounts.fingerprints`).
            acknowledged: Older collections that may have units in common with this one. Their charges are not added to
                those of this one.

        Raises:
            AccountError: If units are in an older collection that is not acknowledged.
        """
        check_names(name, table)
        classes = first_classes(table, orders)
        with self._writing() as write:
            return open_accounts(self, write, name, table, classes, fingerprints, acknowledged)

    def collection(self, name: str | None = None) -> Collection:
        """The collection called ``name``; without one, the only one there is."""
        columns = f"SELECT id, name, owners, roster, members, {', '.join(COLUMNS)} FROM collections"  # noqa: S608
        if name is None:
            found = self._database.rows(columns + " LIMIT 2")
            if len(found) != 1:
                raise InvalidArgumentError(f"collection: the book has {len(found) or 'none'}; name one")
        else:
            found = self._database.rows(columns + " WHERE name = ?", [name])
            if not found:
                known = ", ".join(self.collections()) or "none"
                raise InvalidArgumentError(f"collection={name!r}: there is no such one; the book has {known}")
        return Collection.from_row(found[0])

    def collection_numbered(self, number: int) -> Collection:
        """The collection with this number."""
        return self.collection(self._database.rows("SELECT name FROM collections WHERE id = ?", [number])[0][0])

    @in_one_state
    def collection_of_one(self, name: str | None, owner: str) -> Collection:
        """The collection with one class, that of ``owner``; the columns of the others are not read.

        Classes are numbered anew when any owner changes its budget, so that number and columns are of one state.
        """
        chosen, values = ("1 = 1", []) if name is None else ("name = ?", [name])
        found = self._database.rows(
            f"SELECT id, name, owners, roster, members FROM collections WHERE {chosen}",  # noqa: S608
            values,
        )
        if len(found) != 1:
            return self.collection(name)  # which says what is wrong
        empty = Collection(*found[0], *(np.zeros(0, dtype=kind) for kind in COLUMNS.values()))
        number = self.class_of(empty, self.place(empty, owner))
        widths = {column: np.dtype(kind).itemsize for column, kind in COLUMNS.items()}
        pieces = ", ".join(f"substr({column}, {number * width + 1}, {width})" for column, width in widths.items())
        row = self._database.rows(f"SELECT {pieces} FROM collections WHERE id = ?", [empty.number])[0]  # noqa: S608
        return Collection.from_row((*found[0], *row))

    def collections(self) -> list[str]:
        """The names of all collections."""
        return [name for (name,) in self._database.rows("SELECT name FROM collections ORDER BY id")]

    def set_budgets(
        self,
        name: str | None,
        budgets: Mapping[str, Budget],
        *,
        state: str = OPEN,
        seen: int | None = None,
        by: str | None = None,
        also: Callable[[int], None] | None = None,
    ) -> int:
        """Raise or lower budgets of owners, pause them or let them withdraw; their orders stay.

        After a lowering nothing more is charged than the new budget allows, also not by trainings that have reserved
        already. What was spent stays as it is. Units of several owners get the smallest epsilon and the smallest delta
        among them, as they are now.

        Guarantee:
            While an owner is paused, and after it has withdrawn, nothing is charged to it: its epsilon in force is 0.

        Args:
            name: Of the collection.
            budgets: What owners ask for; of one that is paused, what is in force again when it resumes.
            state: "open", "paused" or "withdrawn" from now on (`inosgd.accounts.standings`).
            seen: The entry of the owners' last change, as the caller knows it; any other is refused.
            by: Who has asked for it, for the record.
            also: Called with the number of the entry, inside the transaction.

        Returns:
            The number of the entry.

        Raises:
            AccountError: If an owner has withdrawn, or has changed its budget since ``seen``; nothing is then changed.
        """
        _validate.one_of(STATES, state=state)
        with self._writing() as write:
            collection = self.collection(name)
            check_may_change(read_standings(self._database, collection.number, [*budgets]), [*budgets], seen)
            members = self.members(collection)
            epsilons, deltas = collection.epsilons[members], collection.deltas[members]
            places = self.places(collection, tuple(budgets))
            asked = np.array([(budget.epsilon, budget.delta) for budget in budgets.values()]).reshape(-1, 2)
            epsilons[places], deltas[places] = asked[:, 0] if state == OPEN else 0.0, asked[:, 1]
            self._hold_to_strictest(collection, budgets, epsilons, deltas)
            if not (np.isfinite(epsilons).all() and np.isfinite(asked).all()):
                raise InvalidArgumentError("epsilon=inf: an account needs a finite budget; give one")
            parts = split(members, len(collection), [epsilons, deltas])
            changed = collection.with_parents(parts.parents)
            of_class = epsilons[parts.first], deltas[parts.first]
            arrays = {"budgets": np.column_stack(of_class), "places": places, "asked": asked, **parts.arrays}
            fields = {"owners": len(budgets), "state": state, "by": by}
            entry = write.entry("budgets", collection.number, fields, arrays)
            changed = replace(changed, epsilons=of_class[0], deltas=of_class[1])
            self.store(parts.moved(changed, entry.number))
            self._database.rows("UPDATE collections SET changed = ? WHERE id = ?", [entry.number, collection.number])
            standings = {owner: Standing(state, budget, entry.number) for owner, budget in budgets.items()}
            keep_standings(self._database, collection.number, standings)
            if also is not None:
                also(entry.number)
        return entry.number

    def last_change(self, collection: int) -> int:
        """The entry of the last change of budgets of a collection; 0 if there is none. One row, by its key."""
        return int(self._database.rows("SELECT changed FROM collections WHERE id = ?", [collection])[0][0])

    def standings(self, collection: Collection, owners: Sequence[str] | None = None) -> dict[str, Standing]:
        """Where owners stand that have changed their budget, of all or of some."""
        return read_standings(self._database, collection.number, owners)

    @in_one_state
    def standing(self, name: str | None, owner: str) -> Standing:
        """Where one owner stands."""
        collection = self.collection_of_one(name, owner)
        budget = Budget(epsilon=float(collection.epsilons[0]) or 1.0, delta=float(collection.deltas[0]))
        return self.standings(collection, [owner]).get(owner, Standing(OPEN, budget))

    def budgets_at(self, collection: Collection, names: Sequence[str], entry: int) -> FloatArray:
        """The epsilons and deltas that were in force for owners after an entry, a row each."""
        budgets = self._last_array(collection, "budgets", entry)
        members = self.required_array(self._last_array(collection, "members", budgets), "members")
        found: FloatArray = self.required_array(budgets, "budgets")[members[self.places(collection, names)]]
        return found

    def _last_array(self, collection: Collection, name: str, until: int) -> int:
        """The last entry of a collection, up to ``until``, with an array of this name."""
        statement = (
            "SELECT MAX(arrays.entry) FROM arrays JOIN entries ON entries.number = arrays.entry "
            "WHERE entries.collection = ? AND arrays.name = ? AND arrays.entry <= ?"
        )
        return int(self._database.rows(statement, [collection.number, name, until])[0][0])

    def _hold_to_strictest(
        self, collection: Collection, changed: Names[str], epsilons: FloatArray, deltas: FloatArray
    ) -> None:
        """Give accounts of units that several owners share what the strictest of them allows, where one has changed."""
        unit = self.entries(collection.number, "opened")[0].fields["unit"]
        names = [] if unit == EXAMPLE else self.names(collection)
        place_of = {name: place for place, name in enumerate(names)}
        for place, name in enumerate(names):
            parts = parts_of(name, place_of)
            if parts and name in changed:
                fix = f"it stands for a {unit} of several owners; change the budgets of {' and '.join(parts)}"
                raise _validate.fail("owner", name, fix)
            if any(part in changed for part in parts):
                rows = [place_of[part] for part in parts]
                epsilons[place], deltas[place] = epsilons[rows].min(), deltas[rows].min()

    # Charges ---------------------------------------------------------------------------------------------------

    def left(self, name: str | None, table: OwnerTable, *, share: float = 1.0) -> Rooms:
        """A share of what is left to each owner of ``table``, for `inosgd.planning.make_plan`."""
        if not 0 < share <= 1:
            raise _validate.fail("share", share, "give a number greater than 0 and at most 1")
        collection = self.collection(name)
        return self._rooms(collection, table, np.floor(collection.left * share))

    def left_to_run(self, name: str | None, table: OwnerTable, run: Path, *, share: float = 1.0) -> Rooms:
        """What is left to a run that has drawn on the book before, if it ends its reservation and reserves anew.

        It is ``share`` of what would be left to it if it had not begun, less what was charged for it, those of its
        steps that were rolled back included; never more than is left. An owner with less than a thousandth of its room
        is given none.
        """
        collection = self.collection(name)
        charged, held = self._of_run(collection, run)
        others = collection.spent - charged + collection.held - held
        units = np.floor(np.maximum(collection.rooms - others, 0) * share) - charged
        return self._rooms(collection, table, np.where(units > LEAST_LEFT * collection.rooms, units, 0.0))

    def _of_run(self, collection: Collection, run: Path) -> tuple[IntArray, IntArray]:
        """What is charged for a run, and what is held for it, class by class."""
        charged = held = np.zeros(len(collection), dtype=np.int64)
        for state in read_reservations(self._database, "run = ? AND collection = ?", [str(run), collection.number]):
            prices = self._prices_of(state, collection)
            taken = cost(prices, state.releases, state.committed)
            charged = charged + taken
            if state.state == "reserved":
                held = held + cost(prices, state.releases, state.total) - taken
        return charged, held

    def whole(self, name: str | None, table: OwnerTable) -> Rooms:
        """What the budgets in force allow the owners of ``table`` in all, whatever was charged."""
        collection = self.collection(name)
        return self._rooms(collection, table, collection.rooms)

    def check_unit(self, name: str | None, table: OwnerTable) -> None:
        """Raise unless the budgets of ``table`` protect what those of the collection do.

        A training that protects each row says nothing about a patient with several rows, so that it cannot be charged
        to the account of patients, nor the other way round.
        """
        collection = self.collection(name)
        unit = self.entries(collection.number, "opened")[0].fields["unit"]
        if unit != table.unit:
            raise AccountError(
                f"collection {collection.name!r}: its budgets protect each {unit}, and those of this training each "
                f"{table.unit}; gather rows in the same units, or open a collection for them"
            )

    def _rooms(self, collection: Collection, table: OwnerTable, units: Array) -> Rooms:
        self.check_unit(collection.name, table)
        classes = self.members(collection)[self.places(collection, table.names)]
        return Rooms(collection.orders[classes], (units * (UNIT * (1 - 1e-12)))[classes])

    def reserve(
        self,
        name: str | None,
        names: Sequence[str],
        charge: Charge,
        *,
        purpose: str = "training",
        run: Path | None = None,
        plan: str | None = None,
        begun: int = 0,
        identifier: str | None = None,
    ) -> Reservation:
        """Reserve what ``charge`` will cost the owners ``names``, row by row.

        Raises:
            AccountExceededError: If some owner's account has less left; nothing is then reserved.
        """
        identifier = identifier or uuid.uuid4().hex
        with self._writing() as write:
            collection = self.collection(name)
            table = charge.at(self.places(collection, names), collection.owners)
            parts = split(self.members(collection), len(collection), list(table.T))
            grown, asked = collection.with_parents(parts.parents), replace(charge, table=table[parts.first])
            programme = Programme.of(self, collection)
            if programme is None:
                part, prices = None, asked.prices(grown.orders)
            else:  # paid for when it was declared
                programme.check_budgets(self, collection)
                part = programme.part(asked, grown.ancestors(programme.classes))
                prices = np.zeros((len(grown), len(asked.releases)), dtype=np.int64)
            total = cost(prices, asked.releases, sum(asked.releases))
            self._refuse(grown, parts.members, total, grown.left)
            fields = {
                "reservation": identifier,
                "purpose": purpose,
                "plan": plan,
                "begun": begun,
                "releases": list(asked.releases),
                **asked.to_json(),
                **({} if programme is None else {"programme": [programme.entry, part]}),
            }
            arrays = {"mechanisms": asked.table, "prices": prices, **parts.arrays}
            entry = write.entry("reserved", collection.number, fields, arrays)
            self.store(parts.moved(replace(grown, held=grown.held + total), entry.number))
            state = Reservation(
                identifier,
                collection.number,
                entry.number,
                "reserved",
                purpose,
                None if run is None else str(run),
                plan,
                begun,
                asked.releases,
                0,
            )
            add_reservation(self._database, state)
        return state

    def commit(self, identifier: str, releases: int, position: Position | None = None) -> Reservation:
        """Charge the first ``releases`` releases of a reservation, before the noise of any new one is drawn.

        Args:
            identifier: Of the reservation.
            releases: How many in all, those committed before included.
            position: Where the run's ledger ends now; a run whose ledger ends before it does not go on.

        Raises:
            AccountError: If so many are committed already: a process beside this one draws on the same reservation.
            AccountExceededError: If a budget was lowered and does not allow it; nothing is then charged.
        """
        with self._writing() as write:
            state = self._open_reservation(identifier)
            if releases <= state.committed:
                raise AccountError(
                    f"reservation {identifier}: {state.committed} releases are committed already, so that a copy of "
                    "the run draws on it too; let one of them go on, alone"
                )
            if not releases <= state.total:
                raise _validate.fail("releases", releases, f"{state.total} are reserved; give at most so many")
            collection, prices = self._prices_now(state)
            more = cost(prices, state.releases, releases) - cost(prices, state.releases, state.committed)
            available = np.maximum(collection.rooms - collection.spent, 0)
            self._refuse(collection, self.members(collection), more, available)
            programme = Programme.of(self, collection)
            if programme is not None:
                programme.check_budgets(self, collection)
            fields = {
                "reservation": identifier,
                "releases": releases,
                "ledger": None if position is None else [*position],
            }
            write.entry("committed", collection.number, fields)
            self.store(replace(collection, spent=collection.spent + more, held=collection.held - more))
            state = replace(state, committed=releases)
            keep_reservation(self._database, state)
        return state

    def settle(self, identifier: str, taken: int | None = None) -> Reservation:
        """End a reservation of which ``taken`` releases took place; what no noise was drawn for is given back.

        Args:
            identifier: Of the reservation.
            taken: As the process knows that took them; None where it is gone: all that are committed by now.
        """
        with self._writing() as write:
            state = self._open_reservation(identifier)
            taken = state.committed if taken is None else taken
            if not 0 <= taken <= state.committed:
                fix = f"{state.committed} releases are committed, and no noise is drawn before that; check the ledger"
                raise _validate.fail("taken", taken, fix)
            collection, prices = self._prices_now(state)
            committed = cost(prices, state.releases, state.committed)
            spent = collection.spent - committed + cost(prices, state.releases, taken)
            held = collection.held - (cost(prices, state.releases, state.total) - committed)
            end = ended(taken, state.total)
            write.entry("settled", collection.number, {"reservation": identifier, "releases": taken, "state": end})
            self.store(replace(collection, spent=spent, held=held))
            state = replace(state, state=end, committed=taken)
            keep_reservation(self._database, state)
        return state

    def declare(self, name: str | None, names: Sequence[str], charges: Sequence[Charge]) -> Programme:
        """Declare all trainings that will ever draw on a collection; see `inosgd.accounts.programme`."""
        with self._writing() as write:
            collection = self.collection(name)
            return Programme.declared(self, write, collection, names, charges)

    def look(self, name: str | None, purpose: str) -> None:
        """Book that private data were looked at internally, such as by ``compare``. No budget is charged for it."""
        with self._writing() as write:
            collection = self.collection(name)
            write.entry("looked", collection.number, {"purpose": purpose})

    def table(self, name: str | None = None) -> OwnerTable:
        """Owners of a collection, with their budgets and the numbers of units that it was opened with.

        Of owners that are paused or have withdrawn it is the budget that they asked for; what is `left` to them is 0.
        """
        collection = self.collection(name)
        members = self.members(collection)
        opened = self.entries(collection.number, "opened")[0]
        names, units = tuple(self.names(collection)), self.required_array(opened.number, "units")
        epsilons = collection.epsilons[members]
        if not (epsilons > 0).all():
            epsilons = epsilons_asked(names, epsilons, self.standings(collection))
        return OwnerTable(names, epsilons, collection.deltas[members], units, opened.fields["unit"])

    # Reading ---------------------------------------------------------------------------------------------------

    @property
    def database(self) -> Database:
        """The connection, for tables that are not part of the chain."""
        return self._database

    def now(self) -> datetime.datetime:
        """The time by the book's clock, in UTC."""
        return self._clock().astimezone(datetime.UTC)

    @property
    def head(self) -> Head:
        """The end of the chain, to be published."""
        found = self._database.rows("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1")
        return Head(*found[0]) if found else Head(0, START)

    def entries(self, collection: int | None = None, kind: str | None = None) -> list[Entry]:
        """All entries in their order, or those of a collection or of a kind."""
        wanted = {"collection": collection, "kind": kind}
        values = [value for value in wanted.values() if value is not None]
        chosen = " AND ".join(f"{name} = ?" for name, value in wanted.items() if value is not None) or "1 = 1"
        statement = f"SELECT number, time, collection, kind, body, previous, hash FROM entries WHERE {chosen}"  # noqa: S608
        return [Entry(*row) for row in self._database.rows(statement + " ORDER BY number", values)]

    def array(self, entry: int, name: str) -> Array | None:
        """An array of an entry, if it has one of this name."""
        found = self._database.rows(
            "SELECT type, shape, content FROM arrays WHERE entry = ? AND name = ?", [entry, name]
        )
        if not found:
            return None
        kind, shape, content = found[0]
        return np.frombuffer(content, dtype=kind).reshape(json.loads(shape))

    def required_array(self, entry: int, name: str) -> Array:
        """An array that an entry must have.

        Raises:
            AccountError: If the book has lost it.
        """
        found = self.array(entry, name)
        if found is None:
            raise AccountError(f"entry {entry}: its array {name!r} is missing; restore the book from a copy")
        return found

    def row(self, entry: int, name: str, row: int) -> Array:
        """One row of an array, without reading the others."""
        statement = "SELECT type, shape FROM arrays WHERE entry = ? AND name = ?"
        kind, shape = self._database.rows(statement, [entry, name])[0]
        width = np.dtype(kind).itemsize * int(np.prod(json.loads(shape)[1:], dtype=np.int64))
        statement = "SELECT substr(content, ?, ?) FROM arrays WHERE entry = ? AND name = ?"
        (content,) = self._database.rows(statement, [row * width + 1, width, entry, name])[0]
        return np.frombuffer(content, dtype=kind)

    def members(self, collection: Collection) -> Classes:
        """Of which class each owner of a collection is."""
        return self.required_array(collection.members, "members")

    def places(self, collection: Collection, names: Sequence[str]) -> IntArray:
        """Where owners stand in the columns of their collection."""
        if len(names) == collection.owners and roster_digest(names) == collection.roster:
            return np.arange(len(names))
        if len(names) <= FEW:
            return np.array([self.place(collection, name) for name in names], dtype=np.int64)
        known = dict(self._database.rows("SELECT name, place FROM owners WHERE collection = ?", [collection.number]))
        missing = next((name for name in names if name not in known), None)
        if missing is not None:
            raise _unknown(collection, missing)
        return np.array([known[name] for name in names], dtype=np.int64)

    def place(self, collection: Collection, name: str) -> int:
        """Where an owner stands."""
        found = self._database.rows(
            "SELECT place FROM owners WHERE collection = ? AND name = ?", [collection.number, name]
        )
        if not found:
            raise _unknown(collection, name)
        return int(found[0][0])

    def class_of(self, collection: Collection, place: int) -> int:
        """The class of one owner, without reading those of the others."""
        return int(self.row(collection.members, "members", place)[0])

    def name_at(self, collection: Collection, place: int) -> str:
        """The name of the owner at a place."""
        statement = "SELECT name FROM owners WHERE collection = ? AND place = ?"
        return str(self._database.rows(statement, [collection.number, int(place)])[0][0])

    def names(self, collection: Collection) -> list[str]:
        """The names of all owners, in the order of their places."""
        statement = "SELECT name FROM owners WHERE collection = ? ORDER BY place"
        return [name for (name,) in self._database.rows(statement, [collection.number])]

    def reservation(self, identifier: str) -> Reservation:
        """Where a reservation stands."""
        found = read_reservations(self._database, "id = ?", [identifier])
        if not found:
            raise AccountError(
                f"reservation {identifier}: the book has none; if the run has it from this book, an old copy of the "
                "book was restored: put the newest back"
            )
        return found[0]

    def reservations(self, *, only_open: bool = False) -> list[Reservation]:
        """All reservations, or those that may still be charged."""
        return read_reservations(self._database, "state = 'reserved'" if only_open else "1 = 1")

    def looks(self, collection: Collection) -> dict[str, int]:
        """How often private data of a collection were looked at without a charge, by purpose."""
        purposes = [entry.fields["purpose"] for entry in self.entries(collection.number, "looked")]
        return {purpose: purposes.count(purpose) for purpose in sorted(set(purposes))}

    def salt_of(self, name: str) -> bytes:
        """What an owner's name is hashed with, so that a receipt tells no other owner's name."""
        return hmac.digest(self._salt, name.encode(), "sha256")

    # Inside ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Writing]:
        with self._database.writing():
            yield Writing(self._database, self.head, self._clock())

    def store(self, collection: Collection) -> None:
        """Keep where a collection stands, inside a transaction."""
        columns = ", ".join(f"{name} = ?" for name in COLUMNS)
        self._database.rows(
            f"UPDATE collections SET members = ?, classes = ?, {columns} WHERE id = ?",  # noqa: S608
            [collection.members, len(collection), *collection.contents(), collection.number],
        )

    def _open_reservation(self, identifier: str) -> Reservation:
        state = self.reservation(identifier)
        if state.state != "reserved":
            raise AccountError(f"reservation {identifier}: it has ended ({state.state}); reserve anew")
        return state

    def _prices_now(self, state: Reservation) -> tuple[Collection, IntArray]:
        """The collection of a reservation, and its prices for the classes that there are now."""
        collection = self.collection_numbered(state.collection)
        return collection, self._prices_of(state, collection)

    def _prices_of(self, state: Reservation, collection: Collection) -> IntArray:
        prices = self.required_array(state.entry, "prices")
        of_classes: IntArray = prices[collection.ancestors(len(prices))]
        return of_classes

    def _refuse(self, collection: Collection, members: Classes, asked: IntArray, left: IntArray) -> None:
        """Raise unless every class that is asked for something has it left."""
        over = np.flatnonzero((asked > left) & (asked > 0))
        if len(over):
            worst = int(over[np.argmin(left[over] / asked[over])])
            place = int(np.argmax(members == worst))
            raise AccountExceededError(
                self.name_at(collection, place),
                float(asked[worst]) * UNIT,
                float(left[worst]) * UNIT,
                int(collection.orders[worst]),
            )


def _unknown(collection: Collection, name: str) -> UnknownOwnerError:
    return UnknownOwnerError(
        name, f"owner {name!r} has no account in collection {collection.name!r}; open one with its owners"
    )
