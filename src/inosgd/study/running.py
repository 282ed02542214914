"""Runs of a study: everything is checked first, then a run folder comes into being, then training begins.

    prepared = prepare(study)                        # reads, checks, plans and builds; writes nothing
    run = create_run(Path("run"), prepared)
    with run.lock() as locked:
        finish(locked, prepared, begin_training(locked, prepared), every=100)

On many processes (`inosgd.distributed`) each prepares and begins, and the first alone has a run folder and writes.

What a run folder of a study holds beside `inosgd.runs`: the study file as it was, keyed checksums of the data, what
owners who joined later brought (``joined.json``), results on held-out examples, and the model. It holds no training
example, no index of one, and nothing measured on training examples. Only with ``data.key``, which is as secret as the
data, can a guess at a whole data file be tested.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray
from inosgd.analysis.answers import Answer, answers
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import Finding, findings
from inosgd.analysis.suggestions import Setup, Suggestion, suggestions, with_yardstick
from inosgd.distributed import ALONE, Peers
from inosgd.errors import AccountExceededError, BudgetsChangedError, InvalidArgumentError, TrainingStoppedError
from inosgd.gradients import parameter_count
from inosgd.gradients.units import gradients_on
from inosgd.masks import torch_seeded_by
from inosgd.models.saved import load_weights, save_model
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.randomness import RandomSource, SeededSource
from inosgd.runs.checkpoint import Checkpoint
from inosgd.runs.files import MODEL
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.keyed import new_key
from inosgd.runs.progression import Proposal
from inosgd.runs.resuming import Resumed, begin, resume, train_durably
from inosgd.runs.saving import saved_also
from inosgd.streams import Streams
from inosgd.study.account import (
    draw_again,
    drawing,
    end_draw,
    has_news,
    heed,
    new_draw,
    noted_in_card,
    noted_in_run,
    rooms_of,
)
from inosgd.study.building import Built, build
from inosgd.study.config import plan_for
from inosgd.study.description import describe, warnings_of
from inosgd.study.fingerprints import fingerprints_of, keyed, refuse_changes
from inosgd.study.joining import brought_to, restricted, with_joined
from inosgd.study.judging import curve_of, judge_result
from inosgd.study.norms import judge_end
from inosgd.study.repeats import repeated_ids
from inosgd.study.shares import adjusted_by, settled
from inosgd.study.study import Study, StudyData
from inosgd.training import Callback, Trainer, TrainingState, fit, model_digest
from inosgd.training import every as after_every

PROBED = 3

TRIES = 3
"""How often a plan is made for what accounts leave, if other trainings reserve it first."""

REPORT = "report.html"
"""The page about a run that has ended, in its folder."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study ready to be trained; ``asked`` is the study as it was before public facts of its data settled it."""

    study: Study
    data: StudyData
    fingerprints: dict[str, str]
    built: Built
    asked: Study

    @property
    def trainer(self) -> Trainer:
        """Everything that does not change while the study is trained."""
        return self.built.trainer

    @property
    def seed(self) -> int | None:
        """Where a repeatable training begins."""
        return self.study.config.seed

    @property
    def warnings(self) -> list[str]:
        """What every report about this training must say."""
        return warnings_of(self.study, self.data)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished training: where the model is, what every owner spent, how the model does, and what to know first.

    ``prepared`` is the training as it was at the end: its plan is another one if owners have changed their budgets.
    """

    model: Path
    steps: int
    table: OwnerTable
    spent: FloatArray
    evaluation: Evaluation | None
    findings: tuple[Finding, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    setup: Setup | None = None
    classes: tuple[str, ...] = ()
    prepared: Prepared | None = None

    def answers(self, yardstick: float | None = None) -> tuple[Answer, ...]:
        """What is asked first about it; a ``yardstick`` is not private, and neither are answers with one."""
        return answers(
            self.table,
            self.spent,
            self.evaluation,
            self.findings,
            self.suggested(yardstick),
            classes=self.classes,
            yardstick=yardstick,
        )

    def suggested(self, yardstick: float | None = None) -> tuple[Suggestion, ...]:
        """What to try next; with a ``yardstick`` also what it says, which is not private."""
        if yardstick is None or self.evaluation is None or self.setup is None:
            return self.suggestions
        return with_yardstick(self.suggestions, self.evaluation, yardstick, self.setup)


def prepare(study: Study, *, peers: Peers = ALONE) -> Prepared:
    """Read the data, plan and build, so that whatever can fail fails here; nothing is written."""
    data = study.split(0)
    _check_delta(study, data.owners.table)
    made = replace(study, config=settled(study.config, data))
    plan = plan_for(made.config, data.owners.table, rooms=rooms_of(made, data.owners.table))
    return _prepared(made, data, fingerprints_of(made, data), plan, peers, study)


def create_run(path: Path, prepared: Prepared) -> RunFolder:
    """The run folder of a study that is about to be trained."""
    key = new_key()
    description = {
        "kind": "study",
        "study": prepared.study.name,
        "origin": json.loads(prepared.study.origin),
        "method": prepared.study.config.method.name,
        "fingerprints": keyed(key, prepared.fingerprints),
        "seed": prepared.seed,
        "threads": torch.get_num_threads(),
        "public_results": prepared.study.evaluation.public,
        **noted_in_run(prepared.study),
    }
    return RunFolder.create(path, description, prepared.trainer.plan, key=key)


def begin_training(run: LockedRun | None, prepared: Prepared) -> TrainingState:
    """The state before the first step. Processes other than the first have no ``run``."""
    source, data = _agreed_source(prepared), _data(prepared)
    built = prepared.built
    reserved = None if run is None else new_draw(run, prepared.study, built.trainer.plan)
    with drawing(reserved, new=True) as draw:
        parts = built.trainer, built.model, built.optimizer
        return begin(run, *parts, source, also=built.also, data=data, permission=draw)


def resume_training(run: RunFolder, prepared: Prepared) -> Resumed:
    """The state at the last good checkpoint; in the first process, or the only one, ``run`` is locked."""
    source, data = _agreed_source(prepared), _data(prepared)
    built = prepared.built
    reserved = draw_again(run, prepared.study, built.trainer.plan) if isinstance(run, LockedRun) else None
    with drawing(reserved) as draw:
        parts = built.trainer, built.model, built.optimizer
        return resume(run, *parts, source, also=built.also, data=data, permission=draw)


def _data(prepared: Prepared) -> bytes:
    """What stands for the examples: the checksums of all files."""
    return json.dumps(sorted(prepared.fingerprints.items())).encode()


def _agreed_source(prepared: Prepared) -> RandomSource:
    """The randomness of a run, once all processes have read the same data."""
    prepared.trainer.peers.check_same(data=sorted(prepared.fingerprints.values()))
    return prepared.trainer.peers.source(prepared.seed)


def prepare_again(run: RunFolder, study: Study, *, peers: Peers = ALONE) -> Prepared:
    """The study of a run, built again for its current plan.

    Raises:
        InvalidArgumentError: If the data are not those that the run began with.
    """
    description = run_description(run)
    torch.set_num_threads(description["threads"])
    data, plan = study.split(0), run.plan()
    fingerprints, brought = fingerprints_of(study, data), brought_to(run)
    budgets = None if study.file is None else study.file.schema.budgets.file
    refuse_changes(description["fingerprints"], keyed(run.data_key(), fingerprints), budgets)
    data = restricted(with_joined(run, study, data, brought), plan.table)
    seeded = replace(study, config=settled(replace(study.config, seed=description["seed"]), data, plan.config))
    return _prepared(seeded, data, {**fingerprints, **brought}, plan, peers, study)


def run_description(run: RunFolder) -> dict[str, Any]:
    """How a run of a study began: what the ledger knows.

    Raises:
        InvalidArgumentError: If the run is not one of a study.
    """
    run.check_files()
    description = run.description()
    if description.get("kind") != "study":
        raise InvalidArgumentError(f"run {str(run.path)!r} was not made from a study: go on with it from Python")
    return description


def finish(
    run: LockedRun, prepared: Prepared, state: TrainingState, *, every: int, after_step: Callback | None = None
) -> Outcome:
    """Take all steps that are left, judge the model by held-out examples, and save it.

    The model is judged as often as the study says, by default with every checkpoint, and at the end. If owners change
    their budgets in the account meanwhile, the training goes on by a new plan (`heeded`).

    Raises:
        TrainingStoppedError: If what owners have changed leaves no way to go on; the ledger says why.
    """
    while True:
        try:
            _take_steps(run, prepared, state, every, [] if after_step is None else [after_step])
            break
        except BudgetsChangedError:
            prepared, state = heeded(run, prepared, state)
    _check_same_model(prepared, state)
    spent = state.ledger.spent()

    def announce(digests: dict[str, str]) -> None:
        run.mark_files({f"{MODEL}/{name}": digest for name, digest in digests.items()}, state.step)

    if all(line["step"] != state.step for line in run.metrics()):
        _keep(run, _judged(prepared, state))
    table, curve = state.ledger.table, curve_of(run)
    with state.result() as model:
        outcome = save_outcome(prepared, run.path / MODEL, model, state.step, table, spent, curve, announce)
    return replace(outcome, prepared=prepared)


def _take_steps(
    run: LockedRun, prepared: Prepared, state: TrainingState, every: int, callbacks: list[Callback]
) -> None:
    """All steps that are left; what the training did not take of its account is given back at the end."""
    if prepared.data.held_out is not None:
        interval = prepared.study.evaluation.every or every
        callbacks = [*callbacks, after_every(interval, lambda now: _keep(run, _judged(prepared, now)))]
    try:
        train_durably(run, prepared.trainer, state, every=every, callbacks=callbacks)
    except BudgetsChangedError:
        run.write_checkpoint(state)  # so that no step that stands is lost
        end_draw(state.ledger)
        raise
    except BaseException:
        end_draw(state.ledger, failed=True)
        raise
    finally:
        state.ledger.close()
    end_draw(state.ledger)


def heeded(run: LockedRun, prepared: Prepared, state: TrainingState) -> tuple[Prepared, TrainingState]:
    """The training as it goes on after owners have changed their budgets, by a new plan for what is left.

    If they change them again while the plan is made, or another training is faster, another plan is made. On several
    processes it ends here, and goes on with `inosgd resume`.

    Raises:
        TrainingStoppedError: If there is no plan; the ledger says why.
        AccountExceededError: If other trainings were faster `TRIES` times.
    """
    overtaken, proposal = 0, heed(run, prepared.asked)
    while True:
        _check_goes_on(run, prepared, state, proposal)
        prepared = prepare_again(run, prepared.asked)
        try:
            return prepared, resume_training(run, prepared).state
        except AccountExceededError:
            overtaken += not has_news(run, prepared.asked)
            if overtaken == TRIES:
                raise
        proposal = heed(run, prepared.asked, anew=True)


def _check_goes_on(run: LockedRun, prepared: Prepared, state: TrainingState, proposal: Proposal | None) -> None:
    """Raise if a training does not go on here; after a rollback, forget the model of steps that were given up."""
    if proposal is not None and proposal.action == "stop":
        raise TrainingStoppedError(f"run {str(run.path)!r} was stopped after step {state.step}: {proposal.reason}")
    if proposal is not None and proposal.action == "roll back":
        forget_model(run)
    if prepared.trainer.peers.size > 1:
        raise TrainingStoppedError(
            f"run {str(run.path)!r}: owners have changed their budgets, and a plan for what is left is made; go on "
            "with `inosgd resume`"
        )


def follow(prepared: Prepared, state: TrainingState) -> None:
    """What processes other than the first do while that one takes all steps that are left and saves the model."""
    fit(prepared.trainer, state)
    _check_same_model(prepared, state)


def _check_same_model(prepared: Prepared, state: TrainingState) -> None:
    if prepared.trainer.peers.size > 1:
        with state.result() as model:
            prepared.trainer.peers.check_same(last_iterate=model_digest(state.model), model=model_digest(model))


def save_outcome(
    prepared: Prepared,
    folder: Path,
    model: nn.Module,
    steps: int,
    table: OwnerTable,
    spent: FloatArray,
    curve: Sequence[Evaluation],
    announce: Callable[[dict[str, str]], None] | None = None,
) -> Outcome:
    """Save a model that was judged along ``curve`` with its card in ``folder``; see `inosgd.models.saved`."""
    study, data, evaluation = prepared.study, prepared.data, curve[-1] if curve else None
    found = findings(curve, data.task.names, prepared.trainer.plan, parameter_count(model))
    setup = _setup(prepared, parameter_count(model))
    suggested = suggestions(curve, setup, data.task.names)
    count = prepared.trainer.plan.count
    description = describe(
        study,
        data,
        table=table,
        spent=spent,
        steps=steps,
        evaluation=evaluation,
        findings=found,
        suggestions=suggested,
        count=count,
        account=noted_in_card(study),
    )
    save_model(folder, model, description, announce)
    repeated = () if study.file is None else repeated_ids(study.file)  # about training rows, so not in the card
    told = (*repeated, *found)
    return Outcome(folder, steps, table, spent, evaluation, told, suggested, setup, tuple(data.task.names))


def _setup(prepared: Prepared, parameters: int) -> Setup:
    """How a study is trained, as far as suggestions ask."""
    config, plan = prepared.study.config, prepared.trainer.plan
    return Setup.of_plan(
        plan,
        parameters,
        learning_rate=config.learning_rate,
        averaged=config.averaging is not None,
        adjusted=adjusted_by(config, prepared.data, plan.count) or "",
    )


def save_checkpoint(run: RunFolder, prepared: Prepared, checkpoint: Checkpoint, folder: Path) -> Outcome:
    """Write the model of a checkpoint, or its average if the study has one, with its card into ``folder``."""
    ledger, built = run.read_ledger(), prepared.built
    load_weights(checkpoint.path, built.model)
    for name, values in saved_also(checkpoint).items():
        if name not in built.also:
            raise InvalidArgumentError(f"{name}: the run has kept one, and the study now asks for none; put it back")
        built.also[name].load_state_dict(values)
    streams = Streams.of(SeededSource(0))  # nothing is drawn from it
    state = TrainingState(built.model, built.optimizer, ledger, streams, checkpoint.step, built.also)
    spent, judged = ledger.spent(checkpoint.step), _judged(prepared, state)
    curve = [point for point in curve_of(run) if point.step < checkpoint.step]
    curve += [] if judged is None else [judged]
    with state.result() as model:
        return save_outcome(prepared, folder, model, checkpoint.step, ledger.table, spent, curve)


def _judged(prepared: Prepared, state: TrainingState) -> Evaluation | None:
    """How the result of a training does on held-out examples; None if there are none."""
    data, at_end = prepared.data, state.step == prepared.trainer.plan.steps
    if data.held_out is None:
        return None
    return judge_end(prepared.trainer, data, state) if at_end else judge_result(data, state)


def forget_model(run: LockedRun) -> None:
    """Remove the saved model and the report about it, because steps that it has seen are about to be given up."""
    shutil.rmtree(run.path / MODEL, ignore_errors=True)
    (run.path / REPORT).unlink(missing_ok=True)


def _prepared(
    study: Study, data: StudyData, fingerprints: dict[str, str], plan: Plan, peers: Peers, asked: Study
) -> Prepared:
    built = build(study, data, plan, peers=peers)
    _probe(built)
    return Prepared(study, data, fingerprints, built, asked)


def _probe(built: Built) -> None:
    """The engine's own checks on a few examples, so that a model it refuses is refused before a run exists."""
    trainer = built.trainer
    examples = trainer.take(np.arange(min(PROBED, len(trainer.owners))), SeededSource(0))
    losses = trainer.losses_under(trainer.plan.at(0), trainer.shares)
    with torch_seeded_by(SeededSource(0)), gradients_on(trainer.engine, built.model, losses, examples) as found:
        found.measure()


def _check_delta(study: Study, table: OwnerTable) -> None:
    """The planner's rule, with the key of the study file."""
    large = table.too_large_delta()
    if large is not None and study.file is not None:
        raise study.file.error("budgets.delta", *large)


def _keep(run: LockedRun, evaluation: Evaluation | None) -> None:
    """Add an evaluation to the metrics."""
    if evaluation is not None:
        run.add_metrics(evaluation.step, {key: each for key, each in evaluation.to_json().items() if key != "step"})
