"""What the records of a ledger mean: its kinds of records, and the history that they tell.

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
    lost        a checkpoint, by name, that is given up; ``why``: "damaged" (or missing), or "thinned" (one of many)
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

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, frozen_floats
from inosgd.accounting import ACCOUNTANTS
from inosgd.errors import AlreadyPublishedError, InosgdError, InvalidArgumentError, LedgerError
from inosgd.ledger.records import Chain
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Terms, check_count

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
        thinned: Those of them that were one of many: by name the SHA-256 of their streams without keys.
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
        self.thinned: dict[str, str] = {}
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
        known = self.checkpoints[body["checkpoint"]]
        if body.get("why") == "thinned":
            self.thinned[known.name] = known.erased
        self._give_up(known.name)

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


def replay(chain: Chain) -> History:
    """What the records of ``chain`` say."""
    history = History()
    for body in chain.bodies:
        history.take(body)
    if not chain.bodies:
        raise LedgerError("the ledger is empty: not even its first record is whole", record=1, fault="lost")
    return history


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


def _check_file_name(name: str) -> None:
    """Names stay below the run folder, and hidden ones are refused."""
    if FILE_NAME.fullmatch(name) is None:
        raise _validate.fail("name", name, "give the path of a file below the run folder")


def _invalid(number: int, kind: object, why: str) -> LedgerError:
    return LedgerError(f"record {number} ({kind}) cannot stand there: {why}", record=number, fault="invalid")
