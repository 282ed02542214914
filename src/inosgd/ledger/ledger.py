"""The ledger: an append-only record of what every owner has spent, written before anything is released.

On disk a ledger is a chain of records (`inosgd.ledger.records`), format 5. The kinds:

    ledger      format, accountant, owners (names, epsilons, deltas, sizes), plan (SHA-256 of its JSON, or null)
    count       the classes of owners are about to be counted, under these terms (`inosgd.counting`)
    counts      what was counted, with its noise: one row per owner, one column per class
    terms       what the steps after it do, until the next ``terms``, ``change`` or ``rollback``
    step        one release: its number, and ``streams``, a digest of the random streams' states before it
    change      owners and budgets from here on; ``step`` is where training continues; the plan's SHA-256; ``account``,
                if it answers an entry of an account book: the book's identifier and the entry's number
    rollback    ``step`` is where training continues; the steps after it were computed and are given up
    published   the model after ``step`` is published; SHA-256 of its file
    stop        no further step until the next ``change``; the reason, the budgets that were asked for, ``account``
    files       files of the run as they are from here on: by name their SHA-256, and ``step``, after which they
                were made (null: before any)
    checkpoint  a checkpoint: its name, its step, and the SHA-256 of its ``state.json``, of its ``streams.json``,
                and of the latter once its keys are ``erased``
    lost        a checkpoint, by name, that was found damaged or missing, and is given up
    data        what is trained on: by name keyed digests (`inosgd.runs.keyed`), of no use to a reader without the key

Rules for readers:

- The first record is ``ledger`` and no other is. Refuse a ``format`` you do not know, a kind you do not know, and a
  chain that does not hold. Ignore keys you do not know.
- There is at most one ``count``, before the first ``step``, and at most one ``counts``, after it. What it cost is never
  given back, by no ``rollback`` either.
- ``step`` numbers count up from 0 without gaps; after ``change`` or ``rollback`` they go on from its ``step``, which
  is at most the number of steps so far and at least the step of every ``published``. ``files`` and ``checkpoint`` of a
  later step are then given up. A ``change`` of the owners' sizes gives up what ``data`` says of owners and examples.
- Owners keep their rows: a ``change`` may append owners, and never removes, renames or moves one. Before it joined,
  an owner was sampled with rate 0.

How the format may evolve: new keys with a default do not raise ``format``; a new kind, or a new meaning of a key,
does. Format 1 (before checkpoints) had no chain, format 2 did not know the files of its run, format 3 called
``published`` by another name, and format 4 did not know counts. All are refused: such a run cannot be continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, frozen_floats
from inosgd.accounting import ACCOUNTANTS, epsilons_spent
from inosgd.errors import (
    AlreadyPublishedError,
    BudgetExceededError,
    InosgdError,
    InvalidArgumentError,
    LedgerError,
    TrainingStoppedError,
)
from inosgd.files import read_regular, write_private
from inosgd.ledger.records import Chain, Position, RecordFile, check_position, read_chain
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms, check_count
from inosgd.planning.verification import reference_epsilons
from inosgd.shown import rounded_down, rounded_up
from inosgd.tabled import Tabled, TextTable

LEDGER_FORMAT = 5

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
OF_EXAMPLES = ("owners", "examples", "units")
"""What of the ``data`` changes when owners join or withdraw."""

CHECKPOINT_NAME = re.compile(r"step-\d{8,20}\.record-\d{8,20}")


class KnownFile(NamedTuple):
    """What the ledger says of a file: its SHA-256, after which step it was made (None: before any), in which record."""

    sha256: str
    step: int | None
    record: int


class KnownCheckpoint(NamedTuple):
    """What the ledger says of a checkpoint.

    Its ``state.json`` holds the digests of its tensors, so the three digests here are about every byte of it.
    """

    name: str
    step: int
    state: str
    streams: str
    erased: str
    record: int


class History:
    """What records say, taken one after the other: the meaning of a ledger, apart from its file.

    Attributes:
        table: The owners and budgets now.
        accountant: "pld" or "rdp".
        plan: The SHA-256 of the current plan's JSON, if one was named.
        phases: The steps that stand, those with equal terms together, in the rows of ``table``.
        count: The terms under which classes were counted, if they were.
        counts: What was counted, with its noise, a row for each owner of then.
        streams: For each step that stands, the digest of the random streams before it.
        published: The number of steps of the published model; 0 if none is published.
        stopped: Why training was stopped, if it is.
        wanted: The owners and budgets that were asked for when it was stopped.
        terms: The terms under which the next step would be recorded, if it may follow at once.
        files: The files of the run by name.
        checkpoints: The checkpoints that stand, by name.
        given_up: The checkpoints that do not stand any more: by name the record that says so.
        published_models: By step the SHA-256 of the model that was published after it, if it is known.
        data: The keyed digests of what is trained on, by name; empty if they are not recorded yet.
        returned: The number of the last change or rollback; 0 if there is none.
    """

    def __init__(self) -> None:
        self.table: OwnerTable
        self.accountant = ""
        self.plan: str | None = None
        self.phases: list[Phase] = []
        self.count: Terms | None = None
        self.counts: FloatArray | None = None
        self.streams: list[str | None] = []
        self.published = 0
        self.stopped: str | None = None
        self.wanted: OwnerTable | None = None
        self.terms: Terms | None = None
        self.files: dict[str, KnownFile] = {}
        self.checkpoints: dict[str, KnownCheckpoint] = {}
        self.given_up: dict[str, int] = {}
        self.published_models: dict[int, str | None] = {}
        self.data: dict[str, str] = {}
        self.returned = 0
        self._records = 0

    @property
    def steps(self) -> int:
        """How many steps stand."""
        return len(self.streams)

    def take(self, body: Mapping[str, Any]) -> None:
        """Take in the next record, or raise `LedgerError` if it cannot follow."""
        number, kind = self._records + 1, body.get("kind")
        known = isinstance(kind, str) and kind in _TAKE and (kind == "ledger") == (number == 1)
        if not known:
            raise _invalid(number, kind, "a ledger opens with one record of kind ledger, and has only kinds it names")
        try:
            _TAKE[str(kind)](self, body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, InosgdError) as error:
            why = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise _invalid(number, kind, why) from error
        self._records = number

    def terms_at(self, step: int) -> Terms:
        """The recorded terms of a step that stands."""
        end = 0
        for phase in self.phases:
            end += phase.steps
            if step < end:
                return phase.terms
        raise _validate.fail("step", step, f"the ledger has {end} steps")

    def phases_until(self, step: int) -> list[Phase]:
        """The phases of the first ``step`` steps."""
        kept, left = [], step
        for phase in self.phases:
            if left > 0:
                kept.append(Phase(min(left, phase.steps), phase.terms))
            left -= phase.steps
        return kept

    def charges_until(self, step: int | None = None) -> list[Phase]:
        """All that is charged for up to ``step``, by default all that stands: the count of classes, and the steps."""
        phases = list(self.phases) if step is None else self.phases_until(step)
        return phases if self.count is None else [Phase(1, self.count), *phases]

    def _take_count(self, body: Mapping[str, Any]) -> None:
        terms = Terms(**body["terms"])
        check_count(terms)
        _validate.same_length(owners=self.table, sampling_rates=terms.sampling_rates)
        if self.count is not None or self.steps or self.stopped:
            raise InvalidArgumentError("count: classes are counted once, before the first step")
        self.count = terms

    def _take_counts(self, body: Mapping[str, Any]) -> None:
        counts = frozen_floats(body["counts"])
        if self.count is None or self.counts is not None:
            raise InvalidArgumentError("counts: they follow their count, once")
        if counts.ndim != 2 or len(counts) != len(self.count.sampling_rates) or not np.isfinite(counts).all():
            raise InvalidArgumentError("counts: give one row of finite numbers per owner")
        self.counts = counts

    def _take_header(self, body: Mapping[str, Any]) -> None:
        if body["format"] != LEDGER_FORMAT:
            raise _validate.other_format("ledger", body["format"], LEDGER_FORMAT, "read it with that version")
        _validate.one_of(ACCOUNTANTS, accountant=body["accountant"])
        self.accountant, self.plan = body["accountant"], body.get("plan")
        self.table = OwnerTable.from_json(body["owners"])

    def _take_terms(self, body: Mapping[str, Any]) -> None:
        terms = Terms(**body["terms"])
        _validate.same_length(owners=self.table, sampling_rates=terms.sampling_rates)
        self.terms = terms

    def _take_step(self, body: Mapping[str, Any]) -> None:
        if body["step"] != self.steps:
            raise _validate.fail("step", body["step"], f"the next step is {self.steps}")
        if self.terms is None or self.stopped:
            raise InvalidArgumentError("terms: a step follows its terms, and none follows a stop")
        self.add_step(self.terms, body.get("streams"))

    def add_step(self, terms: Terms, streams: str | None) -> None:
        """One more step under ``terms``."""
        if self.phases and self.phases[-1].terms is terms:
            self.phases[-1] = Phase(self.phases[-1].steps + 1, terms)
        elif self.phases and self.phases[-1].terms == terms:
            self.phases[-1] = Phase(self.phases[-1].steps + 1, self.phases[-1].terms)
        else:
            self.phases.append(Phase(1, terms))
        self.streams.append(streams)

    def _take_change(self, body: Mapping[str, Any]) -> None:
        table = OwnerTable.from_json(body["owners"])
        check_rows_kept(self.table, table)
        self._cut(body["step"])
        self.phases = [widened(phase, len(table)) for phase in self.phases]
        self.count = None if self.count is None else widened_terms(self.count, len(table))
        if not np.array_equal(self.table.sizes, table.sizes):
            self.data = {name: digest for name, digest in self.data.items() if name not in OF_EXAMPLES}
        self.table, self.plan = table, body.get("plan")
        self.stopped = self.wanted = None

    def _take_rollback(self, body: Mapping[str, Any]) -> None:
        self._cut(body["step"])

    def _cut(self, step: int) -> None:
        self.check_return(step)
        self.phases = self.phases_until(step)
        self.streams = self.streams[:step]
        self.terms, self.returned = None, self._records + 1
        self.files = {name: file for name, file in self.files.items() if (file.step or 0) <= step}
        for checkpoint in list(self.checkpoints.values()):
            if checkpoint.step > step:
                self._give_up(checkpoint.name)

    def _give_up(self, name: str) -> None:
        del self.checkpoints[name]
        self.given_up[name] = self._records + 1

    def check_return(self, step: int) -> None:
        """Raise unless training may go on from ``step``."""
        self.check_recorded(step)
        if step < self.published:
            raise AlreadyPublishedError(step, self.published)

    def check_recorded(self, step: int) -> None:
        """Raise unless there is a model after ``step`` steps."""
        _validate.whole(0, step=step)
        if not step <= self.steps:
            raise _validate.fail("step", step, f"only {self.steps} steps were recorded")

    def _take_published(self, body: Mapping[str, Any]) -> None:
        self.check_recorded(body["step"])
        self.published = max(self.published, body["step"])
        self.published_models[body["step"]] = None if body.get("model") is None else str(body["model"])

    def _take_stop(self, body: Mapping[str, Any]) -> None:
        self.stopped, self.wanted = str(body["reason"]), OwnerTable.from_json(body["wanted"])

    def _take_files(self, body: Mapping[str, Any]) -> None:
        step = body.get("step")
        if step is not None:
            self.check_recorded(step)
        for name, digest in body["files"].items():
            _check_file_name(name)
            self.files[name] = KnownFile(str(digest), step, self._records + 1)

    def _take_checkpoint(self, body: Mapping[str, Any]) -> None:
        self.check_recorded(body["step"])
        name = str(body["name"])
        if CHECKPOINT_NAME.fullmatch(name) is None or name in self.checkpoints or name in self.given_up:
            raise _validate.fail("name", name, "a checkpoint is called step-NUMBER.record-NUMBER, and no two alike")
        state, streams, erased = (str(body[key]) for key in ("state", "streams", "erased"))
        self.checkpoints[name] = KnownCheckpoint(name, body["step"], state, streams, erased, self._records + 1)

    def _take_lost(self, body: Mapping[str, Any]) -> None:
        self._give_up(body["checkpoint"])

    def _take_data(self, body: Mapping[str, Any]) -> None:
        self.data = {str(name): str(digest) for name, digest in body["digests"].items()}

    def in_order(self) -> list[KnownCheckpoint]:
        """The checkpoints that stand, the newest last."""
        return sorted(self.checkpoints.values(), key=lambda each: (each.step, each.record))


_TAKE: dict[str, Callable[[History, Mapping[str, Any]], None]] = {
    "ledger": History._take_header,
    "count": History._take_count,
    "counts": History._take_counts,
    "terms": History._take_terms,
    "step": History._take_step,
    "change": History._take_change,
    "rollback": History._take_rollback,
    "published": History._take_published,
    "stop": History._take_stop,
    "files": History._take_files,
    "checkpoint": History._take_checkpoint,
    "lost": History._take_lost,
    "data": History._take_data,
}

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
        chain = read_chain(_existing(path))
        replay(chain)  # a ledger that cannot be believed is not touched
        if kept is not None and check_kept(kept, chain).records < last_mark(chain).records:
            _keep(kept, last_mark(chain))
        records, chain = RecordFile.open(path)
        ledger = cls.__new__(cls)
        ledger._begin(records, replay(chain), horizon, _messages(chain), kept)
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """The ledger at ``path``, to look at while another process may be writing; nothing is repaired or written."""
        chain = read_chain(_existing(path))
        ledger = cls.__new__(cls)
        ledger._begin(RecordFile(None, chain.position, None), replay(chain), 1, _messages(chain, cut=False))
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
        columns = zip(table.names, table.epsilons, self.spent(), self.remaining(), strict=True)
        rows = (
            (name, f"{epsilon:g}", rounded_up(spent, within=epsilon), rounded_down(left))
            for name, epsilon, spent, left in columns
        )
        title = f"ledger: {self.steps:,} steps, by {self.accountant}"
        return TextTable(title, ("owner", "epsilon", "spent", "left"), rows, len(table))

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

    def mark_lost(self, checkpoint: str) -> None:
        """The checkpoint of this name is damaged or missing, and training goes on without it."""
        self._append({"kind": "lost", "checkpoint": checkpoint})

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


@dataclass(frozen=True)
class Finding:
    """Something wrong with a ledger or a run: which record it is about (None: the whole), and what."""

    record: int | None
    message: str


@dataclass(frozen=True, eq=False)
class LedgerReport:
    """What a verification saw.

    Attributes:
        records: How many records were whole and in their place.
        steps: How many steps stand.
        spent: What each owner has spent, by name, by the ledger's own accountant.
        reference: The same by dp-accounting, for one owner of each distinct exposure.
        findings: What is wrong; empty if nothing is.
        notes: What is worth knowing and not wrong, such as a torn last record.
    """

    records: int
    steps: int
    spent: dict[str, float]
    reference: dict[str, float]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify_ledger(path: Path) -> LedgerReport:
    """Recompute the chain of the ledger at ``path``, and with dp-accounting what every owner has spent.

    Looks at every budget in force at some time: before each change and at the end. Changes nothing. Loss of the last
    records cannot be seen in the file alone; `inosgd.runs.verify_run` compares with the checkpoints.
    """
    try:
        chain = read_chain(_existing(path))
        history, findings = _audited(chain)
    except LedgerError as error:
        return LedgerReport((error.record or 1) - 1, 0, {}, {}, (Finding(error.record, str(error)),))
    spent = epsilons_spent(history.charges_until(), history.table.deltas, history.accountant)
    names, reference = history.table.names, _reference(history)
    return LedgerReport(
        records=chain.position.records,
        steps=history.steps,
        spent=dict(zip(names, spent.tolist(), strict=True)),
        reference={names[owner]: epsilon for owner, epsilon in reference.items()},
        findings=tuple(findings),
        notes=_messages(chain, cut=False),
    )


def _audited(chain: Chain) -> tuple[History, list[Finding]]:
    """What the chain says, and every budget that was passed while it was in force."""
    history, findings = replay(Chain(chain.bodies[:1], chain.hashes[:1], 0)), []
    for number, body in enumerate(chain.bodies[1:], start=2):
        if body["kind"] in ("change", "rollback"):
            findings += _passed(history, number - 1)
        history.take(body)
    return history, [*findings, *_passed(history, len(chain.bodies))]


def _passed(history: History, record: int) -> list[Finding]:
    """The budgets that dp-accounting finds passed by the steps that stand after ``record``."""
    table, findings = history.table, []
    for owner, epsilon in _reference(history).items():
        if not epsilon <= table.epsilons[owner]:
            findings.append(
                Finding(
                    record,
                    f"after record {record}, owner {table.names[owner]!r} has spent {rounded_up(epsilon, 6)} by "
                    f"dp-accounting and allows {table.epsilons[owner]:g}",
                )
            )
    return findings


def _reference(history: History) -> dict[int, float]:
    return reference_epsilons(history.table, history.charges_until(), history.accountant)


def replay(chain: Chain) -> History:
    """What the records of ``chain`` say."""
    history = History()
    for body in chain.bodies:
        history.take(body)
    if not chain.bodies:
        raise LedgerError("the ledger is empty: not even its first record is whole", record=1, fault="lost")
    return history


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


def widened(phase: Phase, owners: int) -> Phase:
    """The phase for a table to which owners were appended: they were not sampled."""
    return Phase(phase.steps, widened_terms(phase.terms, owners))


def widened_terms(terms: Terms, owners: int) -> Terms:
    """The terms for a table to which owners were appended: they were not sampled."""
    missing = owners - len(terms.sampling_rates)
    if missing == 0:
        return terms
    rates = np.append(terms.sampling_rates, np.zeros(missing))
    thresholds = np.append(terms.clipping_thresholds, np.full(missing, terms.clipping_thresholds.min()))
    return Terms(rates, thresholds, terms.noise_scale, terms.expected_batch_size)


def check_rows_kept(old: OwnerTable, new: OwnerTable) -> None:
    """Raise unless ``new`` has the owners of ``old`` in their rows, and only appends others."""
    if new.names[: len(old)] != old.names:
        raise InvalidArgumentError(
            "owners: a change appends owners and keeps the rows of all others, also of those that withdrew; "
            f"the rows were {', '.join(old.names[:5])}{', ...' if len(old) > 5 else ''}"
        )


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


def _check_file_name(name: str) -> None:
    """Names stay below the run folder, and hidden ones are refused."""
    if FILE_NAME.fullmatch(name) is None:
        raise _validate.fail("name", name, "give the path of a file below the run folder")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InvalidArgumentError(f"path={str(path)!r}: there is no ledger; give the ledger.jsonl of a run")
    return path


def _invalid(number: int, kind: object, why: str) -> LedgerError:
    return LedgerError(f"record {number} ({kind}) cannot stand there: {why}", record=number, fault="invalid")


def _messages(chain: Chain, *, cut: bool = True) -> tuple[str, ...]:
    if not chain.torn:
        return ()
    done = "was removed" if cut else "is ignored"
    number = chain.position.records + 1
    return (f"the last record (number {number}) is torn after {chain.torn} bytes and {done}; it was not released",)
