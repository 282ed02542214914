"""Opening accounts: the owners of a collection in their first classes, and units that older collections have too."""

from __future__ import annotations

import hashlib
from collections.abc import Collection as Names
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from inosgd import _validate
from inosgd._arrays import IntArray, distinct_rows
from inosgd.accounting.reference import ORDERS
from inosgd.accounts.chain import Array
from inosgd.accounts.collection import COLUMNS, Collection, roster_digest
from inosgd.accounts.database import Database
from inosgd.accounts.filter import best_orders
from inosgd.accounts.fingerprints import overlap
from inosgd.accounts.writing import Writing
from inosgd.errors import AccountError, InvalidArgumentError
from inosgd.owners import OwnerTable

if TYPE_CHECKING:
    from inosgd.accounts.book import Accounts


def first_classes(table: OwnerTable, orders: IntArray | int | None) -> tuple[IntArray, IntArray, IntArray]:
    """An owner of each class, the class of each owner, and the order of each class, when accounts are opened."""
    if not np.isfinite(table.epsilons).all():
        raise InvalidArgumentError("epsilon=inf: an account needs a finite budget; give one")
    if orders is None:
        first, members = distinct_rows(table.deltas, table.epsilons)
        return first, members, best_orders(table.epsilons[first], table.deltas[first])
    given = np.broadcast_to(np.asarray(orders, dtype=np.int64), (len(table),))
    if not np.isin(given, ORDERS).all():
        raise InvalidArgumentError(f"orders={orders!r}: give whole orders from 2 to 63, or others of {ORDERS[62:]}")
    first, members = distinct_rows(table.deltas, table.epsilons, given)
    return first, members, given[first]


def check_names(name: str, table: OwnerTable) -> None:
    """Refuse a collection without a name, and names that a database does not keep."""
    if not name or any("\0" in each for each in (name, *table.names)):
        raise _validate.fail("collection", name, "give a name, and no name with a zero byte")


def open_accounts(
    book: Accounts,
    write: Writing,
    name: str,
    table: OwnerTable,
    classes: tuple[IntArray, IntArray, IntArray],
    fingerprints: Array | None,
    acknowledged: Names[str],
) -> Collection:
    """Write a collection with these `first_classes`, inside a transaction; see `Accounts.open_collection`."""
    first, members, chosen = classes
    epsilons, deltas = table.epsilons[first], table.deltas[first]
    if book.database.rows("SELECT id FROM collections WHERE name = ?", [name]):
        raise InvalidArgumentError(f"collection={name!r}: there is one already; choose another name")
    common = _overlaps(book, name, fingerprints, acknowledged)
    number = 1 + (book.database.rows("SELECT COALESCE(MAX(id), 0) FROM collections")[0][0])
    arrays: dict[str, Array] = {
        "names": _name_digests(book, table.names),
        "members": members.astype("<i4"),
        "budgets": np.column_stack([epsilons, deltas]),
        "orders": chosen,
        "units": table.sizes.astype("<i8"),
    }
    if fingerprints is not None:
        arrays["fingerprints"] = fingerprints
    roster = roster_digest(table.names)
    fields = {"name": name, "unit": table.unit, "owners": len(table), "roster": roster, "overlaps": common}
    entry = write.entry("opened", number, fields, arrays)
    nothing = np.zeros(len(first), dtype=np.int64)
    parents = np.full(len(first), -1, dtype=np.int32)
    opened = Collection(
        number, name, len(table), roster, entry.number, epsilons, deltas, chosen, parents, nothing, nothing
    )
    _add_collection(book.database, opened, table.names)
    return opened


def _add_collection(database: Database, opened: Collection, names: Sequence[str]) -> None:
    """Add the rows of a collection and of its owners."""
    number, marks = opened.number, ", ".join("?" * (6 + len(COLUMNS)))
    database.rows(
        f"INSERT INTO collections (id, name, owners, roster, members, classes, {', '.join(COLUMNS)}) "  # noqa: S608
        f"VALUES ({marks})",
        [number, opened.name, opened.owners, opened.roster, opened.members, len(opened), *opened.contents()],
    )
    database.fill("owners", [(number, owner, place) for place, owner in enumerate(names)])


def _overlaps(book: Accounts, name: str, fingerprints: Array | None, acknowledged: Names[str]) -> dict[str, int]:
    """How many units are in older collections too; raises unless all of those are acknowledged."""
    common = {}
    for entry in book.entries(kind="opened") if fingerprints is not None else []:
        older = book.array(entry.number, "fingerprints")
        if older is not None and fingerprints is not None and (count := overlap(fingerprints, older)):
            common[str(entry.fields["name"])] = count
    unknown = {other: count for other, count in common.items() if other not in acknowledged}
    if unknown:
        other, count = max(unknown.items(), key=lambda each: each[1])
        raise AccountError(
            f"collection {name!r}: {count:,} of its units are in collection {other!r} already; draw on that one, "
            f"or acknowledge the overlap with --overlaps {other}: the charges of both then have to be added up by "
            "hand"
        )
    return common


def _name_digests(book: Accounts, names: Iterable[str]) -> Array:
    digests = b"".join(hashlib.sha256(book.salt_of(name) + name.encode()).digest() for name in names)
    return np.frombuffer(digests, dtype="u1").reshape(-1, 32)
