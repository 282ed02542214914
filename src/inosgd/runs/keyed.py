"""Keyed digests: whether data are the same, for a party that has the key, and nothing for one that has not.

A plain checksum of data is a test of guesses: who knows all of a table but one field tries values until the checksum
fits. These digests are HMAC-SHA-256 under a key of 32 random bytes, which is as secret as the data and lies in a file
of its own (``data.key`` of a run folder).

Guarantee:
    If HMAC-SHA-256 is a pseudorandom function, digests cannot be told from random text without the key.
"""

from __future__ import annotations

import hmac
import os

KEY_BYTES = 32


def new_key() -> bytes:
    """A key from the operating system's entropy."""
    return os.urandom(KEY_BYTES)


def keyed_digest(key: bytes, content: bytes) -> str:
    """The digest of ``content`` in hexadecimal."""
    return hmac.digest(key, content, "sha256").hex()
