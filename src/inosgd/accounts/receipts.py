"""Receipts: what an owner was ever charged, in a file that it can check without inosgd.

A receipt has the header of every entry of the book, so that none can be left out; the bodies of those of the owner's
collection; and, for each array that bears on the owner, the piece with its row and the way to the root. Headers of
other collections show when something happened there and of which kind it was. Pieces show mechanisms and budgets of
neighbouring classes, which are public here, and of other owners only salted digests of their names.

``check_receipt.py`` beside this file checks one against a published head: it needs Python alone.
"""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import Any

from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.chain import Array, Entry, piece_of

RECEIPT_FORMAT = 1


@in_one_state
def receipt_of(book: Accounts, collection_name: str | None, owner: str) -> dict[str, Any]:
    """The receipt of an owner, as JSON."""
    collection = book.collection(collection_name)
    place = book.place(collection, owner)
    entries, proofs, owner_class = [], {}, -1
    for entry in book.entries():
        own = entry.collection == collection.number
        entries.append({**entry.header, "text": entry.body if own else None})
        if own:
            owner_class, proofs[str(entry.number)] = _proofs(book, entry, place, owner_class)
    return {
        "format": RECEIPT_FORMAT,
        "book": book.id,
        "collection": collection.number,
        "owner": owner,
        "salt": book.salt_of(owner).hex(),
        "place": place,
        "entries": entries,
        "proofs": proofs,
    }


def check_script() -> str:
    """The text of the script that checks receipts."""
    return (files("inosgd.accounts") / "check_receipt.py").read_text(encoding="utf-8")


def _proofs(book: Accounts, entry: Entry, place: int, owner_class: int) -> tuple[int, dict[str, Any]]:
    """The class of the owner from this entry on, and the pieces of the entry's arrays that bear on it."""
    named = entry.fields["arrays"]
    if "members" in named:
        owner_class = int(book.required_array(entry.number, "members")[place])
    rows = {"names": place, "members": place, "budgets": owner_class, "orders": owner_class}
    rows |= {"mechanisms": owner_class, "prices": owner_class}
    rows |= {name: owner_class for name in named if name.startswith("mechanisms ")}
    return owner_class, {
        name: _piece(book.required_array(entry.number, name), row) for name, row in rows.items() if name in named
    }


def _piece(array: Array, row: int) -> dict[str, Any]:
    piece = piece_of(array, row)
    return {"content": base64.b64encode(piece.content).decode(), "path": list(piece.path)}
