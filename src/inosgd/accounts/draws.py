"""Draws: how a training draws on its accounts, release by release, and what is left of it when a process dies.

A `Draw` is the permission of a ledger (`inosgd.ledger.ledger.Permission`): the ledger asks it before it records a new
release, and a release that is not recorded does not take place. It commits a block of releases at a time. So at every
moment

    releases with noise  <=  releases in the run's ledger  <=  releases committed in the book.

Only the process that draws knows how many took place: it gives back the rest of its block when it ends. Files that a
dead process left behind may have lost their end, so all that was committed then counts as taken. The run itself may go
on within its last block, from a checkpoint that has the keys of its noise: if the ledger has lost steps, they come out
to the same bits. What was replayed after a resume was recorded once and is charged once; what was rolled back stays
charged, because its noise was drawn.

A draw that *heeds* changes looks before each release whether budgets of its owners have changed since it reserved, and
then refuses the release with `BudgetsChangedError`, also where the block was committed before and where the new budgets
would allow it: `inosgd.accounts.heeding` says what follows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd.accounts.book import Accounts
from inosgd.accounts.charge import Charge
from inosgd.accounts.reservations import Reservation
from inosgd.errors import AccountError, AccountExceededError, BudgetsChangedError, InosgdError
from inosgd.files import sha256
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import Chain, Position, check_position, read_chain
from inosgd.plan import Phase, Plan, Terms
from inosgd.runs.folder import RunFolder

BLOCK = 50
"""How many releases are committed at a time, at most."""

BLOCKS = 20
"""A training has at least so many blocks, if it has as many releases: a crash costs it no more than one of them."""


class Draw:
    """The permission of one training to release what it has reserved.

    Guarantee:
        `before` returns only if the release is of the mechanism that was reserved and is committed in the book; if it
        heeds changes, only if no budget of its ``owners`` had changed since it reserved when it looked.
        `finish` gives back nothing that an earlier process has committed.
    """

    def __init__(
        self,
        book: Accounts,
        state: Reservation,
        phases: Sequence[Phase],
        *,
        taken: int = 0,
        block: int | None = None,
        heeding: Sequence[str] = (),
        since: int | None = None,
    ) -> None:
        """A draw that goes on after ``taken`` releases; ``phases`` are those that were reserved.

        Changes of the budgets of the owners in ``heeding`` are heeded, those after the entry ``since``; by default
        those after the reservation.
        """
        block = min(BLOCK, max(1, state.total // BLOCKS)) if block is None else block
        _validate.whole(1, block=block)
        self.book, self.state, self.taken = book, state, taken
        self._phases, self._block, self._committed_before = list(phases), block, state.committed
        self._heeding, self._since = tuple(heeding), state.entry if since is None else since
        self._looked = self._since

    @classmethod
    def reserve(
        cls,
        book: Accounts,
        collection: str | None,
        plan: Plan,
        *,
        run: Path | None = None,
        begun: int = 0,
        stand: int = 0,
        identifier: str | None = None,
        block: int | None = None,
        heeding: bool = False,
        since: int | None = None,
    ) -> Draw:
        """Reserve what ``plan`` will spend.

        Args:
            book: The accounts.
            collection: Whose units are trained on.
            plan: What the training will do.
            run: The folder of the run; without one, a process that dies forfeits what it has committed.
            begun: How many releases the run's ledger has recorded before, those rolled back included.
            stand: How many releases of the plan stand and are not taken again.
            identifier: Of the reservation, if it was chosen before.
            block: How many releases are committed at a time; by default by `BLOCK` and `BLOCKS`.
            heeding: Whether changes of budgets are heeded.
            since: After which entry; by default after the reservation.
        """
        book.check_unit(collection, plan.table)
        phases = remaining(plan.charges, stand)
        state = book.reserve(
            collection,
            plan.table.names,
            Charge.of_phases(phases),
            run=run,
            plan=sha256(plan.to_json().encode()),
            begun=begun,
            identifier=identifier,
        )
        return cls(book, state, phases, block=block, heeding=plan.table.names if heeding else (), since=since)

    def ledger(self, plan: Plan, path: Path | None = None) -> Ledger:
        """A new ledger for ``plan`` that asks this draw."""
        ledger = Ledger.for_plan(plan, path)
        ledger.permission = self
        return ledger

    def before(self, terms: Terms, position: Position) -> None:
        """Allow the next release, which is of ``terms``, or raise."""
        self._check(terms)
        self._heed()
        if self.taken >= self.state.committed:
            wanted = min(self.taken + self._block, self.state.total)
            try:
                self.state = self.book.commit(self.state.id, wanted, position)
            except AccountExceededError:
                self._heed()  # what was reserved is refused only if a budget was lowered
                raise
        self.taken += 1

    def _heed(self) -> None:
        """Raise if a budget has changed; changes of other owners are looked at once."""
        last = self.book.last_change(self.state.collection) if self._heeding else 0
        if last > self._looked:
            if changed_since(self.book, self.state.collection, self._since, self._heeding):
                raise BudgetsChangedError(last)
            self._looked = last

    def finish(self) -> Reservation:
        """Give back what was reserved and not taken."""
        if self.state.state == "reserved":
            self.state = self.book.settle(self.state.id, max(self.taken, self._committed_before))
        return self.state

    def _check(self, terms: Terms) -> None:
        end = 0
        for phase in self._phases:
            end += phase.steps
            if self.taken < end:
                if not (phase.terms is terms or phase.terms == terms):
                    break
                return
        raise AccountError(
            f"release {self.taken + 1} of reservation {self.state.id} is not what was reserved; plan and reserve anew"
        )


def changed_since(book: Accounts, number: int, entry: int, owners: Sequence[str]) -> bool:
    """Whether the budget in force of one of ``owners`` of a collection is another one than after an entry."""
    collection = book.collection_numbered(number)
    then = book.budgets_at(collection, owners, entry)
    classes = book.members(collection)[book.places(collection, owners)]
    now = np.column_stack([collection.epsilons[classes], collection.deltas[classes]])
    return not np.array_equal(then, now)


def remaining(phases: Sequence[Phase], stand: int) -> list[Phase]:
    """The phases without their first ``stand`` releases."""
    rest = []
    for phase in phases:
        if stand < phase.steps:
            rest.append(Phase(phase.steps - max(stand, 0), phase.terms))
        stand -= phase.steps
    return rest


def releases_in(bodies: Sequence[Mapping[str, Any]]) -> int:
    """How many releases the records of a ledger are of, those rolled back included."""
    return sum(body["kind"] in ("step", "count") for body in bodies)


def settle_from_run(book: Accounts, state: Reservation, *, forfeit: bool = False) -> Reservation:
    """Settle a reservation whose process is gone: all releases that are committed count, and the others are given back.

    Args:
        book: The accounts.
        state: The reservation.
        forfeit: Do not look at the run; for one that is lost.

    Raises:
        RunLockedError: If a process is at work in the run.
        AccountError: If there is no run to look at, or its ledger is not the one that was there at the last commitment.
    """
    if forfeit:
        return book.settle(state.id)
    if state.run is None:
        raise AccountError(
            f"reservation {state.id}: it has no run folder, so that nothing shows whether a process is at work; if "
            "none is, settle it with --forfeit"
        )
    try:
        run = RunFolder.open(Path(state.run))
    except InosgdError:
        raise AccountError(
            f"reservation {state.id}: its run {state.run!r} is not there, so that nothing shows whether a process is "
            "at work; put it back, or, if none is, settle with --forfeit"
        ) from None
    with run.lock():
        recorded_of(book, book.reservation(state.id), run)
        return book.settle(state.id)


def recorded_of(book: Accounts, state: Reservation, run: RunFolder) -> int:
    """How many releases of a reservation the ledger of its run has; it must have what it had at each commitment.

    It is where the run goes on, and no proof that there were no more: what was recorded since may be lost.
    """
    chain = read_chain(run.ledger_path)
    noted = run.description().get("account") or {}
    if noted and noted.get("book") != book.id:
        raise AccountError(f"run {str(run.path)!r} draws on another book; settle it there")
    for entry in book.entries(state.collection, "committed"):
        fields = entry.fields
        if fields["reservation"] == state.id and fields["ledger"] is not None:
            records, digest = fields["ledger"]
            check_position(Position(records, digest), chain, f"entry {entry.number} of the account book was made")
    taken = releases_in(chain.bodies) - state.begun
    if not 0 <= taken <= state.committed:
        raise AccountError(
            f"run {str(run.path)!r}: its ledger has {taken} releases since the reservation, and {state.committed} are "
            "committed; the ledger is not the one that drew on the book, or went on without it. Put the right one back"
        )
    return taken


def check_charged(book: Accounts, run: RunFolder) -> None:
    """Raise if a run that has drawn on a book has releases in its ledger that the book has not committed."""
    if not run.description().get("account"):
        return
    chain, covered = read_chain(run.ledger_path), 0
    for identifier, releases in _commitments(book, chain):
        covered = max(covered, book.reservation(identifier).begun + releases)
    if releases_in(chain.bodies) > covered:
        raise AccountError(
            f"run {str(run.path)!r} has {releases_in(chain.bodies)} releases in its ledger, and the book has committed "
            f"{covered} of them: an old copy of the book was restored, or the run went on without it. Put the newest "
            "book back"
        )


def follow(book: Accounts, run: RunFolder) -> None:
    """Give the reservations that a run has drawn on its present place: it was moved, or goes by another name.

    Not those whose run is where it was: this one is a copy of it.
    """
    own, here = {identifier for identifier, _ in _commitments(book, read_chain(run.ledger_path))}, str(run.path)
    for state in book.reservations():
        if state.id in own and state.run not in (None, here) and not _is_elsewhere(str(state.run), here):
            with book.database.writing():
                book.database.rows("UPDATE reservations SET run = ? WHERE id = ?", [here, state.id])


def _is_elsewhere(there: str, here: str) -> bool:
    """Whether there is something at the one place, and it is not what is at the other."""
    return os.path.exists(there) and not os.path.samefile(there, here)


def _commitments(book: Accounts, chain: Chain) -> list[tuple[str, int]]:
    """The commitments that a ledger has gone through: of which reservation, and how many releases in all."""
    found = []
    for entry in book.entries(kind="committed"):
        records, digest = entry.fields["ledger"] or (0, "")
        if 0 < records <= len(chain.hashes) and chain.hashes[records - 1] == digest:
            found.append((entry.fields["reservation"], entry.fields["releases"]))
    return found
