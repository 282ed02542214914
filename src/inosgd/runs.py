"""Run folders: a training that survives its machine.

    run/
      run.json          what was asked for, as the caller describes it
      plans/            plan-0001.json, and one more for each change of budgets; the ledger names the current one
      ledger.jsonl      what has been spent (`inosgd.ledger`)
      checkpoints/      one folder each (`inosgd.checkpoint`)
      metrics.jsonl     one line per evaluation
      lock              who is at work here

The folder is private (0700) and comes into being whole. The ledger is the truth: a checkpoint counts only if the
ledger knows the place it was written at and has not rolled back behind it.

Why a killed run costs nothing twice. A step is on disk in the ledger before its noisy sum exists. A checkpoint is
written after the step. So after a kill the ledger has every step that the checkpoints have, and perhaps some more,
whose outcome was only in memory. The resumed run has the model, the optimizer, the step and the state of every
random stream as they were; it draws the same samples, orders, masks and noise from them, with a seeded source and with
a secure one, and so computes the same bits as the first time. The ledger compares the streams and terms of each such
step with its record and charges nothing: one outcome was computed twice. Bits are the same on the same machine with the
same number of threads and processes (`inosgd.distributed` says how often on another number); where rounding differs,
the first outcome was never seen by anybody, because it died in memory (steps up to a release are never computed again).

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inosgd import _validate
from inosgd.checkpoint import Checkpoint, copy_to_peers, erase_keys, read_checkpoint, restore, write_checkpoint
from inosgd.errors import CheckpointError, InosgdError, InvalidArgumentError, LedgerError, RunLockedError
from inosgd.files import sha256, write_private
from inosgd.ledger import Finding, Ledger, LedgerReport, verify_ledger
from inosgd.plan import Plan
from inosgd.planning.verification import check_spent
from inosgd.randomness import AgreedSource, RandomSource
from inosgd.records import Chain, read_chain, sync_folder
from inosgd.training import Callback, Trainer, TrainingState, fit
from inosgd.training import every as after_every

RUN_FORMAT = 1

_held: set[Path] = set()
"""The locks that this process holds: a file lock does not keep a process from itself."""


@dataclass(frozen=True)
class RunFolder:
    """A folder with everything about one training."""

    path: Path

    @classmethod
    def create(cls, path: Path, description: Mapping[str, Any], plan: Plan) -> RunFolder:
        """A new run: its description, its first plan and an empty ledger, all there or nothing.

        Args:
            path: A folder that does not exist yet.
            description: Whatever is needed to build the training again, as JSON.
            plan: What the steps will do.
        """
        path = path.absolute()
        if path.exists():
            raise InvalidArgumentError(f"path={str(path)!r}: it already exists; choose a new folder, or resume it")
        path.parent.mkdir(parents=True, exist_ok=True)
        working = path.parent / f".{path.name}.{os.getpid()}.partial"
        working.mkdir(mode=0o700)
        try:
            _fill(cls(working), description, plan)
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
            fields = json.loads(run.description_path.read_text(encoding="utf-8"))
            found = fields["format"] if isinstance(fields["description"], dict) else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise InvalidArgumentError(f"path={str(path)!r}: there is no run; give the folder of one") from None
        if found != RUN_FORMAT:
            raise _validate.fail("format", found, f"this version reads runs of format {RUN_FORMAT}")
        return run

    @property
    def description_path(self) -> Path:
        """What was asked for."""
        return self.path / "run.json"

    @property
    def ledger_path(self) -> Path:
        """What has been spent."""
        return self.path / "ledger.jsonl"

    @property
    def metrics_path(self) -> Path:
        """One JSON line per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints_path(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def plans_path(self) -> Path:
        """One file per plan, the first and one per change."""
        return self.path / "plans"

    def description(self) -> dict[str, Any]:
        """What `create` was given."""
        fields: dict[str, Any] = json.loads(self.description_path.read_text(encoding="utf-8"))["description"]
        return fields

    @contextmanager
    def lock(self) -> Iterator[RunFolder]:
        """Inside, nobody else trains or changes this run; the lock ends with the process, however it ends.

        Raises:
            RunLockedError: If somebody is at work here; it says who.
        """
        path = self.path / "lock"
        if self.path in _held:
            raise _locked(self.path, f"this process ({os.getpid()})")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a+", encoding="utf-8") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise _locked(self.path, file.read().strip() or "another process") from None
            _sign(file)
            _held.add(self.path)
            try:
                yield self
            finally:
                _held.discard(self.path)

    def require_lock(self) -> None:
        """Raise unless this process holds the lock."""
        if self.path not in _held:
            raise InvalidArgumentError(f"run {str(self.path)!r} is not locked: work on it inside `with run.lock():`")

    def open_ledger(self) -> Ledger:
        """The ledger, to go on with; needs the lock."""
        self.require_lock()
        return Ledger.open(self.ledger_path, horizon=self.plan().steps)

    def read_ledger(self) -> Ledger:
        """The ledger, to look at; needs no lock and changes nothing."""
        return Ledger.read(self.ledger_path)

    def plan(self) -> Plan:
        """The current plan: the one that the ledger names, its spending computed again."""
        wanted = self.read_ledger().plan
        for path in self.plans():
            content = path.read_bytes()
            if sha256(content) == wanted:
                plan = Plan.from_json(content.decode())
                check_spent(plan)
                return plan
        raise InvalidArgumentError(f"{self.plans_path}: no plan there is the one that the ledger names; restore it")

    def plans(self) -> list[Path]:
        """All plan files, the oldest first."""
        return sorted(self.plans_path.glob("plan-*.json"))

    def add_plan(self, plan: Plan) -> str:
        """Write ``plan`` as the next file and return its SHA-256, under which the ledger will know it."""
        content = plan.to_json().encode()
        write_private(self.plans_path / f"plan-{len(self.plans()) + 1:04d}.json", content)
        return sha256(content)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that stand by the ledger, the newest last; ones that cannot be read are left out.

        Their tensors are not read; `inosgd.checkpoint.read_checkpoint` compares every byte.
        """
        chain = read_chain(self.ledger_path)
        standing = [each for each in self._readable(tensors=False) if stands(each, chain)]
        return sorted(standing, key=lambda each: (each.step, each.position.records))

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
        chosen = read_checkpoint((self.checkpoint_at(step) if step is not None else _last(self)).path)
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
        standing = {checkpoint.path for checkpoint in self.checkpoints()}
        for path in self.checkpoints_path.iterdir():
            if path not in standing and not path.name.startswith(".damaged-"):
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

    def _readable(self, *, tensors: bool) -> Iterator[Checkpoint]:
        for path in self.checkpoint_paths():
            with suppress(CheckpointError):
                yield read_checkpoint(path, tensors=tensors)

    def checkpoint_paths(self) -> list[Path]:
        """The folders of all checkpoints, damaged ones too, the oldest first."""
        return sorted(self.checkpoints_path.glob("step-*"))


def stands(checkpoint: Checkpoint, chain: Chain) -> bool:
    """Whether the run has not gone back behind the checkpoint since.

    Raises:
        LedgerError: If the ledger does not have the record that was its last when the checkpoint was written.
    """
    records, digest = checkpoint.position
    if records > len(chain.hashes):
        raise LedgerError(
            f"the ledger has {len(chain.hashes)} records, and {records} when checkpoint {checkpoint.path.name} was "
            "written: its last records were lost; restore it from a copy, because what is missing has been spent",
            record=len(chain.hashes) + 1,
            fault="lost",
        )
    if chain.hashes[records - 1] != digest:
        raise LedgerError(
            f"record {records} is not the one that checkpoint {checkpoint.path.name} was written after: the ledger was "
            "rewritten or belongs to another run",
            record=records,
            fault="edited",
        )
    returns = [body["step"] for body in chain.bodies[records:] if body["kind"] in ("change", "rollback")]
    return all(checkpoint.step <= step for step in returns)


def begin(
    run: RunFolder | None,
    trainer: Trainer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: RandomSource,
    *,
    also: Mapping[str, Any] | None = None,
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
    """
    with trainer.peers.together():
        ledger = _new_ledger(_given(run)) if trainer.peers.first else None
    state = TrainingState.start(trainer, model, optimizer, source, ledger, also)
    with trainer.peers.together():
        if trainer.peers.first:
            write_checkpoint(_given(run).checkpoints_path, state)
    return state


def _given(run: RunFolder | None) -> RunFolder:
    if run is None:
        raise InvalidArgumentError("run=None: the first process, or the only one, gives the run folder")
    return run


def _new_ledger(run: RunFolder) -> Ledger:
    ledger = run.open_ledger()
    if ledger.steps or run.checkpoints():
        ledger.close()
        raise InvalidArgumentError(f"run {str(run.path)!r} has begun already: resume it")
    return ledger


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
) -> Resumed:
    """The state at the last good checkpoint; needs the lock, in the first process.

    A damaged newest checkpoint is set aside, and the one before it is used. A run that was killed before its first
    checkpoint begins again, from ``model`` and ``source`` as they are given. After a change of budgets the streams
    are new ones: noise of steps that were given up is never used again under other terms.

    On many processes all call it, and they need not be as many as before. The first restores, and sends its state to
    the others, which read no more of the run than its ledger.

    Raises:
        LedgerError: If the ledger cannot be believed, or has lost records that a checkpoint knows of.
        CheckpointError: If no checkpoint can be used, or it does not fit ``model`` or ``optimizer``.
    """
    peers = trainer.peers
    with peers.together():
        ledger = run.open_ledger() if peers.first else Ledger.in_memory(run.ledger_path, horizon=trainer.plan.steps)
    try:
        state = TrainingState.start(trainer, model, optimizer, source or peers.source(), ledger, also)
        with peers.together():
            messages = _restored(run, state, source) if peers.first else []
        copy_to_peers(peers, state)
    except BaseException:
        ledger.close()
        raise
    return Resumed(state, (*ledger.messages, *messages))


def _restored(run: RunFolder, state: TrainingState, source: RandomSource | None) -> list[str]:
    """Bring ``state`` to the last good checkpoint, and say what there is to say about it."""
    messages: list[str] = []
    checkpoint = _last_good(run, messages)
    if checkpoint is None:
        _check_unbegun(run, state.ledger, source)
    else:
        _check_not_behind_release(checkpoint, state.ledger)
        restore(checkpoint, state)
        _renew_after_change(run, checkpoint, state, source)
        run.forget_after(state.step)
        messages += _replay_message(state)
    if checkpoint is None or checkpoint.position.records < _last_return(run):
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

    def save(at: TrainingState) -> None:
        recent.append(write_checkpoint(folder.checkpoints_path, at))
        while len(recent) > 2:
            erase_keys(recent.pop(0))

    fit(trainer, state, steps=steps, callbacks=[*callbacks, after_every(every, save)], progress=progress)
    if state.step % every:
        save(state)
    if state.step == trainer.plan.steps:
        for checkpoint in folder.checkpoints():
            erase_keys(checkpoint)
    return state


def verify_run(run: RunFolder) -> LedgerReport:
    """`verify_ledger`, and: every checkpoint, plan and release is what the ledger says; nothing is missing at its end.

    Changes nothing and needs no lock.
    """
    report = verify_ledger(run.ledger_path)
    if not report.good:
        return report
    findings: list[Finding] = []
    notes = list(report.notes)
    try:
        chain = read_chain(run.ledger_path)
        for path in run.checkpoint_paths():
            notes += _damage(path, chain)
        run.plan()
    except LedgerError as error:
        findings.append(Finding(error.record, str(error)))
    except InosgdError as error:
        findings.append(Finding(None, str(error)))
    return replace(report, findings=tuple(findings), notes=tuple(notes))


def _damage(path: Path, chain: Chain) -> list[str]:
    """What is wrong with a checkpoint; `LedgerError` if it is the ledger that does not fit it."""
    try:
        stands(read_checkpoint(path), chain)
    except CheckpointError as error:
        return [str(error)]
    return []


def _last_good(run: RunFolder, messages: list[str]) -> Checkpoint | None:
    """The newest checkpoint that stands and is whole; damaged ones on the way are set aside, with a message."""
    standing = {checkpoint.path for checkpoint in run.checkpoints()}
    for path in reversed(run.checkpoint_paths()):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            path.rename(path.parent / f".damaged-{path.name}")
            messages.append(f"{error}; it was set aside")
            continue
        if path in standing:
            return checkpoint
    return None


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


def _last_return(run: RunFolder) -> int:
    """The number of the last change or rollback in the ledger; 0 if there is none."""
    bodies = read_chain(run.ledger_path).bodies
    return max((number for number, body in enumerate(bodies, 1) if body["kind"] in ("change", "rollback")), default=0)


def _renew_after_change(
    run: RunFolder, checkpoint: Checkpoint, state: TrainingState, source: RandomSource | None
) -> None:
    """New random streams, if the ledger has a change or rollback that the checkpoint does not know of.

    Where all processes have agreed on a ``source``, they come from it, so that no process chooses their keys alone.
    """
    last = _last_return(run)
    if checkpoint.position.records < last:
        label = f"after record {last}"
        streams = [
            source.stream(f"{name} {label}") if isinstance(source, AgreedSource) else each.stream(label)
            for name, each in state.streams.items()
        ]
        state.sampling, state.ordering, state.noise, state.masks = streams


def _replay_message(state: TrainingState) -> list[str]:
    again = state.ledger.steps - state.step
    if again == 0:
        return []
    return [f"{again} recorded steps after the checkpoint are computed again with the same draws and noise, at no cost"]


def _fill(run: RunFolder, description: Mapping[str, Any], plan: Plan) -> None:
    for folder in (run.plans_path, run.checkpoints_path):
        folder.mkdir(mode=0o700)
    fields = {"format": RUN_FORMAT, "version": version("inosgd"), "description": dict(description)}
    write_private(run.description_path, json.dumps(fields, indent=1, allow_nan=False).encode())
    digest = run.add_plan(plan)
    Ledger(plan.table, plan.accountant, run.ledger_path, plan=digest).close()


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
