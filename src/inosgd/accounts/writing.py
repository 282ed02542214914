"""Writing: how entries are appended to the chain of a book, with their arrays.

Guarantee:
    Entries are in the order of their times: none is dated before the one it follows. Where a clock is far behind the
    last entry, nothing is written.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inosgd.accounts.chain import Array, Entry, Head, described, next_entry
from inosgd.accounts.database import Database
from inosgd.errors import AccountError

LARGEST_LAG = 60.0
"""Seconds by which a clock may be behind the last entry; the entry then has the time of the last one."""


@dataclass
class Writing:
    """Inside a transaction: the place of the next entry."""

    database: Database
    head: Head
    now: datetime.datetime

    def entry(
        self, kind: str, collection: int, fields: dict[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> Entry:
        """Append an entry with its arrays."""
        named = {name: described(array) for name, array in (arrays or {}).items()}
        entry = next_entry(self.head, self._time(), collection, kind, {**fields, "arrays": named})
        self.database.rows(
            "INSERT INTO entries (number, time, collection, kind, body, previous, hash) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [entry.number, entry.time, entry.collection, entry.kind, entry.body, entry.previous, entry.hash],
        )
        for name, array in (arrays or {}).items():
            self.database.rows(
                "INSERT INTO arrays (entry, name, type, shape, content) VALUES (?, ?, ?, ?, ?)",
                [entry.number, name, array.dtype.str, json.dumps(array.shape), array.tobytes()],
            )
        self.head = Head(entry.number, entry.hash)
        return entry

    def _time(self) -> str:
        """Now, in UTC, and never before the last entry."""
        found = self.database.rows("SELECT time FROM entries WHERE number = ?", [self.head.number])
        now = self.now.astimezone(datetime.UTC)
        last = datetime.datetime.fromisoformat(found[0][0]) if found else now
        if (last - now).total_seconds() > LARGEST_LAG:
            raise AccountError(
                f"the clock says {now.isoformat(timespec='seconds')}, and the last entry of the book was made at "
                f"{last.isoformat(timespec='seconds')}: set the clock right; nothing was written"
            )
        return max(now, last).isoformat(timespec="microseconds")
