"""Verification of a book: the chain, every array, every price by dp-accounting, and every sum, from the entries alone.

The tables ``collections``, ``owners``, ``reservations`` and ``standings`` are what the entries add up to; they are
computed again and compared. An edited book shows in the chain, unless every later hash was computed again too; a book
that was computed again, or an old copy, shows against a head that was published (`Accounts.head`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import epsilons
from inosgd.accounting.reference import ORDERS, reference_divergences
from inosgd.accounting.selection import selection_divergences
from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.chain import START, Array, Entry, Head, described, header_hash
from inosgd.accounts.charge import Charge, cost
from inosgd.accounts.collection import COLUMNS, Collection
from inosgd.accounts.filter import UNIT
from inosgd.accounts.programme import Programme
from inosgd.accounts.reservations import Reservation, ended
from inosgd.accounts.standings import WITHDRAWN, Standing
from inosgd.errors import AccountError, InosgdError
from inosgd.owners import Budget

RELATIVE, ABSOLUTE = 1e-6, 4 * UNIT
"""How far below dp-accounting's figure a price may be: roundings of either."""


@dataclass
class BookReport:
    """What a verification saw.

    Attributes:
        head: The end of the chain.
        entries: How many entries were whole and in their place.
        prices: How many distinct prices dp-accounting has computed again.
        findings: What is wrong; empty if nothing is.
    """

    head: Head
    entries: int = 0
    prices: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


@in_one_state
def verify_book(book: Accounts, head: Head | None = None) -> BookReport:
    """Compute everything in a book again; changes nothing.

    Args:
        book: The book.
        head: A head that was published earlier: the book must have it.
    """
    entries = book.entries()
    report = BookReport(book.head)
    report.findings += _chain_findings(entries)
    report.findings += [] if head is None else _head_findings(entries, head)
    if report.findings:
        return report
    replayed = _Replay(book, report)
    for entry in entries:
        try:
            replayed.take(entry)
        except (AccountError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            report.findings.append(f"entry {entry.number} ({entry.kind}) cannot stand there: {error}")
            return report
        report.entries += 1
    try:
        report.findings += replayed.differences()
    except (InosgdError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        report.findings.append(f"the tables of the book cannot be read: {error}")
    return report


def _chain_findings(entries: list[Entry]) -> list[str]:
    previous, time = Head(0, START), ""
    for entry in entries:
        if entry.number != previous.number + 1 or entry.previous != previous.hash:
            return [f"entry {previous.number + 1} is missing or was replaced; restore the book from a copy"]
        if header_hash(entry.header) != entry.hash:
            return [f"entry {entry.number} ({entry.kind}) was edited: it does not match its hash"]
        if entry.time < time:
            return [f"entry {entry.number} ({entry.kind}) is dated before the one it follows"]
        previous, time = Head(entry.number, entry.hash), entry.time
    return []


def _head_findings(entries: list[Entry], head: Head) -> list[str]:
    if head.number == 0:
        return []
    if head.number > len(entries):
        return [
            f"the book has {len(entries)} entries, and {head.number} when its head was published: this is an old copy; "
            "put the newest back, because what is missing has been spent"
        ]
    if entries[head.number - 1].hash != head.hash:
        return [f"entry {head.number} is not the one that was published: the book was written anew, or is another one"]
    return []


class _Replay:
    """Where everything stands after the entries so far."""

    def __init__(self, book: Accounts, report: BookReport) -> None:
        self.book, self.report = book, report
        self.collections: dict[int, Collection] = {}
        self.reservations: dict[str, tuple[Reservation, IntArray]] = {}
        self.programmes: dict[int, Programme] = {}
        self.standings: dict[int, dict[int, Standing]] = {}
        self.in_force: dict[int, FloatArray] = {}
        self.changed: dict[int, int] = {}
        self._known: dict[tuple[Any, ...], float] = {}

    def take(self, entry: Entry) -> None:
        """One more entry."""
        arrays = self._arrays(entry)
        takers: dict[str, Callable[[Entry, dict[str, Any], dict[str, Array]], None]] = {
            "opened": self._opened,
            "budgets": self._budgets,
            "reserved": self._reserved,
            "committed": self._committed,
            "settled": self._settled,
            "declared": self._declared,
            "looked": lambda *_: None,
        }
        takers[entry.kind](entry, entry.fields, arrays)

    def _arrays(self, entry: Entry) -> dict[str, Array]:
        found = {}
        for name, expected in entry.fields["arrays"].items():
            array = self.book.array(entry.number, name)
            if array is None or described(array) != expected:
                raise AccountError(f"its array {name!r} was edited or is missing")
            found[name] = array
        return found

    def _opened(self, entry: Entry, fields: dict[str, Any], arrays: dict[str, Array]) -> None:
        budgets, count = arrays["budgets"], len(arrays["budgets"])
        zeros = np.zeros(count, dtype=np.int64)
        number = int(entry.collection or 0)
        if number in self.collections:
            raise AccountError(f"collection {number} was opened before")
        self.collections[number] = Collection(
            number,
            fields["name"],
            fields["owners"],
            fields["roster"],
            entry.number,
            budgets[:, 0],
            budgets[:, 1],
            arrays["orders"],
            np.full(count, -1, dtype=np.int32),
            zeros,
            zeros,
        )

    def _budgets(self, entry: Entry, fields: dict[str, Any], arrays: dict[str, Array]) -> None:
        grown = self._grown(entry, arrays)
        self._keep(replace(grown, epsilons=arrays["budgets"][:, 0], deltas=arrays["budgets"][:, 1]))
        stands = self.standings.setdefault(grown.number, {})
        in_force = self.in_force.setdefault(grown.number, np.full((grown.owners, 2), np.nan))
        if "places" in arrays:  # there are none from before there were standings
            self.changed[grown.number] = entry.number
            for place, (epsilon, delta) in zip(arrays["places"].tolist(), arrays["asked"].tolist(), strict=True):
                asked = Standing(fields["state"], Budget(epsilon=epsilon, delta=delta), entry.number)
                if place in stands and stands[place].state == WITHDRAWN:
                    raise AccountError("it changes the budget of an owner that has withdrawn")
                stands[place], in_force[place] = asked, (asked.epsilon_in_force, delta)
        now = arrays["budgets"][self.book.members(grown)]
        if (now != in_force)[~np.isnan(in_force)].any():
            raise AccountError("a budget in force is not what its owner asked for")

    def _reserved(self, entry: Entry, fields: dict[str, Any], arrays: dict[str, Array]) -> None:
        collection, prices = self._grown(entry, arrays), arrays["prices"]
        charge = Charge.from_json(fields, arrays["mechanisms"])
        releases = tuple(fields["releases"])
        if releases != charge.releases or prices.shape != (len(collection), len(releases)):
            raise AccountError("its prices are not for its releases")
        programme = self.programmes.get(collection.number)
        if (programme is not None) != ("programme" in fields):
            raise AccountError("it is not part of the programme that was declared")
        if programme is None:
            self._check_prices(entry, collection, charge, prices)
        else:
            programme.check_budgets(self.book, collection)
            part = programme.part(charge, collection.ancestors(programme.classes))
            if fields["programme"] != [programme.entry, part]:
                raise AccountError(f"it is part {part} of the programme, and is said to be another")
            self.programmes[collection.number] = replace(programme, used=programme.used | {part})
        total = cost(prices, releases, sum(releases))
        self._within(entry, collection, total, collection.left)
        self._keep(replace(collection, held=collection.held + total))
        state = Reservation(
            fields["reservation"],
            collection.number,
            entry.number,
            "reserved",
            fields["purpose"],
            None,
            fields["plan"],
            fields["begun"],
            releases,
            0,
        )
        if state.id in self.reservations:
            raise AccountError(f"reservation {state.id} was made before")
        self.reservations[state.id] = state, prices

    def _committed(self, entry: Entry, fields: dict[str, Any], _: dict[str, Array]) -> None:
        collection, state, prices = self._at(entry, fields)
        if collection.number in self.programmes:
            self.programmes[collection.number].check_budgets(self.book, collection)
        if not state.committed < fields["releases"] <= state.total:
            raise AccountError("it commits releases that were not reserved, or are committed already")
        more = cost(prices, state.releases, fields["releases"]) - cost(prices, state.releases, state.committed)
        self._within(entry, collection, more, np.maximum(collection.rooms - collection.spent, 0))
        self._keep(replace(collection, spent=collection.spent + more, held=collection.held - more))
        self._set(replace(state, committed=fields["releases"]))

    def _settled(self, entry: Entry, fields: dict[str, Any], _: dict[str, Array]) -> None:
        collection, state, prices = self._at(entry, fields)
        taken = fields["releases"]
        if not 0 <= taken <= state.committed:
            raise AccountError("it settles releases that were not committed")
        if fields["state"] != ended(taken, state.total):
            raise AccountError(f"a reservation with {taken} releases does not end as {fields['state']}")
        committed = cost(prices, state.releases, state.committed)
        spent = collection.spent - committed + cost(prices, state.releases, taken)
        held = collection.held - (cost(prices, state.releases, state.total) - committed)
        self._keep(replace(collection, spent=spent, held=held))
        self._set(replace(state, state=fields["state"], committed=taken))

    def _declared(self, entry: Entry, fields: dict[str, Any], arrays: dict[str, Array]) -> None:
        collection = self._grown(entry, arrays)
        if any(state.collection == collection.number for state, _ in self.reservations.values()):
            raise AccountError("a programme is declared before the first training")
        if collection.number in self.programmes:
            raise AccountError("a programme was declared before")
        charges = [
            Charge.from_json(each, arrays[f"mechanisms {part}"]) for part, each in enumerate(fields["trainings"])
        ]
        spent = epsilons([each for charge in charges for each in charge.exposures[0]], collection.deltas, "pld")
        if not (spent <= collection.epsilons).all():
            self.report.findings.append(f"entry {entry.number}: the programme exceeds a budget")
        self.programmes[collection.number] = Programme(entry.number, tuple(charges), frozenset())
        self._keep(collection)

    def _grown(self, entry: Entry, arrays: dict[str, Array]) -> Collection:
        collection = self.collections[int(entry.collection or 0)]
        if "members" not in arrays:
            return collection
        came_from = np.concatenate([np.arange(len(collection)), arrays["parents"]])
        if not np.array_equal(came_from[arrays["members"]], self.book.members(collection)):
            raise AccountError("an owner is in a class that does not come from its own, and has spent what that has")
        return replace(collection.with_parents(arrays["parents"]), members=entry.number)

    def _at(self, entry: Entry, fields: dict[str, Any]) -> tuple[Collection, Reservation, IntArray]:
        state, prices = self.reservations[fields["reservation"]]
        if entry.collection != state.collection:  # whose owners would not find it in their receipts
            raise AccountError(f"reservation {state.id} is of collection {state.collection}")
        if state.state != "reserved":
            raise AccountError(f"reservation {state.id} has ended")
        collection = self.collections[state.collection]
        return collection, state, prices[collection.ancestors(len(prices))]

    def _keep(self, collection: Collection) -> None:
        self.collections[collection.number] = collection

    def _set(self, state: Reservation) -> None:
        self.reservations[state.id] = state, self.reservations[state.id][1]

    def _within(self, entry: Entry, collection: Collection, asked: IntArray, left: IntArray) -> None:
        if ((asked > left) & (asked > 0)).any():
            worst = int(np.argmax((asked > left) & (asked > 0)))
            self.report.findings.append(
                f"entry {entry.number} ({entry.kind}): class {worst} of collection {collection.name!r} is asked for "
                f"{asked[worst] * UNIT:g}, and {left[worst] * UNIT:g} is left"
            )

    def _check_prices(self, entry: Entry, collection: Collection, charge: Charge, prices: IntArray) -> None:
        """Every price against dp-accounting's figure; a lower one is wrong, and so is one below zero."""
        for row in range(len(prices)):
            order = int(collection.orders[row])
            for column in range(prices.shape[1]):
                exact = self._reference(charge, row, column, order)
                if not prices[row, column] * UNIT >= max(exact * (1 - RELATIVE) - ABSOLUTE, 0.0):
                    self.report.findings.append(
                        f"entry {entry.number}: a release costs class {row} of collection {collection.name!r} "
                        f"{prices[row, column] * UNIT:g}, and {exact:g} by dp-accounting at order {order}"
                    )

    def _reference(self, charge: Charge, row: int, column: int, order: int) -> float:
        candidates = [[(float(q[row]), float(z[row]), n) for q, z, n in each] for each in charge.exposures]
        if charge.trials is None:
            rate, multiplier, _ = candidates[0][column]
            return self._remembered((rate, multiplier, order), lambda: _divergence(rate, multiplier, order))
        key = (tuple(map(tuple, candidates)), order, str(charge.trials))
        return self._remembered(key, lambda: _selected(charge, candidates, order))

    def _remembered(self, key: tuple[Any, ...], compute: Callable[[], float]) -> float:
        if key not in self._known:
            self._known[key] = compute()
            self.report.prices += 1
        return self._known[key]

    def differences(self) -> list[str]:
        """Where the tables of the book say something else than its entries."""
        book, found = self.book, []
        if sorted(book.collections()) != sorted(each.name for each in self.collections.values()):
            return ["the collections of the book are not those of its entries"]
        for expected in self.collections.values():
            stored = book.collection(expected.name)
            columns = [name for name in COLUMNS if not np.array_equal(getattr(stored, name), getattr(expected, name))]
            columns += ["members"] if stored.members != expected.members else []
            found += [f"collection {expected.name!r}: {name} is not what its entries add up to" for name in columns]
            found += self._owners(stored, expected)
            stands = {
                book.name_at(stored, place): each for place, each in self.standings.get(expected.number, {}).items()
            }
            if book.standings(stored) != stands or book.last_change(stored.number) != self.changed.get(
                stored.number, 0
            ):
                found.append(f"collection {expected.name!r}: its owners do not stand where its entries say")
        stored_states = {each.id: replace(each, run=None) for each in book.reservations()}
        expected_states = {name: state for name, (state, _) in self.reservations.items()}
        if stored_states != expected_states:
            found.append("the reservations of the book are not what its entries add up to")
        return found

    def _owners(self, stored: Collection, expected: Collection) -> list[str]:
        names = self.book.names(stored)
        opened = next(each for each in self.book.entries(stored.number, "opened"))
        digests = self.book.array(opened.number, "names")
        salted = b"".join(hashlib.sha256(self.book.salt_of(name) + name.encode()).digest() for name in names)
        if len(names) != expected.owners or digests is None or digests.tobytes() != salted:
            return [f"collection {expected.name!r}: its owners are not those that it was opened with"]
        return []


def _divergence(rate: float, multiplier: float, order: int) -> float:
    return float(reference_divergences([(rate, multiplier, 1)], [order])[0])


def _selected(charge: Charge, candidates: list[list[tuple[float, float, int]]], order: int) -> float:
    if charge.trials is None or not any(rate > 0 for each in candidates for rate, _, _ in each):
        return 0.0
    base = np.max([reference_divergences(each) for each in candidates], axis=0)
    return float(selection_divergences(base, ORDERS, charge.trials)[0, ORDERS.index(order)])
