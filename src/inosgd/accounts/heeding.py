"""Heeding: what a run has to do about budgets that owners have changed in its account book.

A training that draws on a book learns of a change before its next release (`inosgd.accounts.draws.Draw`), or when it
is resumed. What follows is the progression of `inosgd.runs.progression`, as `inosgd budgets` does it:

    lowered, raised  the run's own budget for the owner follows the account's where the two were equal before; where the
                     run asks for less, it keeps to that as long as the account allows it
    paused           the run's budget stays; nothing is left to the owner in its account, so its units rest
    withdrawn        its units leave the run

Guarantee:
    A change reaches a run with a new plan for at most what the accounts leave to it, or with a stop. The promise to
    owners is that of the account, by the theorem in `inosgd.accounts.filter`. Plans may depend on outcomes in any way;
    where an owner's own changes do, the promise is that of the largest budget that could have been in force
    (docs/accounts.md). The run's ledger goes on by the accountant of its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inosgd.accounts.book import Accounts
from inosgd.accounts.draws import changed_since
from inosgd.accounts.standings import OPEN, PAUSED, WITHDRAWN
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import read_chain
from inosgd.owners import EXAMPLE, Budget, OwnerTable
from inosgd.runs.folder import RunFolder
from inosgd.runs.progression import Changes
from inosgd.units import parts_of


@dataclass(frozen=True)
class News:
    """What a run has to heed: the changes as it sees them, and the entry of the book with the last of them."""

    changes: Changes
    entry: int


def heeded_until(book: Accounts, run: RunFolder) -> int | None:
    """The entry of the book up to which a run has heeded all changes; None if it has never drawn on the book.

    It is the last that a record of its ledger answers. Before the first of them, it is that of its first reservation.
    """
    answered = [body["account"] for body in read_chain(run.ledger_path).bodies if body.get("account")]
    entries = [int(each["entry"]) for each in answered if each.get("book") == book.id]
    first = [state.entry for state in book.reservations() if state.run == str(run.path)][:1]
    return max(entries, default=first[0]) if first else None


def news_for(book: Accounts, run: RunFolder) -> News | None:
    """What has changed since a run last heeded changes; None if nothing that bears on it."""
    states = [state for state in book.reservations() if state.run == str(run.path)]
    since = heeded_until(book, run)
    if since is None or book.entries(states[-1].collection, "declared"):  # a programme runs as declared, or not at all
        return None
    ledger, number = run.read_ledger(), states[-1].collection
    with book.database.writing():  # no owner changes anything between one look and the next
        entry = book.last_change(number)
        if entry <= since or not changed_since(book, number, since, ledger.table.names):
            return None
        began_with = OwnerTable.from_json(read_chain(run.ledger_path).bodies[0]["owners"])
        budgets = {name: budget for name, budget, _ in began_with}
        return News(_changes(book, number, since, ledger, budgets), entry)


def _changes(book: Accounts, number: int, since: int, ledger: Ledger, began_with: Mapping[str, Budget]) -> Changes:
    collection, names = book.collection_numbered(number), ledger.table.names
    standings, known = book.standings(collection, names), set(names)
    shared = set() if ledger.table.unit == EXAMPLE else {name for name in names if parts_of(name, known)}
    then = dict(zip(names, book.budgets_at(collection, names, since).tolist(), strict=True))
    class_of = dict(zip(names, book.members(collection)[book.places(collection, names)].tolist(), strict=True))
    budgets, withdrawn = {}, []
    for name, own, size in ledger.wanted:
        state = standings[name].state if name in standings else OPEN
        if name not in known or name in shared or size == 0 or state == PAUSED:
            continue
        if state == WITHDRAWN:
            withdrawn.append(name)
            continue
        place = class_of[name]
        now = Budget(epsilon=float(collection.epsilons[place]), delta=float(collection.deltas[place]))
        follows = [own.epsilon, own.delta] == then[name]
        new = now if follows else _within(now, own, began_with.get(name, own))
        if new != own:
            budgets[name] = new
    return Changes(budgets, withdrawn=tuple(withdrawn))


def _within(now: Budget, *asked: Budget) -> Budget:
    """The largest budget that was asked for, as far as the account allows it."""
    return Budget(
        epsilon=min(now.epsilon, max(each.epsilon for each in asked)),
        delta=min(now.delta, max(each.delta for each in asked)),
    )
