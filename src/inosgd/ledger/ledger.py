"""The ledger: an append-only record of what every owner has spent, written before anything is released.

On disk it is a chain of records (`inosgd.ledger.records`), whose kinds and rules are those of `inosgd.ledger.history`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.accounting import ACCOUNTANTS, epsilons_spent
from inosgd.errors import BudgetExceededError, InvalidArgumentError, LedgerError, TrainingStoppedError
from inosgd.files import read_regular, write_private
from inosgd.ledger.history import LEDGER_FORMAT, History, KnownCheckpoint, check_rows_kept, replay, widened
from inosgd.ledger.records import Chain, Position, RecordFile, check_position, read_chain
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms, check_count
from inosgd.shown import BUDGET, LEFT, SPENT, USED, spending_shown
from inosgd.tabled import Tabled, TextTable

_OF_STEPS = ("terms", "step")


class Permission(Protocol):
    """What a ledger asks before it records a new release, besides the budgets (`inosgd.accounts.draws`)."""

    def before(self, terms: Terms, position: Position) -> None:
        """Return if one more release under ``terms`` is allowed, else raise; ``position`` is where the ledger ends."""


class Ledger(Tabled):
    """What has been released so far, and whether one more step may be.

    Guarantee:
        `record` returns only if, with the recorded step, every owner's epsilon at its own delta stays within its
        budget by ``accountant``. The step is then on disk, so what is released later is never missing here; a step
        that was recorded and not released costs budget, not privacy. With a ``permission``, `record` and `record_count`
        ask it first, for every release that is new.

    Replayed steps:
        A run that was killed has recorded steps whose outcome died with it. It goes on from its last checkpoint
        (`resume_at`), and its first steps are in the ledger already. `record` accepts such a step without a new
        record if its terms and the states of its random streams are those recorded; `inosgd.runs.resume` sees to it
        that plan, owners, examples, method and checkpoint are. Data, parameters, sample, order and noise are then
        those of the first time, so the step releases the same bits: seeing them twice tells no more than
        seeing them once, and the cost is that of one step. Any other repetition is refused.
    """

    def __init__(
        self,
        table: OwnerTable,
        accountant: str,
        path: Path | None = None,
        *,
        horizon: int = 1,
        plan: str | None = None,
        durable: bool = True,
        kept: Path | None = None,
    ) -> None:
        """An empty ledger.

        Args:
            table: The owners and their budgets.
            accountant: "pld" or "rdp".
            path: Where to write; None keeps the ledger in memory. An existing file is refused.
            horizon: How many steps under the same terms to look ahead; spares repeated accounting.
            plan: The SHA-256 of the plan's JSON, for the record.
            durable: Whether a step is forced to disk before it is released. False is for comparisons that publish
                nothing: a crash of the machine may then lose records.
            kept: A file for the position after each record that is not of a step: it shows if such a one is lost.
        """
        _validate.whole(1, horizon=horizon)
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        self._begin(RecordFile.create(path, durable=durable), History(), horizon, kept=kept)
        header = {"kind": "ledger", "format": LEDGER_FORMAT, "accountant": accountant, "owners": table.to_json()}
        self._append({**header, "plan": plan})

    @classmethod
    def for_plan(cls, plan: Plan, path: Path | None = None, *, durable: bool = True) -> Ledger:
        """An empty ledger for the owners of ``plan``, which looks as far ahead as the plan."""
        return cls(plan.table, plan.accountant, path, horizon=plan.steps, durable=durable)

    @classmethod
    def open(cls, path: Path, *, horizon: int = 1, kept: Path | None = None) -> Ledger:
        """The ledger at ``path``, to go on with.

        A torn last record is cut off, and ``messages`` says so: its step was not released, because nothing is before
        its record is whole.

        Raises:
            LedgerError: If a record was edited, lost, moved or cannot follow, or if the position in ``kept`` is not in
                the ledger; the error names it.
        """
        chain = read_chain(existing(path))
        replay(chain)  # a ledger that cannot be believed is not touched
        if kept is not None and check_kept(kept, chain).records < last_mark(chain).records:
            _keep(kept, last_mark(chain))
        records, chain = RecordFile.open(path)
        ledger = cls.__new__(cls)
        ledger._begin(records, replay(chain), horizon, messages_of(chain), kept)
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """The ledger at ``path``, to look at while another process may be writing; nothing is repaired or written."""
        chain = read_chain(existing(path))
        ledger = cls.__new__(cls)
        ledger._begin(RecordFile(None, chain.position, None), replay(chain), 1, messages_of(chain, cut=False))
        ledger._read_only = True
        return ledger

    @classmethod
    def in_memory(cls, path: Path, *, horizon: int = 1) -> Ledger:
        """What the ledger at ``path`` says, to go on with in memory; for processes beside the one that writes it."""
        ledger = cls.read(path)
        ledger._horizon, ledger._read_only = horizon, False
        return ledger

    def _begin(
        self,
        records: RecordFile,
        history: History,
        horizon: int,
        messages: tuple[str, ...] = (),
        kept: Path | None = None,
    ) -> None:
        self._records, self._history, self._horizon, self._kept = records, history, horizon, kept
        self._allowed, self._next, self._read_only = 0, history.steps, False
        self.messages = messages
        self.permission: Permission | None = None

    @property
    def history(self) -> History:
        """What the records say; to be read only."""
        return self._history

    @property
    def table(self) -> OwnerTable:
        """The owners and their budgets now."""
        return self._history.table

    @property
    def accountant(self) -> str:
        """The accountant that judges every step."""
        return self._history.accountant

    @property
    def plan(self) -> str | None:
        """The SHA-256 of the current plan's JSON, if one was named."""
        return self._history.plan

    @property
    def steps(self) -> int:
        """How many steps stand: recorded, and not rolled back."""
        return self._history.steps

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The steps that stand, those with equal terms together, in the rows of ``table``."""
        return tuple(self._history.phases)

    @property
    def position(self) -> Position:
        """How many records there are and the hash of the last, to be kept elsewhere against loss."""
        return self._records.position

    @property
    def published(self) -> int:
        """The number of steps of the published model; 0 if none is published."""
        return self._history.published

    @property
    def stopped(self) -> str | None:
        """Why training was stopped, if it is."""
        return self._history.stopped

    @property
    def wanted(self) -> OwnerTable:
        """The owners and budgets as last asked for: those of ``table``, unless training is stopped over others."""
        return self._history.wanted or self.table

    def phases_until(self, step: int) -> tuple[Phase, ...]:
        """The phases of the first ``step`` steps."""
        return tuple(self._history.phases_until(step))

    def spent(self, until: int | None = None) -> FloatArray:
        """The epsilon each owner has spent at its own delta, in all steps or in the first ``until``."""
        return epsilons_spent(self._history.charges_until(until), self.table.deltas, self.accountant)

    def tabled(self) -> TextTable:
        """What every owner allows, has spent and has left."""
        table = self.table
        columns = zip(table.epsilons, table.deltas, self.spent(), self.remaining(), strict=True)
        rows = (
            (name, shown.budget, shown.spent, shown.left, shown.used)
            for name, known in zip(table.names, columns, strict=True)
            for shown in (spending_shown(*known),)
        )
        title = f"ledger: {self.steps:,} steps, by {self.accountant}"
        return TextTable(title, ("owner", BUDGET, SPENT, LEFT, USED), rows, len(table))

    def remaining(self) -> FloatArray:
        """Each owner's epsilon less what it has spent.

        The plain difference, for reading: epsilons do not add up, and a later phase may get more out of it.
        """
        return np.maximum(self.table.epsilons - self.spent(), 0.0)

    def record(
        self, step: int, terms: Terms, *, sensitivity: FloatArray | None = None, streams: str | None = None
    ) -> None:
        """Write ``step`` under ``terms``, or refuse it with `BudgetExceededError` and write nothing.

        Args:
            step: The number of the step, counted from 0.
            terms: What it is charged for.
            sensitivity: How far one example of each owner can move what will be released; refused if it is more
                than is charged for, the terms' thresholds.
            streams: A digest of the states of all random streams before the step; without it, it cannot be replayed.
        """
        self._check_step(step, terms, sensitivity)
        if step < self.steps:
            self._check_replay(step, terms, streams)
        else:
            self._record_new(step, terms, streams)
        self._next += 1

    def record_count(self, terms: Terms, *, sensitivity: FloatArray) -> None:
        """Write that classes are counted under ``terms``, or refuse it with `BudgetExceededError` and write nothing.

        Args:
            terms: What is charged for.
            sensitivity: How far one example of each owner can move what will be released; refused if it is more
                than is charged for.
        """
        if self._history.count is not None or self.steps:
            raise InvalidArgumentError(
                "count: classes are counted once, before the first step; go on with what was counted, or train anew"
            )
        if self.stopped:
            raise TrainingStoppedError(f"a count is refused: training was stopped; {self.stopped}")
        check_count(terms)
        _validate.same_length(owners=self.table, sampling_rates=terms.sampling_rates)
        _check_sensitivity(self.table, terms, sensitivity)
        spent = epsilons_spent([Phase(1, terms)], self.table.deltas, self.accountant)
        if not (spent <= self.table.epsilons).all():
            raise _refusal(self.table, spent, 0)
        if self.permission is not None:
            self.permission.before(terms, self.position)
        self._append({"kind": "count", "terms": terms.to_json()})

    def mark_counts(self, counts: FloatArray) -> None:
        """What the count that was recorded gave, with its noise."""
        self._append({"kind": "counts", "counts": counts.tolist()})

    def resume_at(self, step: int) -> None:
        """The next step will be ``step``: recorded ones from there on are replayed, not charged again."""
        _validate.whole(0, step=step)
        if not step <= self.steps:
            raise LedgerError(
                f"the checkpoint has {step} steps and the ledger {self.steps}: the ledger has lost records; restore it "
                "from a copy, because what is missing has been spent",
                record=None,
                fault="lost",
            )
        self._next = step

    def mark_published(self, step: int, model: str | None = None) -> None:
        """The model after ``step`` is published: its spending is never given back.

        Args:
            step: After how many steps.
            model: The SHA-256 of the published file.
        """
        self._history.check_recorded(step)
        self._append({"kind": "published", "step": step, "model": model})

    def mark_change(
        self, step: int, table: OwnerTable, plan: str | None = None, *, account: Mapping[str, Any] | None = None
    ) -> None:
        """Owners and budgets are ``table`` from here on, and training goes on from ``step``.

        Args:
            step: How many steps stand.
            table: Owners and budgets.
            plan: The SHA-256 of the plan's JSON, for the record.
            account: Which entry of which account book it answers, for the record.

        Raises:
            BudgetExceededError: If an owner has spent more in the first ``step`` steps than ``table`` allows.
            AlreadyPublishedError: If the model was published after a later step.
        """
        check_rows_kept(self.table, table)
        self._history.check_return(step)
        phases = [widened(phase, len(table)) for phase in self._history.charges_until(step)]
        spent = epsilons_spent(phases, table.deltas, self.accountant)
        if not (spent <= table.epsilons).all():
            raise _refusal(table, spent, step)
        answered = {} if account is None else {"account": dict(account)}
        self._append({"kind": "change", "step": step, "owners": table.to_json(), "plan": plan, **answered})

    def mark_rollback(self, step: int) -> None:
        """Give up the steps after ``step``, of which nothing is published."""
        self._history.check_return(step)
        self._append({"kind": "rollback", "step": step})

    def mark_stop(self, reason: str, wanted: OwnerTable, *, account: Mapping[str, Any] | None = None) -> None:
        """No further step until a change: ``wanted`` cannot be met otherwise; ``account`` as in `mark_change`."""
        answered = {} if account is None else {"account": dict(account)}
        self._append({"kind": "stop", "reason": reason, "wanted": wanted.to_json(), **answered})

    def mark_files(self, files: Mapping[str, str], step: int | None = None) -> None:
        """Files of the run have these SHA-256 from here on; nothing is written if the ledger says so already.

        Args:
            files: Digests by name, a path below the run folder.
            step: After which step they were made; they go when it is given up.
        """
        known = self._history.files
        if any(name not in known or known[name][:2] != (digest, step) for name, digest in files.items()):
            self._append({"kind": "files", "files": dict(files), "step": step})

    def mark_checkpoint(self, name: str, step: int, *, state: str, streams: str, erased: str) -> KnownCheckpoint:
        """The checkpoint called ``name`` has files of these SHA-256; see `KnownCheckpoint`."""
        self._history.check_recorded(step)
        digests = {"state": state, "streams": streams, "erased": erased}
        self._append({"kind": "checkpoint", "name": name, "step": step, **digests})
        return self._history.checkpoints[name]

    def mark_lost(self, checkpoint: str, why: str = "damaged") -> None:
        """The checkpoint of this name is damaged or missing, or one of too many: training goes on without it."""
        self._append({"kind": "lost", "checkpoint": checkpoint, "why": why})

    def mark_data(self, digests: Mapping[str, str]) -> None:
        """What is trained on from here on, as keyed digests by name."""
        self._append({"kind": "data", "digests": dict(digests)})

    def close(self) -> None:
        """Close the file; a closed ledger can still be read."""
        self._records.close()

    def _check_step(self, step: int, terms: Terms, sensitivity: FloatArray | None) -> None:
        if step != self._next:
            raise InvalidArgumentError(f"step={step}: the ledger's next step is {self._next}; record steps in order")
        _validate.same_length(owners=self.table, sampling_rates=terms.sampling_rates)
        if self.stopped:
            raise TrainingStoppedError(f"step {step} is refused: training was stopped; {self.stopped}")
        if sensitivity is not None:
            _check_sensitivity(self.table, terms, sensitivity)

    def _check_replay(self, step: int, terms: Terms, streams: str | None) -> None:
        recorded = self._history.streams[step]
        if streams is None or streams != recorded or self._history.terms_at(step) != terms:
            what = "terms" if streams == recorded else "random streams"
            raise InvalidArgumentError(
                f"step={step}: it is in the ledger with other {what}, and would cost twice; resume from the last "
                "checkpoint with the plan and the data of the run (and, if the model has dropout, on as many "
                "processes), or roll back"
            )

    def _record_new(self, step: int, terms: Terms, streams: str | None) -> None:
        phases = self._history.phases
        continued = bool(phases) and (phases[-1].terms is terms or phases[-1].terms == terms)
        if not (continued and phases[-1].steps < self._allowed):
            self._look_ahead(step, terms, continued)
        if self.permission is not None:
            self.permission.before(terms, self.position)
        if self._history.terms is None or not (self._history.terms is terms or self._history.terms == terms):
            self._append({"kind": "terms", "terms": terms.to_json()})
            self._history.terms = terms
        self._append({"kind": "step", "step": step, "streams": streams})

    def _look_ahead(self, step: int, terms: Terms, continued: bool) -> None:
        """Set how many steps of the current phase are allowed, or raise if the next one is not."""
        charges = self._history.charges_until()
        past = charges[:-1] if continued else charges
        taken = charges[-1].steps if continued else 0
        horizon = max(self._horizon - step, 1)
        while horizon > 1 and not self._fits(past, Phase(taken + horizon, terms)):
            horizon //= 2
        wanted = Phase(taken + horizon, terms)
        if horizon == 1 and not self._fits(past, wanted):
            spent = epsilons_spent([*past, wanted], self.table.deltas, self.accountant)
            raise _refusal(self.table, spent, step)
        self._allowed = wanted.steps

    def _fits(self, past: list[Phase], phase: Phase) -> bool:
        spent = epsilons_spent([*past, phase], self.table.deltas, self.accountant)
        return bool(np.all(spent <= self.table.epsilons))

    def _append(self, body: Mapping[str, Any]) -> None:
        """Write a record, then take it in: what cannot be written has not happened."""
        if self._read_only:
            raise InvalidArgumentError("ledger: it was opened for reading; use Ledger.open to go on with it")
        self._records.append(body)
        self._history.take(body)
        if body["kind"] in ("change", "rollback"):
            self._next, self._allowed = self.steps, 0
        if self._kept is not None and body["kind"] not in _OF_STEPS:
            _keep(self._kept, self.position)


def check_kept(path: Path, chain: Chain) -> Position:
    """The position that was kept at ``path``; `LedgerError` if the chain does not have it."""
    here = last_mark(chain)
    try:
        fields = json.loads(read_regular(path))
        position = Position(int(fields["records"]), str(fields["hash"]))
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError):
        raise LedgerError(
            f"{path.name} is missing or damaged, and nothing else shows whether the ledger lost its last records; "
            f"restore both from a copy. If the ledger cannot have been shortened, write this into {path.name}: "
            f"{json.dumps(here._asdict())}",
            record=None,
            fault="lost",
        ) from None
    check_position(position, chain, f"{path.name} was written")
    return position


def last_mark(chain: Chain) -> Position:
    """The position after the last record that is not of a step: what should be kept."""
    number = max(number for number, body in enumerate(chain.bodies, 1) if body["kind"] not in _OF_STEPS)
    return Position(number, chain.hashes[number - 1])


def _keep(path: Path, position: Position) -> None:
    write_private(path, json.dumps(position._asdict()).encode())


def _check_sensitivity(table: OwnerTable, terms: Terms, sensitivity: FloatArray) -> None:
    _validate.same_length(owners=table, sensitivity=sensitivity)
    charged = sensitivity <= terms.clipping_thresholds
    if not charged.all():
        owner = int(np.argmin(charged))
        raise InvalidArgumentError(
            f"sensitivity={sensitivity[owner]:g}: owner {table.names[owner]!r} is charged for a threshold of "
            f"{terms.clipping_thresholds[owner]:g}; clip to the terms that are recorded"
        )


def _refusal(table: OwnerTable, spent: FloatArray, step: int) -> BudgetExceededError:
    owner = int(np.argmax(~(spent <= table.epsilons)))
    return BudgetExceededError(table.names[owner], float(table.epsilons[owner]), float(spent[owner]), step)


def existing(path: Path) -> Path:
    """The path, if there is a file."""
    if not path.is_file():
        raise InvalidArgumentError(f"path={str(path)!r}: there is no ledger; give the ledger.jsonl of a run")
    return path


def messages_of(chain: Chain, *, cut: bool = True) -> tuple[str, ...]:
    """What a user is told about a chain whose last record is torn; nothing about any other."""
    if not chain.torn:
        return ()
    done = "was removed" if cut else "is ignored"
    number = chain.position.records + 1
    return (f"the last record (number {number}) is torn after {chain.torn} bytes and {done}; it was not released",)
