"""Run folders: a training that survives its machine.

    run/
      run.json          what was asked for, as the caller describes it
      data.key          the key of digests of the data (`inosgd.runs.keyed`): secret, as the data are
      plans/            plan-0001.json, and one more for each change of budgets; the ledger names the current one
      ledger.jsonl      what has been spent (`inosgd.ledger`)
      position.json     where the ledger ended when last anything but a step was recorded
      checkpoints/      one folder each (`inosgd.runs.checkpoint`)
      metrics.jsonl     one line per evaluation
      lock              who is at work here

The folder is private (0700) and comes into being whole. The ledger is the truth, about the other files too: each is
known to it by digest before it has its name (`inosgd.runs.files`), and a checkpoint counts only if the ledger knows it
and has not rolled back behind it.

Why a killed run costs nothing twice. A step is on disk in the ledger before its noisy sum exists. A checkpoint is
written after the step. So after a kill the ledger has every step that the checkpoints have, and perhaps some more,
whose outcome was only in memory. The resumed run has the model, the optimizer, the step and the state of every
random stream as they were; it draws the same samples, orders, masks and noise from them, with a seeded source and with
a secure one, and so computes the same bits as the first time. The ledger compares the streams and terms of each such
step with its record and charges nothing: one outcome was computed twice. `resume` refuses another plan, and by keyed
digests other owners, examples or methods: under the same noise, another sum would show its difference from the first.
What it cannot compare is code, that is the model's forward pass and the loss. Bits are the same on the same machine
with the same number of threads and processes (`inosgd.distributed` says how often on another number); where rounding
differs, the first outcome was never seen by anybody, because it died in memory (steps up to a release are never
computed again).

    with run.lock():
        state = begin(run, trainer, model, optimizer, SecureSource())       # or resume(run, trainer, model, optimizer)
        train_durably(run, trainer, state, every=100)
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inosgd import _validate
from inosgd.errors import CheckpointError, InosgdError, InvalidArgumentError, RunLockedError
from inosgd.files import read_regular, sha256, sync_folder, write_private
from inosgd.ledger.ledger import Finding, History, Ledger, LedgerReport, replay, verify_ledger
from inosgd.ledger.records import read_chain
from inosgd.plan import Plan
from inosgd.planning.verification import check_spent
from inosgd.randomness import RandomSource
from inosgd.runs.checkpoint import Checkpoint, copy_to_peers, erase_keys, read_checkpoint, restore, write_checkpoint
from inosgd.runs.files import (
    CHECKPOINTS,
    DESCRIPTION,
    KEY,
    LEDGER,
    METRICS,
    PLANS,
    POSITION,
    WITH_KEYS,
    Comparison,
    check_checkpoints_known,
    check_needed,
    compare,
    complete,
    put,
    read_checkpoints,
    read_known,
)
from inosgd.runs.keyed import new_key, training_digests
from inosgd.training import Callback, Trainer, TrainingState, fit
from inosgd.training import every as after_every

RUN_FORMAT = 2

MOST_LOOKS = 10
"""How often files are compared with the ledger while somebody else changes them."""

_held: set[tuple[int, int, int]] = set()
"""The folders that this process has locked, by `_identity`: a file lock does not keep a process from itself."""


@dataclass(frozen=True)
class RunFolder:
    """A folder with everything about one training."""

    path: Path

    @classmethod
    def create(cls, path: Path, description: Mapping[str, Any], plan: Plan, *, key: bytes | None = None) -> RunFolder:
        """A new run: its description, its first plan and an empty ledger, all there or nothing.

        Args:
            path: A folder that does not exist yet.
            description: Whatever is needed to build the training again, as JSON.
            plan: What the steps will do.
            key: Of digests of the data in ``description``, if it has any; by default a new one.
        """
        path = path.absolute()
        if path.exists():
            raise InvalidArgumentError(f"path={str(path)!r}: it already exists; choose a new folder, or resume it")
        path.parent.mkdir(parents=True, exist_ok=True)
        working = path.parent / f".{path.name}.{os.getpid()}.partial"
        working.mkdir(mode=0o700)
        try:
            _fill(cls(working), description, plan, key or new_key())
            working.rename(path)
        except BaseException:
            shutil.rmtree(working, ignore_errors=True)
            raise
        sync_folder(path.parent)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run at ``path``."""
        run = cls(path.absolute())
        try:
            fields = json.loads(read_regular(run.description_path))
            found = fields["format"] if isinstance(fields["description"], dict) else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            fix = "restore its run.json from a copy" if run.ledger_path.exists() else "give the folder of one"
            raise InvalidArgumentError(f"path={str(path)!r}: there is no run; {fix}") from None
        if found != RUN_FORMAT:
            raise _validate.fail("format", found, f"this version reads runs of format {RUN_FORMAT}")
        return run

    @property
    def description_path(self) -> Path:
        """What was asked for."""
        return self.path / DESCRIPTION

    @property
    def ledger_path(self) -> Path:
        """What has been spent."""
        return self.path / LEDGER

    @property
    def metrics_path(self) -> Path:
        """One JSON line per evaluation."""
        return self.path / METRICS

    @property
    def checkpoints_path(self) -> Path:
        """One folder per checkpoint."""
        return self.path / CHECKPOINTS

    @property
    def plans_path(self) -> Path:
        """One file per plan, the first and one per change."""
        return self.path / PLANS

    def description(self) -> dict[str, Any]:
        """What `create` was given."""
        fields: dict[str, Any] = json.loads(self.description_path.read_text(encoding="utf-8"))["description"]
        return fields

    def data_key(self) -> bytes:
        """The key of digests of the data; secret."""
        return self.read_file(KEY)

    def read_file(self, name: str) -> bytes:
        """A file that the ledger knows, compared with what it says."""
        return read_known(self.path, self.read_ledger().history, name)

    def check_files(self) -> None:
        """Raise unless description, plans and whatever else training goes on from are those that the ledger knows."""
        check_needed(self.path, self.read_ledger().history)

    @contextmanager
    def lock(self) -> Iterator[RunFolder]:
        """Inside, nobody else trains or changes this run; the lock ends with the process, however it ends.

        By whatever path, link or mount the folder is reached, it is one folder and has one lock.

        Raises:
            RunLockedError: If somebody is at work here; it says who.
        """
        path, identity = self.path / "lock", _identity(self.path)
        if identity in _held:
            raise _locked(self.path, f"this process ({os.getpid()})")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a+", encoding="utf-8") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise _locked(self.path, file.read().strip() or "another process") from None
            _sign(file)
            _held.add(identity)
            try:
                yield self
            finally:
                _held.discard(identity)

    def require_lock(self) -> None:
        """Raise unless this process holds the lock."""
        if _identity(self.path) not in _held:
            raise InvalidArgumentError(f"run {str(self.path)!r} is not locked: work on it inside `with run.lock():`")

    def open_ledger(self) -> Ledger:
        """The ledger, to go on with; needs the lock. What a killed process had recorded and not named gets its name.

        Raises:
            LedgerError: If the ledger cannot be believed, or has lost records.
            InvalidArgumentError: If a file that training goes on from is not the one that the ledger knows.
        """
        self.require_lock()
        ledger = Ledger.open(self.ledger_path, horizon=self.plan().steps, kept=self.path / POSITION)
        try:
            complete(self.path, ledger.history)
            check_needed(self.path, ledger.history)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def read_ledger(self) -> Ledger:
        """The ledger, to look at; needs no lock and changes nothing."""
        return Ledger.read(self.ledger_path)

    def plan(self) -> Plan:
        """The current plan: the one that the ledger names, its spending computed again."""
        history = self.read_ledger().history
        names = [name for name, known in history.files.items() if known.sha256 == history.plan]
        if not names:
            raise InvalidArgumentError(f"{self.ledger_path}: it names a plan that it knows no file of; restore a copy")
        plan = Plan.from_json(read_known(self.path, history, names[0]).decode())
        check_spent(plan)
        return plan

    def plans(self) -> list[Path]:
        """All plan files, the oldest first."""
        return sorted(self.plans_path.glob("plan-*.json"))

    def next_plan(self, plan: Plan) -> dict[str, bytes]:
        """The file for a plan that comes after those there are, by name; `inosgd.runs.files.put` writes it."""
        return {f"{PLANS}/plan-{len(self.plans()) + 1:04d}.json": plan.to_json().encode()}

    def mark_files(self, digests: Mapping[str, str], step: int) -> None:
        """Tell the ledger of files that are about to get their names, by SHA-256; needs the lock.

        Args:
            digests: By name, a path below the folder.
            step: After how many steps they were made.
        """
        ledger = self.open_ledger()
        try:
            ledger.mark_files(digests, step)
        finally:
            ledger.close()

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that stand by the ledger, the newest last; ones that are not what it says are left out.

        Their tensors are not read; `inosgd.runs.checkpoint.read_checkpoint` compares every byte.

        Raises:
            LedgerError, CheckpointError: If there is a checkpoint that the ledger does not know.
        """
        chain = read_chain(self.ledger_path)
        history = replay(chain)
        check_checkpoints_known(self.path, chain, history)
        found = read_checkpoints(self.path, history, tensors=False)
        return [each for each in found if isinstance(each, Checkpoint)]

    def checkpoint_at(self, step: int) -> Checkpoint:
        """The newest checkpoint after ``step`` steps."""
        found = [checkpoint for checkpoint in self.checkpoints() if checkpoint.step == step]
        if not found:
            steps = sorted({checkpoint.step for checkpoint in self.checkpoints()})
            raise _validate.fail("step", step, f"there are checkpoints after steps {', '.join(map(str, steps))}")
        return found[-1]

    def mark_release(self, step: int | None = None) -> Checkpoint:
        """Mark a checkpoint, by default the last, as having left the house; needs the lock.

        Call it before the model is handed out: spending up to ``step`` is never given back from then on.
        """
        asked = self.checkpoint_at(step) if step is not None else _last(self)
        chosen = read_checkpoint(asked.path, asked.known)
        ledger = self.open_ledger()
        try:
            ledger.mark_release(chosen.step, chosen.model_digest)
        finally:
            ledger.close()
        return chosen

    def add_metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        descriptor = os.open(self.metrics_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All metrics, the oldest first; a line that a crash cut short is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def forget_after(self, step: int) -> None:
        """Remove the metrics after ``step``, and the checkpoints that no longer stand; needs the lock."""
        self.require_lock()
        kept = [line for line in self.metrics() if line["step"] <= step]
        if self.metrics_path.exists():
            write_private(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        standing = self.read_ledger().history.checkpoints
        for path in self.checkpoints_path.iterdir():
            if path.name not in standing and not path.name.startswith(".damaged-"):
                shutil.rmtree(path)

    def roll_back(self, step: int) -> None:
        """Give up the steps after the checkpoint at ``step``, which nobody outside has seen; needs the lock.

        Raises:
            AlreadyReleasedError: If the model was released after a later step.
        """
        self.checkpoint_at(step)
        ledger = self.open_ledger()
        try:
            ledger.mark_rollback(step)
        finally:
            ledger.close()
        self.forget_after(step)


def begin(
    run: RunFolder | None,
    trainer: Trainer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: RandomSource,
    *,
    also: Mapping[str, Any] | None = None,
    data: bytes | None = None,
) -> TrainingState:
    """The state before the first step, with a checkpoint of it; needs the lock.

    Args:
        run: A run that `RunFolder.create` made for ``trainer.plan``. On many processes the first has it, and the others
            give None.
        trainer: What does not change.
        model: Initialised.
        optimizer: Of the model's parameters.
        source: Randomness; `SecureSource` for a model that leaves the house.
        also: Whatever else changes with the steps and has a ``state_dict``, by name.
        data: What stands for the examples when `resume` asks whether they are the same, such as checksums of their
            files; without it, all of them are read, here and there.
    """
    with trainer.peers.together():
        ledger = _new_ledger(_given(run), trainer, data) if trainer.peers.first else None
    state = TrainingState.start(trainer, model, optimizer, source, ledger, also)
    with trainer.peers.together():
        if trainer.peers.first:
            write_checkpoint(_given(run).checkpoints_path, state)
    return state


def _given(run: RunFolder | None) -> RunFolder:
    if run is None:
        raise InvalidArgumentError("run=None: the first process, or the only one, gives the run folder")
    return run


def _new_ledger(run: RunFolder, trainer: Trainer, data: bytes | None) -> Ledger:
    ledger = run.open_ledger()
    try:
        if ledger.steps or run.checkpoints():
            raise InvalidArgumentError(f"run {str(run.path)!r} has begun already: resume it")
        _check_same_training(run, trainer, ledger, data)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _check_same_training(run: RunFolder, trainer: Trainer, ledger: Ledger, data: bytes | None) -> None:
    """Raise unless the run was begun with this plan, these owners and examples and this method; record new ones."""
    if sha256(trainer.plan.to_json().encode()) != ledger.plan:
        raise InvalidArgumentError("plan: it is not the one that the run goes by; build the trainer for run.plan()")
    found, recorded = training_digests(run.data_key(), trainer, data), ledger.history.data
    for what, digest in found.items():
        if recorded.get(what, digest) != digest:
            raise InvalidArgumentError(
                f"{what}: not what run {str(run.path)!r} was begun with, and noise of steps that were recorded would "
                f"cover something else; resume with the same {what}, or train anew"
            )
    if recorded != found:
        ledger.mark_data(found)


@dataclass(frozen=True)
class Resumed:
    """A restored state, and what there is to say about it: a torn record, a damaged checkpoint, replayed steps."""

    state: TrainingState
    messages: tuple[str, ...]


def resume(
    run: RunFolder,
    trainer: Trainer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: RandomSource | None = None,
    *,
    also: Mapping[str, Any] | None = None,
    data: bytes | None = None,
) -> Resumed:
    """The state at the last good checkpoint; needs the lock, in the first process.

    A newest checkpoint that is not the one that the ledger knows (damaged, forged, older, missing) is set aside, which
    is recorded, and the one before it is used. A run that was killed before its first
    checkpoint begins again, from ``model`` and ``source`` as they are given. After a change of budgets the streams
    are new ones: noise of steps that were given up is never used again under other terms.

    On many processes all call it, and they need not be as many as before. The first restores, and sends its state to
    the others, which read no more of the run than its ledger.

    Args:
        run: What was begun.
        trainer: For ``run.plan()``, with the examples, owners and method of the run; another is refused.
        model: Of the same architecture.
        optimizer: Of the same class.
        source: For a run that was not begun yet.
        also: Whatever else was saved.
        data: As `begin` was given.

    Raises:
        InvalidArgumentError: If ``trainer`` is another training, or a file of the run is not what the ledger knows.
        LedgerError: If the ledger cannot be believed, or has lost records that a checkpoint knows of.
        CheckpointError: If no checkpoint can be used, or it does not fit ``model`` or ``optimizer``.
    """
    peers = trainer.peers
    with peers.together():
        ledger = run.open_ledger() if peers.first else Ledger.in_memory(run.ledger_path, horizon=trainer.plan.steps)
    try:
        state = TrainingState.start(trainer, model, optimizer, source or peers.source(), ledger, also)
        with peers.together():
            if peers.first:
                _check_same_training(run, trainer, ledger, data)
            messages = _restored(run, state, source) if peers.first else []
        copy_to_peers(peers, state)
    except BaseException:
        ledger.close()
        raise
    return Resumed(state, (*ledger.messages, *messages))


def _restored(run: RunFolder, state: TrainingState, source: RandomSource | None) -> list[str]:
    """Bring ``state`` to the last good checkpoint, and say what there is to say about it."""
    run.checkpoints()  # raises if there is one that the ledger does not know
    history, messages = state.ledger.history, []
    checkpoint, spoiled = _newest_whole(run, history)
    if checkpoint is None:
        _check_unbegun(run, state.ledger, source)
    else:
        _check_not_behind_release(checkpoint, state.ledger)
        restore(checkpoint, state)
        _renew_after_change(checkpoint, state, source)
    messages += _set_aside(run, state.ledger, spoiled)
    run.forget_after(state.step)
    messages += _replay_message(state)
    if checkpoint is None or checkpoint.known.record < history.returned:
        write_checkpoint(run.checkpoints_path, state)
    return messages


def train_durably(
    run: RunFolder | None,
    trainer: Trainer,
    state: TrainingState,
    *,
    every: int,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> TrainingState:
    """Take ``steps`` steps, by default all that are left, with a checkpoint after each ``every`` and at the end.

    Needs the lock. Callbacks run before the checkpoint of their step, so what they change of ``state`` is in it. Once
    the plan is finished and its last checkpoint is whole, no checkpoint keeps a key of its random streams. On many
    processes all call it, and the first, which holds the lock, writes.
    """
    if not trainer.peers.first:
        return fit(trainer, state, steps=steps, callbacks=callbacks)
    folder = _given(run)
    folder.require_lock()
    recent = folder.checkpoints()

    def erase() -> None:
        while len(recent) > WITH_KEYS:
            erase_keys(recent.pop(0))

    def save(at: TrainingState) -> None:
        recent.append(write_checkpoint(folder.checkpoints_path, at))
        erase()

    erase()  # what a killed process had not come to
    fit(trainer, state, steps=steps, callbacks=[*callbacks, after_every(every, save)], progress=progress)
    if state.step % every:
        save(state)
    if state.step == trainer.plan.steps:
        for checkpoint in folder.checkpoints():
            erase_keys(checkpoint)
    return state


def verify_run(run: RunFolder) -> LedgerReport:
    """`verify_ledger`, and: every file of the run is what the ledger says, and nothing is missing at its end.

    Changes nothing and needs no lock. What a process may have left that was killed is a note, not a finding, but for
    keys of random streams that should be erased by now.
    """
    report = verify_ledger(run.ledger_path)
    if not report.good:
        return report
    try:
        seen = _compared(run, run.plan().steps)
    except InosgdError as error:
        seen = _compared(run, None)
        if not seen.findings:
            seen = Comparison((Finding(None, str(error)),), seen.notes)
    return replace(report, findings=seen.findings, notes=(*report.notes, *seen.notes))


def _compared(run: RunFolder, planned: int | None) -> Comparison:
    """What is wrong at two looks: a training that goes on meanwhile may be in the middle of something at one."""
    seen = compare(run.path, planned)
    for _ in range(MOST_LOOKS):
        before, seen = seen, compare(run.path, planned) if seen.findings else seen
        if seen.findings == before.findings:
            break
    return seen


def _newest_whole(run: RunFolder, history: History) -> tuple[Checkpoint | None, dict[str, str]]:
    """The newest checkpoint that is what the ledger says; by name, why newer ones are not, and missing older ones."""
    spoiled: dict[str, str] = {}
    whole = None
    for known in reversed(history.in_order()):
        path = run.checkpoints_path / known.name
        if whole is None or not path.exists():
            try:
                whole = read_checkpoint(path, known)
            except CheckpointError as error:
                spoiled[known.name] = str(error)
    return whole, spoiled


def _set_aside(run: RunFolder, ledger: Ledger, spoiled: Mapping[str, str]) -> list[str]:
    """Hide checkpoints that cannot be used, without their keys, and record that they are lost."""
    for name in spoiled:
        path = run.checkpoints_path / name
        if path.exists():
            (path / "streams.json").unlink(missing_ok=True)
            path.rename(path.parent / f".damaged-{name}")
        ledger.mark_lost(name)
    return [f"{why}; it was set aside" for why in spoiled.values()]


def _check_unbegun(run: RunFolder, ledger: Ledger, source: RandomSource | None) -> None:
    if ledger.steps:
        raise CheckpointError(
            f"run {str(run.path)!r} has {ledger.steps} recorded steps and no whole checkpoint; restore one from a copy"
        )
    if source is None:
        raise CheckpointError(f"run {str(run.path)!r} has no checkpoint and has not begun: begin it, or give a source")


def _check_not_behind_release(checkpoint: Checkpoint, ledger: Ledger) -> None:
    """Steps that were released are not computed again: on another machine rounding would differ under equal noise."""
    if checkpoint.step < ledger.released:
        raise CheckpointError(
            f"the model was released after step {ledger.released}, and the last whole checkpoint is after step "
            f"{checkpoint.step}; restore the checkpoint of the release from a copy"
        )


def _renew_after_change(checkpoint: Checkpoint, state: TrainingState, source: RandomSource | None) -> None:
    """New random streams, if the ledger has a change or rollback that the checkpoint does not know of."""
    last = state.ledger.history.returned
    if checkpoint.known.record < last:
        state.streams = state.streams.renewed(f"after record {last}", source)


def _replay_message(state: TrainingState) -> list[str]:
    again = state.ledger.steps - state.step
    if again == 0:
        return []
    return [f"{again} recorded steps after the checkpoint are computed again with the same draws and noise, at no cost"]


def _fill(run: RunFolder, description: Mapping[str, Any], plan: Plan, key: bytes) -> None:
    for folder in (run.plans_path, run.checkpoints_path):
        folder.mkdir(mode=0o700)
    fields = {"format": RUN_FORMAT, "version": version("inosgd"), "description": dict(description)}
    described, first = json.dumps(fields, indent=1, allow_nan=False).encode(), run.next_plan(plan)
    digest = sha256(plan.to_json().encode())
    ledger = Ledger(plan.table, plan.accountant, run.ledger_path, plan=digest, kept=run.path / POSITION)
    try:
        put(run.path, ledger, {DESCRIPTION: described, KEY: key, **first})
    finally:
        ledger.close()


def _identity(folder: Path) -> tuple[int, int, int]:
    """This process and the folder itself, whatever path leads to it; a forked process holds no lock."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        raise InvalidArgumentError(f"path={str(folder)!r}: there is no run; give the folder of one") from None
    return os.getpid(), found.st_dev, found.st_ino


def _sign(file: Any) -> None:
    file.seek(0)
    file.truncate()
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n")
    file.flush()


def _locked(path: Path, holder: str) -> RunLockedError:
    return RunLockedError(f"run {str(path)!r} is in use by {holder}; wait for it to end, or end it", holder)


def _last(run: RunFolder) -> Checkpoint:
    found = run.checkpoints()
    if not found:
        raise InvalidArgumentError(f"run {str(run.path)!r} has no checkpoint yet: train it first")
    return found[-1]
