"""The audit log of a book: who logged in, was refused, made or revoked a link, and changed what.

It is a table of the book, not part of its chain (`inosgd.accounts.schema` says why). Lines name links, which say whose
they are, and entries of the chain. They hold no name, no secret and no address.
"""

from __future__ import annotations

from dataclasses import dataclass

from inosgd.accounts.book import Accounts


@dataclass(frozen=True)
class Line:
    """One line of the log."""

    number: int
    time: str
    link: str | None
    action: str
    entry: int | None


def note(book: Accounts, link: str | None, action: str, entry: int | None = None) -> None:
    """Add a line, in a transaction that the caller has begun."""
    number = 1 + book.database.rows("SELECT COALESCE(MAX(number), 0) FROM audit")[0][0]
    time = book.now().isoformat(timespec="seconds")
    book.database.rows("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", [number, time, link, action, entry])


def lines(book: Accounts, most: int = 100) -> list[Line]:
    """The last lines, the newest first."""
    statement = "SELECT number, time, link, action, entry FROM audit ORDER BY number DESC LIMIT ?"
    return [Line(*row) for row in book.database.rows(statement, [most])]
