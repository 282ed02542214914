"""The account of a study: where its trainings are added up with all others on the same units (`inosgd.accounts`).

account = "sqlite:///accounts.db"

[account]                           # the same, with more to say
url = "postgresql://host/database"
collection = "patients"             # needed where the book has several
share = 0.5                         # of what is left to each owner
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from inosgd.accounts.book import Accounts
from inosgd.accounts.draws import Draw, check_charged, follow, recorded_of, releases_in, remaining
from inosgd.accounts.heeding import News, heeded_until, news_for
from inosgd.errors import AccountError, InvalidArgumentError
from inosgd.files import sha256
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import read_chain
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import Rooms
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.progression import Changes, Proposal, carry_out, propose
from inosgd.runs.resuming import same_noise_again
from inosgd.shown import rounded_down
from inosgd.study.schema import AccountSection
from inosgd.study.study import Study, StudyData

ROWS_AT_ONCE = 4096

LEAST_SHARE = 0.01
"""An owner with less than this share of its room left takes part in no new training."""


def account_of(study: Study) -> AccountSection | None:
    """What the study file says about its account."""
    return None if study.file is None else study.file.schema.account


def open_book(study: Study) -> Accounts:
    """The book that the study draws on, which it must have."""
    account = account_of(study)
    if account is None or study.file is None:
        raise InvalidArgumentError(f"{study.name}: it names no account; add account = 'sqlite:///accounts.db'")
    return Accounts.open(account.url, folder=study.file.folder)


def collection_of(study: Study) -> str | None:
    """The name of the study's collection, if it gives one."""
    account = account_of(study)
    return None if account is None else account.collection


def rooms_of(study: Study, table: OwnerTable) -> Rooms | None:
    """What the study's account leaves to the owners of ``table``; None without an account.

    Raises:
        AccountError: If an owner has less than `LEAST_SHARE` of its room left, so that a training would spend the other
            owners' budgets on a model of noise.
    """
    account = account_of(study)
    if account is None:
        return None
    shares = shares_left(study, table)
    least = min(shares, key=lambda name: shares[name], default=None)
    if least is not None and shares[least] < LEAST_SHARE:
        raise AccountError(
            f"account: {least!r} has {rounded_down(100 * shares[least], 3)} % of its room left, and the noise of the "
            "whole training would follow from it; raise its budget, or train without its examples (a share in "
            "[account] keeps room for later trainings)"
        )
    with open_book(study) as book:
        return book.left(account.collection, table, share=account.share)


def shares_left(study: Study, table: OwnerTable) -> dict[str, float]:
    """Which share of its room each owner with examples has left in the study's account; empty without an account."""
    account = account_of(study)
    if account is None:
        return {}
    with open_book(study) as book:
        left, whole = (ask(account.collection, table).divergences for ask in (book.left, book.whole))
    shares = np.divide(left, whole, out=np.zeros_like(left), where=whole > 0)
    return {name: float(share) for (name, _, size), share in zip(table, shares, strict=True) if size > 0}


def note_look(study: Study, purpose: str) -> None:
    """Book that private data are looked at without a charge, if the study has an account."""
    if account_of(study) is not None:
        with open_book(study) as book:
            book.look(collection_of(study), purpose)


def noted_in_run(study: Study) -> dict[str, Any]:
    """What a run remembers of its account."""
    if account_of(study) is None:
        return {}
    with open_book(study) as book:
        return {"account": {"book": book.id, "collection": book.collection(collection_of(study)).name}}


def noted_in_card(study: Study) -> dict[str, Any] | None:
    """What the card of a model says of its account: where it was charged, and what was looked at without a charge."""
    if account_of(study) is None:
        return None
    with open_book(study) as book:
        collection = book.collection(collection_of(study))
        head = book.head
        return {
            "book": book.id,
            "collection": collection.name,
            "looks": book.looks(collection),
            "head": f"{head.number}:{head.hash}",
        }


def new_draw(run: RunFolder, study: Study, plan: Plan) -> Draw | None:
    """Reserve what a new run will spend; None without an account."""
    if account_of(study) is None:
        return None
    with _closed_on_error(open_book(study)) as book:
        return Draw.reserve(book, collection_of(study), plan, run=run.path, heeding=True)


def draw_again(run: RunFolder, study: Study, plan: Plan) -> Draw | None:
    """The draw of a run that goes on; None without an account, or where nothing is left to release.

    An open reservation for the same plan goes on, if the run goes on with the same noise. One for an earlier plan, from
    before a rollback, or of a run that has lost its checkpoints is settled as it is committed, and what the plan still
    has to release is reserved anew.

    Raises:
        AccountError: If the book is not the one that the run has drawn on, or an old copy of it.
    """
    if account_of(study) is None:
        _refuse_forgotten(run)
        return None
    history, chain = run.read_ledger().history, read_chain(run.ledger_path)
    standing = history.steps + (history.count is not None)
    total, digest = sum(phase.steps for phase in plan.charges), sha256(plan.to_json().encode())
    with _closed_on_error(_book_of_run(study, run)) as book:
        check_charged(book, run)
        for state in book.reservations(only_open=True):
            if state.run != str(run.path):
                continue
            taken, stand = recorded_of(book, state, run), total - state.total
            same = taken == state.committed or same_noise_again(run)
            if state.plan == digest and stand + taken == standing and same:
                phases, names = remaining(plan.charges, stand), plan.table.names
                return Draw(book, state, phases, taken=taken, heeding=names, since=heeded_until(book, run))
            book.settle(state.id)
        if standing == total:
            book.close()
            return None
        begun = releases_in(chain.bodies)
        since, name = heeded_until(book, run), collection_of(study)
        return Draw.reserve(book, name, plan, run=run.path, begun=begun, stand=standing, heeding=True, since=since)


def rooms_of_run(study: Study, run: RunFolder) -> Callable[[OwnerTable], Rooms] | None:
    """What the study's account leaves to a run that has begun, as `inosgd.runs.propose` asks for it."""
    account = account_of(study)
    if account is None:
        return None

    def rooms(table: OwnerTable) -> Rooms:
        with _book_of_run(study, run) as book:
            return book.left_to_run(account.collection, table, run.path, share=account.share)

    return rooms


def has_news(run: RunFolder, study: Study) -> bool:
    """Whether owners have changed their budgets in the account since the run last heeded changes."""
    with open_book(study) as book:
        return news_for(book, run) is not None


def heed(run: LockedRun, study: Study, *, anew: bool = False) -> Proposal | None:
    """Carry out what owners have changed in their accounts since the run last did; None if nothing.

    Guarantee:
        When this returns a proposal, the run's plan is for at most what the accounts left to it when they were asked,
        or its ledger refuses steps.

    Args:
        run: The run.
        study: What it trains.
        anew: Plan for what is left also if no owner has changed anything.
    """
    if account_of(study) is None:
        return None
    with _book_of_run(study, run) as book:
        news, identifier = news_for(book, run), book.id
        if news is None and anew:
            news = News(Changes(), heeded_until(book, run) or 0)
    if news is None:
        return None
    proposal = propose(run, news.changes, rooms=rooms_of_run(study, run))
    carry_out(run, proposal, account={"book": identifier, "entry": news.entry})
    return proposal


def end_draw(ledger: Ledger, *, failed: bool = False) -> None:
    """Give back what a training did not take; of one that failed only before its first step, as it may be resumed."""
    draw = ledger.permission
    if isinstance(draw, Draw):
        if not failed or ledger.steps == 0:
            draw.finish()
        draw.book.close()


@contextmanager
def drawing(draw: Draw | None, *, new: bool = False) -> Iterator[Draw | None]:
    """Inside, a training is set up: if that fails, a new one gives back what it has reserved."""
    try:
        yield draw
    except BaseException:
        if draw is not None:
            if new:
                draw.finish()
            draw.book.close()
        raise


def rows_of(data: StudyData) -> Iterator[bytes]:
    """The training examples as they are encoded, one after the other, for fingerprints."""
    for start in range(0, len(data.examples), ROWS_AT_ONCE):
        batch = data.examples.take(np.arange(start, min(start + ROWS_AT_ONCE, len(data.examples))))
        leaves = [leaf.contiguous().numpy() for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        for row in range(len(leaves[-1])):
            yield b"".join(leaf[row].tobytes() for leaf in leaves)


def key_of(study: Study) -> Path | None:
    """Where the key of fingerprints is, as the study file says."""
    account = account_of(study)
    return None if account is None or account.key is None or study.file is None else study.file.locate(account.key)


def _refuse_forgotten(run: RunFolder) -> None:
    if run.description().get("account"):
        raise AccountError(
            f"run {str(run.path)!r} draws on an account, and its study names none any more; put the account back"
        )


def _book_of_run(study: Study, run: RunFolder) -> Accounts:
    """The book that a run draws on, which knows it by its present place; refused if it is another book."""
    with _closed_on_error(open_book(study)) as book:
        _refuse_another(run, study, book)
        follow(book, run)
        return book


def _refuse_another(run: RunFolder, study: Study, book: Accounts) -> None:
    noted = run.description().get("account")
    if noted and noted != {"book": book.id, "collection": book.collection(collection_of(study)).name}:
        raise AccountError(
            f"run {str(run.path)!r} draws on collection {noted['collection']!r} of book {noted['book']}, and its study "
            "names another account now; put that one back"
        )


@contextmanager
def _closed_on_error(book: Accounts) -> Iterator[Accounts]:
    try:
        yield book
    except BaseException:
        book.close()
        raise
