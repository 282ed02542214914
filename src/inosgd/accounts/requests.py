"""Requests: raised budgets that wait until the model owner accepts them.

A raise gives trainings more of an owner's privacy, so two agree to it: the owner asks, the model owner accepts. There
is one request of an owner at a time; a new one takes the place of the one that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inosgd.accounts.book import Accounts
from inosgd.accounts.standings import OPEN
from inosgd.errors import AccountError
from inosgd.owners import Budget

WAITS, ACCEPTED, DECLINED, TAKEN_BACK = "waits", "accepted", "declined", "taken back"


@dataclass(frozen=True)
class Request:
    """What an owner asks for."""

    number: int
    collection: int
    owner: str
    budget: Budget
    time: str
    state: str


def waiting(book: Accounts, collection: int | None = None, owner: str | None = None) -> list[Request]:
    """The requests that wait, the oldest first; those of a collection or of one owner."""
    chosen, values = "state = ?", [WAITS, collection, owner]
    for column, value in (("collection", collection), ("owner", owner)):
        chosen += "" if value is None else f" AND {column} = ?"
    statement = f"SELECT number, collection, owner, epsilon, delta, time, state FROM requests WHERE {chosen}"  # noqa: S608
    found = book.database.rows(statement + " ORDER BY number", [value for value in values if value is not None])
    return [
        Request(number, of, who, Budget(epsilon=epsilon, delta=delta), time, state)
        for number, of, who, epsilon, delta, time, state in found
    ]


def ask(book: Accounts, collection: int, owner: str, budget: Budget) -> Request:
    """Ask for a larger budget, in a transaction that the caller has begun (`Database.writing`)."""
    take_back(book, collection, owner)
    number = 1 + book.database.rows("SELECT COALESCE(MAX(number), 0) FROM requests")[0][0]
    time = book.now().isoformat(timespec="seconds")
    row = [number, collection, owner, budget.epsilon, budget.delta, time, WAITS]
    book.database.rows("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return Request(number, collection, owner, budget, time, WAITS)


def take_back(book: Accounts, collection: int, owner: str) -> None:
    """Nothing of an owner waits any more; inside a transaction."""
    for request in waiting(book, collection, owner):
        _answer(book, request, TAKEN_BACK)


def decline(book: Accounts, request: Request) -> None:
    """Answer a request with no; inside a transaction.

    Raises:
        AccountError: If it does not wait any more.
    """
    _check_waits(book, request)
    _answer(book, request, DECLINED)


def accept(
    book: Accounts,
    collection: str,
    request: Request,
    seen: int,
    by: str,
    also: Callable[[int], None] | None = None,
) -> int:
    """Raise the budget as asked for; the number of the entry. ``also`` is as for `Accounts.set_budgets`.

    Raises:
        AccountError: If it does not wait any more, or the owner has changed its budget since ``seen``.
    """

    def answered(entry: int) -> None:
        _check_waits(book, request)
        _answer(book, request, ACCEPTED)
        if also is not None:
            also(entry)

    return book.set_budgets(collection, {request.owner: request.budget}, state=OPEN, seen=seen, by=by, also=answered)


def _check_waits(book: Accounts, request: Request) -> None:
    if request not in waiting(book, request.collection, request.owner):
        raise AccountError(f"request {request.number} does not wait any more; look again, and nothing was changed")


def _answer(book: Accounts, request: Request, state: str) -> None:
    book.database.rows("UPDATE requests SET state = ? WHERE number = ?", [state, request.number])
