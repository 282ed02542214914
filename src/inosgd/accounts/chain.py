"""The chain of a book: every entry is tied to the one before it, and arrays to their entry, by SHA-256.

The hash of an entry is that of its header, a JSON object with sorted keys:

    {"body":"<SHA-256 of the body>","collection":1,"kind":"reserved","number":7,"previous":"<hash of 6>","time":"..."}

A reader who may not see the body of an entry still sees of which kind it is and which collection it concerns, so that
no charge can be left out of a receipt. Arrays are too large for a receipt; a body names the root of a Merkle tree over
pieces of whole rows, of at most 4,096 bytes if a row is not longer: a leaf is SHA-256(0x00 + piece), a node
SHA-256(0x01 + left + right), and a node without a partner moves up as it is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

START = "0" * 64
PIECE = 4096

Array = npt.NDArray[Any]


class Head(NamedTuple):
    """The end of a chain, to be published: how many entries there are, and the hash of the last."""

    number: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One entry: what happened, to which collection, when."""

    number: int
    time: str
    collection: int | None
    kind: str
    body: str
    previous: str
    hash: str

    @property
    def fields(self) -> dict[str, Any]:
        """What the body says."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields

    @property
    def header(self) -> dict[str, Any]:
        """What the hash is of."""
        return header(self.number, self.time, self.collection, self.kind, self.body, self.previous)


def header(number: int, time: str, collection: int | None, kind: str, body: str, previous: str) -> dict[str, Any]:
    """The header of an entry."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    return {
        "number": number,
        "time": time,
        "collection": collection,
        "kind": kind,
        "body": digest,
        "previous": previous,
    }


def header_hash(fields: dict[str, Any]) -> str:
    """The hash of an entry with this header."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def next_entry(last: Head, time: str, collection: int | None, kind: str, fields: dict[str, Any]) -> Entry:
    """The entry that follows ``last``."""
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    number = last.number + 1
    digest = header_hash(header(number, time, collection, kind, body, last.hash))
    return Entry(number, time, collection, kind, body, last.hash, digest)


@dataclass(frozen=True)
class Piece:
    """A piece of an array and its way to the root: its bytes, and the hashes of the partners from leaf to root.

    Which piece it is, and so on which side each partner stands, follows from the row and the shape of the array.
    """

    content: bytes
    path: tuple[str, ...]


def rows_per_piece(array: Array) -> int:
    """How many rows of an array go into a piece."""
    row = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return max(1, PIECE // max(row, 1))


def described(array: Array) -> dict[str, Any]:
    """How a body names an array: its type, its shape and its root."""
    return {"type": array.dtype.str, "shape": list(array.shape), "root": _levels(array)[-1][0].hex()}


def piece_of(array: Array, row: int) -> Piece:
    """The piece that has ``row``, with its way to the root."""
    levels, index = _levels(array), row // rows_per_piece(array)
    path, place = [], index
    for level in levels[:-1]:
        partner = place ^ 1
        if partner < len(level):
            path.append(level[partner].hex())
        place //= 2
    return Piece(_pieces(array)[index], tuple(path))


def _pieces(array: Array) -> list[bytes]:
    rows = rows_per_piece(array)
    return [array[start : start + rows].tobytes() for start in range(0, max(len(array), 1), rows)]


def _levels(array: Array) -> list[list[bytes]]:
    levels = [[hashlib.sha256(b"\0" + piece).digest() for piece in _pieces(array)]]
    while len(levels[-1]) > 1:
        level = levels[-1]
        paired = [hashlib.sha256(b"\1" + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=False)]
        levels.append([*paired, *(level[-1:] if len(level) % 2 else [])])
    return levels
