"""``inosgd resume``: go on with a run that was interrupted, or whose budgets have changed."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from inosgd import _validate
from inosgd.cli.console import messages, steps_shown
from inosgd.cli.options import AsJson, WithReport
from inosgd.cli.report import report_at_end
from inosgd.cli.reports import reading_shown_by, show_outcome
from inosgd.cli.studies import AllowFactory, study_of_run
from inosgd.cli.train import CHECKPOINTS, resumable
from inosgd.distributed import Peers, connect
from inosgd.errors import TrainingStoppedError
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.study.account import heed
from inosgd.study.running import Prepared, finish, follow, forget_model, prepare_again, resume_training
from inosgd.study.study import Study


def resume_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints; by default a tenth of all.")] = None,
    allow_factory: AllowFactory = None,
    report: WithReport = True,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint, to the same model as if it had never stopped.

    The data must be those that the run began with: their checksums are compared. With `torchrun` a run goes on on
    any number of processes, which all need to read the run folder.
    """
    if every is not None:
        _validate.whole(1, every=every)
    with connect() as peers, ExitStack() as held:
        with peers.together():
            folder = RunFolder.open(run)
            locked = held.enter_context(folder.lock()) if peers.first else None
            if locked is not None:
                _heed(locked, study_of_run(folder, allow_factory=allow_factory))
        with peers.together():
            _refuse_stopped(folder)
            prepared = _prepared(folder, allow_factory, peers)
        resumed = resume_training(locked or folder, prepared)
        if locked is None:
            follow(prepared, resumed.state)
            return
        for message in resumed.messages:
            messages().print(escape(message), soft_wrap=True)
        steps = prepared.trainer.plan.steps
        if resumed.state.step == steps:
            messages().print("all steps of this run are taken: its model and its report are written again")
        interval = every or math.ceil(steps / CHECKPOINTS)
        with resumable(folder), steps_shown(resumed.state.step, steps, hidden=as_json) as shown:
            outcome = finish(locked, prepared, resumed.state, every=interval, after_step=shown)
    page = report_at_end(folder.path) if report else None
    show_outcome(folder, outcome.prepared or prepared, outcome, page, as_json=as_json)


def _prepared(folder: RunFolder, allow_factory: str | None, peers: Peers) -> Prepared:
    with messages().status("reading and building") as status:
        shown = reading_shown_by(status)
        study = study_of_run(folder, allow_factory=allow_factory, progress=shown)
        return prepare_again(folder, study, peers=peers)


def _heed(run: LockedRun, study: Study) -> None:
    """Do what follows from budgets that owners have changed in their accounts since the run was interrupted."""
    proposal = heed(run, study)
    if proposal is not None:
        if proposal.action == "roll back":
            forget_model(run)
        messages().print(f"owners have changed their budgets: {escape(proposal.reason)}", soft_wrap=True)


def _refuse_stopped(folder: RunFolder) -> None:
    reason = folder.read_ledger().stopped
    if reason is not None:
        raise TrainingStoppedError(
            f"run {str(folder.path)!r} was stopped: {reason}. Go on after `inosgd budgets` has found a way"
        )
