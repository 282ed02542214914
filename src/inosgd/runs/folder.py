"""Run folders: everything about one training.

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

`RunFolder` reads. Only what `RunFolder.lock` gives, a `LockedRun`, writes. `inosgd.runs.resuming` trains in it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.files import read_regular, sha256, sync_folder, write_private
from inosgd.ledger.history import replay
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import read_chain
from inosgd.plan import Plan
from inosgd.planning.verification import check_spent
from inosgd.runs.checkpoint import Checkpoint, read_checkpoint
from inosgd.runs.files import (
    CHECKPOINTS,
    DESCRIPTION,
    KEY,
    LEDGER,
    METRICS,
    PLANS,
    POSITION,
    check_checkpoints_known,
    check_needed,
    complete,
    put,
    read_checkpoints,
    read_known,
)
from inosgd.runs.keyed import new_key
from inosgd.runs.lock import check_locked, locked
from inosgd.runs.thinning import superfluous

if TYPE_CHECKING:
    from inosgd.training import TrainingState

RUN_FORMAT = 3


@dataclass(frozen=True)
class RunFolder:
    """A folder with everything about one training, to read: nothing here changes it."""

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
            fix = "use that version, or train again within budgets that count what this run has spent"
            raise _validate.other_format("run", found, RUN_FORMAT, fix)
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
    def lock(self) -> Iterator[LockedRun]:
        """The run, to write to: inside, no other process trains or changes it (`inosgd.runs.lock`).

        Raises:
            RunLockedError: If another process is at work here; the error names it.
        """
        with locked(self.path):
            yield LockedRun(self.path)

    def read_ledger(self) -> Ledger:
        """The ledger, to look at."""
        return Ledger.read(self.ledger_path)

    def plan(self, *, checked: bool = True) -> Plan:
        """The current plan: the one that the ledger names, its spending computed again unless it is only shown."""
        history = self.read_ledger().history
        names = [name for name, known in history.files.items() if known.sha256 == history.plan]
        if not names:
            raise InvalidArgumentError(f"{self.ledger_path}: it names a plan that it knows no file of; restore a copy")
        plan = Plan.from_json(read_known(self.path, history, names[0]).decode())
        if checked:
            check_spent(plan)
        return plan

    def plans(self) -> list[Path]:
        """All plan files, the oldest first."""
        return sorted(self.plans_path.glob("plan-*.json"))

    def next_plan(self, plan: Plan) -> dict[str, bytes]:
        """The file for a plan that comes after those there are, by name; `inosgd.runs.files.put` writes it."""
        return {f"{PLANS}/plan-{len(self.plans()) + 1:04d}.json": plan.to_json().encode()}

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

    def last_checkpoint(self) -> Checkpoint:
        """The newest checkpoint."""
        found = self.checkpoints()
        if not found:
            raise InvalidArgumentError(f"run {str(self.path)!r} has no checkpoint yet: train it first")
        return found[-1]

    def metrics(self) -> list[dict[str, Any]]:
        """All metrics, the oldest first; a line that a crash cut short is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


class LockedRun(RunFolder):
    """A run that this process alone may change, inside the block of `RunFolder.lock`.

    Guarantee:
        Each method that writes checks that this process holds the lock: after the end of the block, or in a forked
        process, it raises and changes nothing.
    """

    @classmethod
    def of(cls, run: RunFolder | None) -> LockedRun:
        """``run``, if it is locked; for functions that may be given one that is not."""
        if run is None:
            raise InvalidArgumentError("run=None: the first process, or the only one, gives the run that it has locked")
        if not isinstance(run, cls):
            raise InvalidArgumentError(
                f"run {str(run.path)!r} is not locked: give what `with run.lock() as locked:` gives"
            )
        check_locked(run.path)
        return run

    def open_ledger(self) -> Ledger:
        """The ledger, to go on with. What a killed process had recorded and not named gets its name.

        Raises:
            LedgerError: If the ledger cannot be believed, or has lost records.
            InvalidArgumentError: If a file that training goes on from is not the one that the ledger knows.
        """
        check_locked(self.path)
        ledger = Ledger.open(self.ledger_path, horizon=self.plan().steps, kept=self.path / POSITION)
        try:
            complete(self.path, ledger.history)
            check_needed(self.path, ledger.history)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def mark_files(self, digests: Mapping[str, str], step: int) -> None:
        """Tell the ledger of files that are about to get their names, by SHA-256.

        Args:
            digests: By name, a path below the folder.
            step: After how many steps they were made.
        """
        with closing(self.open_ledger()) as ledger:
            ledger.mark_files(digests, step)

    def mark_published(self, step: int | None = None) -> Checkpoint:
        """Mark a checkpoint, by default the last, as published.

        Call it before the model is given away: spending up to ``step`` is never given back from then on.
        """
        asked = self.checkpoint_at(step) if step is not None else self.last_checkpoint()
        chosen = read_checkpoint(asked.path, asked.known)
        with closing(self.open_ledger()) as ledger:
            ledger.mark_published(chosen.step, chosen.model_digest)
        return chosen

    def add_metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        check_locked(self.path)
        descriptor = os.open(self.metrics_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def write_checkpoint(self, state: TrainingState) -> Checkpoint:
        """Write a checkpoint of ``state``; when this returns, it is on disk and in the state's ledger."""
        from inosgd.runs.saving import write_checkpoint  # torch: not imported by those who only read a run

        check_locked(self.path)
        return write_checkpoint(self.checkpoints_path, state)

    def thin_checkpoints(self, ledger: Ledger) -> None:
        """Remove checkpoints of which there are too many (`inosgd.runs.thinning`): from the ledger first."""
        check_locked(self.path)
        history = ledger.history
        for name in superfluous(history.in_order(), history.published_models):
            ledger.mark_lost(name, "thinned")
            shutil.rmtree(self.checkpoints_path / name, ignore_errors=True)  # what is left of it, resuming removes

    def set_aside(self, name: str) -> None:
        """Hide a checkpoint that cannot be used, without its keys."""
        check_locked(self.path)
        path = self.checkpoints_path / name
        if path.exists():
            (path / "streams.json").unlink(missing_ok=True)
            path.rename(path.parent / f".damaged-{name}")

    def forget_after(self, step: int) -> None:
        """Remove the metrics after ``step``, and the checkpoints that no longer stand."""
        check_locked(self.path)
        kept = [line for line in self.metrics() if line["step"] <= step]
        if self.metrics_path.exists():
            write_private(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        standing = self.read_ledger().history.checkpoints
        for path in self.checkpoints_path.iterdir():
            if path.name not in standing and not path.name.startswith(".damaged-"):
                shutil.rmtree(path)

    def roll_back(self, step: int) -> None:
        """Give up the steps after the checkpoint at ``step``, of which nothing is published.

        Raises:
            AlreadyPublishedError: If the model was published after a later step.
        """
        self.checkpoint_at(step)
        with closing(self.open_ledger()) as ledger:
            ledger.mark_rollback(step)
        self.forget_after(step)


def _fill(run: RunFolder, description: Mapping[str, Any], plan: Plan, key: bytes) -> None:
    for folder in (run.plans_path, run.checkpoints_path):
        folder.mkdir(mode=0o700)
    fields = {"format": RUN_FORMAT, "version": version("inosgd"), "description": dict(description)}
    described, first = json.dumps(fields, indent=1, allow_nan=False).encode(), run.next_plan(plan)
    digest = sha256(plan.to_json().encode())
    made = Ledger(plan.table, plan.accountant, run.ledger_path, plan=digest, kept=run.path / POSITION)
    with closing(made) as ledger:
        put(run.path, ledger, {DESCRIPTION: described, KEY: key, **first})
