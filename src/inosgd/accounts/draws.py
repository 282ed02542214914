"""Draws: how a training draws on its accounts, release by release, and what is left of it when a process dies.

A `Draw` is the permission of a ledger (`inosgd.ledger.ledger.Permission`): the ledger asks it before it records a new
release, and a release that is not recorded does not take place. It commits a block of releases at a time. So at every
moment

    releases with noise  <=  releases in the run's ledger  <=  releases committed in the book,

and after a crash the ledger of the run says which of those that are committed took place. What was replayed after a
resume was recorded once and is charged once; what was rolled back stays charged, because its noise was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inosgd import _validate
from inosgd.accounts.book import Accounts, Reservation
from inosgd.accounts.charge import Charge
from inosgd.errors import AccountError, InosgdError
from inosgd.files import sha256
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import Position, check_position, read_chain
from inosgd.plan import Phase, Plan, Terms
from inosgd.runs.folder import RunFolder

BLOCK = 50
"""How many releases are committed at a time."""


class Draw:
    """The permission of one training to release what it has reserved.

    Guarantee:
        `before` returns only if the release is of the mechanism that was reserved and is committed in the book.
    """

    def __init__(
        self, book: Accounts, state: Reservation, phases: Sequence[Phase], *, taken: int = 0, block: int = BLOCK
    ) -> None:
        """A draw that goes on after ``taken`` releases; ``phases`` are those that were reserved."""
        _validate.whole(1, block=block)
        self.book, self.state, self.taken = book, state, taken
        self._phases, self._block = list(phases), block

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
        block: int = BLOCK,
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
            block: How many releases are committed at a time.
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
        return cls(book, state, phases, block=block)

    def ledger(self, plan: Plan, path: Path | None = None) -> Ledger:
        """A new ledger for ``plan`` that asks this draw."""
        ledger = Ledger.for_plan(plan, path)
        ledger.permission = self
        return ledger

    def before(self, terms: Terms, position: Position) -> None:
        """Allow the next release, which is of ``terms``, or raise."""
        self._check(terms)
        if self.taken >= self.state.committed:
            wanted = min(self.taken + self._block, self.state.total)
            self.state = self.book.commit(self.state.id, wanted, position)
        self.taken += 1

    def finish(self) -> Reservation:
        """Give back what was reserved and not taken."""
        if self.state.state == "reserved":
            self.state = self.book.settle(self.state.id, self.taken)
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
    """Settle a reservation whose process is gone by the ledger of its run.

    Args:
        book: The accounts.
        state: The reservation.
        forfeit: Count all releases that are committed, without looking at a ledger; for a run that is lost.

    Raises:
        RunLockedError: If a process is at work in the run.
        AccountError: If there is no ledger to settle by, or it is not the one that was there at the last commitment.
    """
    if forfeit:
        return book.settle(state.id, state.committed)
    if state.run is None:
        raise AccountError(
            f"reservation {state.id}: it has no run folder, so that no ledger shows which releases took place; settle "
            "it with --forfeit, which counts all that are committed"
        )
    try:
        run = RunFolder.open(Path(state.run))
    except InosgdError:
        raise AccountError(
            f"reservation {state.id}: its run {state.run!r} is not there, and its ledger alone shows which releases "
            "took place; put it back, or settle with --forfeit, which counts all that are committed"
        ) from None
    with run.lock():
        return book.settle(state.id, taken_by(book, state, run))


def taken_by(book: Accounts, state: Reservation, run: RunFolder) -> int:
    """How many releases of a reservation the ledger of its run has; it must have what it had at each commitment."""
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
