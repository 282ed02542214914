"""Views of a book: where owners stand and what happened, as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from inosgd._arrays import IntArray
from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.chain import Entry
from inosgd.accounts.charge import cost
from inosgd.accounts.collection import Collection
from inosgd.accounts.filter import UNIT, epsilons_of
from inosgd.accounts.standings import OPEN, Standing


@in_one_state
def described_collection(book: Accounts, name: str | None, *, most: int | None = None) -> dict[str, Any]:
    """A collection with its owners, or with the ``most`` that have the least left, and its open reservations."""
    collection = book.collection(name)
    members = book.members(collection)
    shares = _shares(collection)
    order = np.argsort(1 - shares[members], kind="stable") if most is not None else np.arange(len(members))
    names, standings = book.names(collection), book.standings(collection)
    return {
        "collection": collection.name,
        "owner_count": collection.owners,
        "classes": len(np.unique(members)),
        "owners": {
            names[place]: _class(collection, int(members[place]), standings.get(names[place]))
            for place in order[:most].tolist()
        },
        "reserved": [vars(each) for each in book.reservations(only_open=True) if each.collection == collection.number],
        "looks": book.looks(collection),
        "programme": bool(book.entries(collection.number, "declared")),
        "head": "{}:{}".format(*book.head),
    }


@in_one_state
def described_owner(book: Accounts, name: str | None, owner: str) -> dict[str, Any]:
    """Where one owner stands; takes as long for one of a million as for one of ten."""
    collection = book.collection_of_one(name, owner)
    return {"owner": owner} | _class(collection, 0, book.standings(collection, [owner]).get(owner))


@in_one_state
def owner_history(book: Accounts, name: str | None, owner: str) -> list[dict[str, Any]]:
    """What one owner was promised and charged, entry by entry; amounts are Rényi divergences at its order.

    Each entry has ``change``, what it added to or took from what is spent, and ``spent``, the sum so far. Entries that
    make a budget come with it, reservations with the owner's rates and noise multipliers.
    """
    collection = book.collection_of_one(name, owner)
    place, number, spent = book.place(collection, owner), -1, 0
    open_ones: dict[str, tuple[IntArray, list[int], int]] = {}
    told = []
    for entry in book.entries(collection.number):
        fields, shown = entry.fields, described_entry(entry)
        arrays, before = fields["arrays"], spent
        if "members" in arrays:
            number = int(book.row(entry.number, "members", place)[0])
        if "budgets" in arrays:
            epsilon, delta = book.row(entry.number, "budgets", number).tolist()
            shown |= {"epsilon": epsilon, "delta": delta}
        if entry.kind == "reserved":
            prices = book.row(entry.number, "prices", number)[None]
            open_ones[fields["reservation"]] = prices, fields["releases"], 0
            mechanisms = book.row(entry.number, "mechanisms", number)
            noise = [value if np.isfinite(value) else None for value in mechanisms[1::2].tolist()]
            shown |= {"sampling_rates": mechanisms[0::2].tolist(), "noise_multipliers": noise}
        elif entry.kind in ("committed", "settled"):
            prices, releases, taken = open_ones[fields["reservation"]]
            spent += int((cost(prices, releases, fields["releases"]) - cost(prices, releases, taken))[0])
            open_ones[fields["reservation"]] = prices, releases, fields["releases"]
        told.append(shown | {"change": (spent - before) * UNIT, "spent": spent * UNIT})
    return told


def described_entry(entry: Entry) -> dict[str, Any]:
    """An entry without its arrays."""
    fields = {key: value for key, value in entry.fields.items() if key != "arrays"}
    shown = {"number": entry.number, "time": entry.time, "collection": entry.collection, "kind": entry.kind}
    return {**shown, **fields, "hash": entry.hash}


def _class(collection: Collection, number: int, standing: Standing | None) -> dict[str, Any]:
    rows: IntArray = np.array([number])
    spent, deltas, orders = collection.spent[rows], collection.deltas[rows], collection.orders[rows]
    return {
        "epsilon": float(collection.epsilons[number]),
        "delta": float(deltas[0]),
        "order": int(orders[0]),
        "room": float(collection.rooms[number]) * UNIT,
        "spent": float(spent[0]) * UNIT,
        "spent_epsilon": float(epsilons_of(spent, deltas, orders)[0]),
        "reserved": float(collection.held[number]) * UNIT,
        "left": float(collection.left[number]) * UNIT,
        "state": OPEN if standing is None else standing.state,
    }


def _shares(collection: Collection) -> Any:
    """Which share of its room each class has used or reserved."""
    return (collection.spent + collection.held) / np.maximum(collection.rooms, 1)
