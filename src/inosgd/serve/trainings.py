"""Trainings in progress: what open reservations and the run folders behind them say, without a lock.

A run folder may be on another machine, or gone: what the book knows is then all there is to show.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.accounting import Exposures, epsilons
from inosgd.accounts.book import Accounts
from inosgd.accounts.reservations import Reservation
from inosgd.errors import InosgdError
from inosgd.ledger.ledger import Ledger
from inosgd.runs.folder import RunFolder
from inosgd.runs.lock import is_at_work

TROUBLES = (InosgdError, OSError, LookupError, TypeError, ValueError)
"""What reading a folder that another process writes, or that is gone, may end in."""


@dataclass(frozen=True)
class Seen:
    """A training as it stands.

    Attributes:
        reservation: Its reservation in the book.
        name: Of its run folder.
        state: "training", "interrupted", "stopped", "finished", or "not in view" if its folder cannot be read.
        reason: Why it was stopped.
        steps: How many of its steps stand.
        planned: How many its plan has in all.
        published: After how many steps its model was published; 0 if it was not.
        changes: How often its plan was changed because owners had changed their budgets.
    """

    reservation: str
    name: str
    state: str
    reason: str | None
    steps: int
    planned: int
    published: int = 0
    changes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As the page asks for it again and again."""
        return {name: getattr(self, name) for name in ("reservation", "name", "state", "steps", "planned", "changes")}


def in_progress(book: Accounts, collection: int | None = None) -> list[Seen]:
    """The trainings that may still draw on a book or on one of its collections."""
    chosen = [each for each in book.reservations(only_open=True) if collection in (None, each.collection)]
    return [seen(state) for state in chosen]


def name_of(state: Reservation) -> str:
    """What a training is called: as its run folder, or by what it is for."""
    return state.purpose if state.run is None else Path(state.run).name


def seen(state: Reservation) -> Seen:
    """The training of a reservation."""
    unseen = Seen(state.id, name_of(state), "not in view", None, state.committed, state.total)
    if state.run is None:
        return unseen
    try:
        run = RunFolder.open(Path(state.run))
        ledger, planned = run.read_ledger(), run.plan(checked=False).steps
        if ledger.stopped is not None:
            now = "stopped"
        elif ledger.steps >= planned:
            now = "finished"
        else:
            now = "training" if is_at_work(run.path) else "interrupted"
    except TROUBLES:
        return unseen
    changes = len(run.plans()) - 1
    return Seen(state.id, run.path.name, now, ledger.stopped, ledger.steps, planned, ledger.published, changes)


def ledger_of(state: Reservation) -> Ledger | None:
    """The ledger of the training of a reservation, if it can be read."""
    try:
        return None if state.run is None else RunFolder.open(Path(state.run)).read_ledger()
    except TROUBLES:
        return None


def spent_by(ledger: Ledger, owner: str, delta: float) -> float:
    """The epsilon that the steps of one training have cost an owner, by the accountant of its plan."""
    if owner not in ledger.table.names:
        return 0.0
    row = ledger.table.names.index(owner)
    exposures = [
        Exposures(phase.terms.sampling_rates[[row]], phase.terms.noise_multipliers()[[row]], phase.steps)
        for phase in ledger.history.charges_until()
    ]
    spent: FloatArray = epsilons(exposures, np.array([delta]), ledger.accountant) if exposures else np.zeros(1)
    return float(spent[0])


def public_results(state: Reservation, owner: str) -> dict[str, Any] | None:
    """A training's last results on held-out records, if its study declares them public: of all, and the owner's."""
    try:
        run = None if state.run is None else RunFolder.open(Path(state.run))
        if run is None or run.description().get("public_results") is not True:
            return None
        last = [line for line in run.metrics() if line.get("owners")][-1:]
    except TROUBLES:
        return None
    if not last:
        return None
    own = last[0]["owners"].get(owner)
    return {
        "training": run.path.name,
        "step": last[0]["step"],
        "scored_by": last[0]["scored_by"],
        "overall": last[0]["overall"],
        "own": None if own is None else own["score"],
    }
