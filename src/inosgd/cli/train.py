"""``inosgd train``: from a study to a trained model, its card and a ledger."""

from __future__ import annotations

import datetime
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from inosgd import _validate
from inosgd.cli.console import messages, steps_shown
from inosgd.cli.options import ReportOptions, with_groups
from inosgd.cli.report import report_at_end
from inosgd.cli.reports import reading_shown_by, show_outcome
from inosgd.cli.studies import MethodOptions, StudyArgument
from inosgd.distributed import Peers, connect
from inosgd.errors import InosgdError, InvalidArgumentError, PeerLostError
from inosgd.method import AUTO
from inosgd.runs.folder import RunFolder
from inosgd.study.auto import in_words
from inosgd.study.readiness import weaknesses
from inosgd.study.running import Prepared, begin_training, create_run, finish, follow, prepare
from inosgd.study.yardstick import keep_yardstick, train_yardstick

CHECKPOINTS = 10
"""How many checkpoints a run has unless told otherwise."""


@with_groups
def train_command(
    study: StudyArgument,
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints; by default a tenth of all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable, and therefore not private: for trying out.")] = None,
    yardstick_not_private: Annotated[
        bool,
        typer.Option(
            "--yardstick-not-private",
            help="Also train the model without noise, to compare with. NOT private: for the holder of the data alone.",
        ),
    ] = False,
    *,
    options: MethodOptions,
    output: ReportOptions,
) -> None:
    """Train a model on your own data under individual budgets.

    Everything is read, checked, planned and built before a run folder is made: a study with a mistake leaves nothing
    behind. A run that is interrupted goes on with `inosgd resume`.

    On several processes or machines: `torchrun --nproc-per-node=4 -m inosgd train STUDY`. Each reads the data and
    computes its share of every batch; the first writes and reports.
    """
    if every is not None:
        _validate.whole(1, every=every)
    with connect() as peers, ExitStack() as held:
        with peers.together():
            final = _run_path(output.out, study)
            prepared = _prepared(study, options, seed, peers)
        if yardstick_not_private and prepared.data.held_out is None:
            raise InvalidArgumentError(
                "--yardstick-not-private: no example is held out to compare by; set data.held_out.fraction"
            )
        with peers.together():
            run = held.enter_context(_new_run(final, prepared)) if peers.first else None
        if run is None:
            follow(prepared, begin_training(None, prepared))
            return
        if prepared.study.config.method.name == AUTO.name:
            messages().print(in_words(prepared.study.config), soft_wrap=True)
        for finding in weaknesses(prepared):
            messages().print(f"- {escape(finding.text)}", soft_wrap=True)
        with run.lock() as locked, resumable(run):
            state = begin_training(locked, prepared)
            steps = prepared.trainer.plan.steps
            with steps_shown(0, steps, hidden=output.as_json) as shown:
                interval = every or math.ceil(steps / CHECKPOINTS)
                outcome = finish(locked, prepared, state, every=interval, after_step=shown)
    reached = _yardstick(run, prepared) if yardstick_not_private else None
    page = report_at_end(run.path) if output.report else None
    show_outcome(run, outcome.prepared or prepared, outcome, page, as_json=output.as_json, yardstick=reached)


def _yardstick(run: RunFolder, prepared: Prepared) -> float:
    """The score of the same model without privacy, kept beside the run."""
    with messages().status("training the yardstick, which is not private"):
        found = train_yardstick(prepared)
    keep_yardstick(run.path, found)
    return found.overall


@contextmanager
def resumable(run: RunFolder) -> Iterator[None]:
    """Inside, an interruption or the loss of another process says how to go on."""
    how = f"what was spent is recorded. Go on with: inosgd resume {escape(str(run.path))}"
    try:
        yield
    except PeerLostError:
        messages().print(how, soft_wrap=True)
        raise
    except (KeyboardInterrupt, SystemExit) as stop:
        messages().print(f"interrupted; {how}", soft_wrap=True)
        raise typer.Exit(stop.code if isinstance(stop, SystemExit) else 130) from None  # type: ignore[arg-type]


def _run_path(out: Path | None, study: str) -> Path:
    final = out if out is not None else Path("runs") / f"{Path(study).stem}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if final.exists():
        raise InvalidArgumentError(f"out={str(final)!r}: it already exists; choose a new folder, or resume it")
    return final


def _prepared(text: str, options: MethodOptions, seed: int | None, peers: Peers) -> Prepared:
    with messages().status("reading, planning and building") as status:
        study = options.find(text, reading_shown_by(status), method=options.method, variant=options.variant)
        if seed is not None:
            study = replace(study, config=replace(study.config, seed=seed))
        if study.file is not None and study.file.schema.data.kind == "table":
            torch.set_num_threads(1)  # networks this small lose more to waiting for threads than they gain
        return prepare(study, peers=peers)


@contextmanager
def _new_run(path: Path, prepared: Prepared) -> Iterator[RunFolder]:
    """A run folder that is removed again if training fails before its first step is recorded."""
    parent_is_new = not path.parent.exists()
    run = create_run(path, prepared)
    try:
        yield run
    except (typer.Exit, PeerLostError):  # interrupted: the run is resumed, not removed
        raise
    except (InosgdError, OSError, RuntimeError):
        if run.read_ledger().steps == 0:
            shutil.rmtree(run.path)
            if parent_is_new and not any(path.parent.iterdir()):
                path.parent.rmdir()
        raise
