"""Fingerprints: whether a collection has units in common with another, for a party that has the key.

A fingerprint is the first 8 bytes of HMAC-SHA-256, under a key that is not in the book, of an exact row or of the id of
a unit. Two collections of n and m different units agree by chance in n m / 2^64 of them on average.

What this cannot see: the same person in other words (a name spelled differently, a value rounded, a column more or
less), units that were fingerprinted under another key or by other columns, and collections without fingerprints.
Under the key, a guess at a whole row can be tested: keep it as secret as the data.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd.errors import InvalidArgumentError
from inosgd.files import read_regular, write_private
from inosgd.runs.keyed import KEY_BYTES, new_key

Fingerprints = npt.NDArray[np.uint64]


def fingerprints(key: bytes, units: Iterable[bytes | str]) -> Fingerprints:
    """The fingerprints of units, sorted, each once."""
    if len(key) < KEY_BYTES:
        raise InvalidArgumentError(f"key of {len(key)} bytes: give at least {KEY_BYTES}, from a random source")
    digests = b"".join(
        hmac.digest(key, unit.encode() if isinstance(unit, str) else unit, "sha256")[:8] for unit in units
    )
    return np.unique(np.frombuffer(digests, dtype="<u8"))


def overlap(ones: Fingerprints, others: Fingerprints) -> int:
    """How many units two collections have in common."""
    return len(np.intersect1d(ones, others, assume_unique=True))


def key_at(path: Path) -> bytes:
    """The key in the file at ``path``; a new one if there is no such file."""
    if not path.exists():
        write_private(path, new_key())
    return read_regular(path)
