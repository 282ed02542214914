"""Runs of a study: everything is checked first, then a run folder comes into being, then training begins.

    prepared = prepare(study, seed=None)             # reads, checks, plans and builds; writes nothing
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray, RowArray
from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.distributed import ALONE, Peers
from inosgd.errors import InvalidArgumentError
from inosgd.masks import torch_seeded_by
from inosgd.models.saved import load_weights, save_model
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.plan import Plan
from inosgd.randomness import RandomSource
from inosgd.runs.checkpoint import Checkpoint
from inosgd.runs.files import MODEL
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.keyed import new_key
from inosgd.runs.resuming import Resumed, begin, resume, train_durably
from inosgd.study.building import losses, study_method, study_model, study_optimizer, study_source
from inosgd.study.data import HeldOutExamples, LabelledExamples, StudyData, joined_data, load_data, only_rows
from inosgd.study.description import describe, warnings_of
from inosgd.study.fingerprints import fingerprint, keyed, refuse_changes, study_fingerprints
from inosgd.study.planning import study_plan
from inosgd.study.reading import StudyFile, parse_study
from inosgd.study.sources import Progress
from inosgd.training import Trainer, TrainingState, fit, model_digest
from inosgd.training import every as after_every

PROBED = 3

JOINED = "joined.json"
"""What owners brought who joined a run, in its folder."""

REPORT = "report.html"
"""The page about a run that has ended, in its folder."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study ready to be trained."""

    study: StudyFile
    data: StudyData
    fingerprints: dict[str, str]
    trainer: Trainer
    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int | None

    @property
    def warnings(self) -> list[str]:
        """What every report about this training must say."""
        return warnings_of(self.study, self.data, self.seed)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished training: where the model is, what every owner spent, and how the model does on held-out examples."""

    model: Path
    steps: int
    table: OwnerTable
    spent: FloatArray
    evaluation: Evaluation | None


def prepare(
    study: StudyFile,
    *,
    seed: int | None,
    allowed_factory: str | None = None,
    progress: Progress | None = None,
    peers: Peers = ALONE,
) -> Prepared:
    """Read the data, plan and build, so that whatever can fail fails here; nothing is written."""
    data = load_data(study, progress)
    _check_delta(study, data.owners.table)
    model = study_model(study, data, allowed_factory)
    plan = study_plan(study.schema.training, data.owners.table)
    return _built(study, data, study_fingerprints(study), plan, model, seed, peers)


def create_run(path: Path, prepared: Prepared) -> RunFolder:
    """The run folder of a study that is about to be trained."""
    study, key = prepared.study, new_key()
    description = {
        "kind": "study",
        "study": study.text,
        "study_path": str(study.path),
        "folder": str(study.folder),
        "fingerprints": keyed(key, prepared.fingerprints),
        "seed": prepared.seed,
        "threads": torch.get_num_threads(),
    }
    return RunFolder.create(path, description, prepared.trainer.plan, key=key)


def begin_training(run: LockedRun | None, prepared: Prepared) -> TrainingState:
    """The state before the first step. Processes other than the first have no ``run``."""
    source, data = _agreed_source(prepared), _data(prepared)
    return begin(run, prepared.trainer, prepared.model, prepared.optimizer, source, data=data)


def resume_training(run: RunFolder, prepared: Prepared) -> Resumed:
    """The state at the last good checkpoint; in the first process, or the only one, ``run`` is locked."""
    source, data = _agreed_source(prepared), _data(prepared)
    return resume(run, prepared.trainer, prepared.model, prepared.optimizer, source, data=data)


def _data(prepared: Prepared) -> bytes:
    """What stands for the examples: the checksums of all files."""
    return json.dumps(sorted(prepared.fingerprints.items())).encode()


def _agreed_source(prepared: Prepared) -> RandomSource:
    """The randomness of a run, once all processes have read the same data."""
    prepared.trainer.peers.check_same(data=sorted(prepared.fingerprints.values()))
    return prepared.trainer.peers.source(prepared.seed)


def prepare_again(
    run: RunFolder,
    *,
    allowed_factory: str | None = None,
    progress: Progress | None = None,
    peers: Peers = ALONE,
) -> Prepared:
    """The study of a run, built again for its current plan.

    Raises:
        InvalidArgumentError: If a file of the data is not the one that the run began with.
    """
    study, description = run_study(run, allowed_factory)
    torch.set_num_threads(description["threads"])
    joined, fingerprints = _joined(run), study_fingerprints(study)
    brought = {each["path"]: fingerprint(Path(each["path"])) for each in joined}
    refuse_changes(description["fingerprints"], keyed(run.data_key(), fingerprints), study.schema.budgets.file)
    refuse_changes({each["path"]: each["digest"] for each in joined}, keyed(run.data_key(), brought))
    data, plan = load_data(study, progress), run.plan()
    for each in joined:
        data = _together(data, joined_data(study, data, Path(each["path"]), each["budgets"]))
    data = restricted(data, plan.table)
    model = study_model(study, data, allowed_factory)
    return _built(study, data, {**fingerprints, **brought}, plan, model, description["seed"], peers)


def run_study(run: RunFolder, allowed_factory: str | None) -> tuple[StudyFile, dict[str, Any]]:
    """The study file of a run, and the run's description; both are what the ledger knows."""
    run.check_files()
    description = run.description()
    if description.get("kind") != "study":
        raise InvalidArgumentError(f"run {str(run.path)!r} was not made from a study file: go on with it from Python")
    path, folder = Path(description["study_path"]), Path(description["folder"])
    return parse_study(description["study"], path, folder, allowed_factory=allowed_factory), description


def finish(run: LockedRun, prepared: Prepared, state: TrainingState, *, every: int, progress: bool = False) -> Outcome:
    """Take all steps that are left, judge the model by held-out examples, and save it.

    The model is judged as often as the study says, by default with every checkpoint, and at the end.
    """
    interval = prepared.study.schema.evaluation.every or every
    callbacks = []
    if prepared.data.held_out is not None:
        callbacks.append(after_every(interval, lambda now: _keep(run, judge(prepared, now.model, now.step))))
    try:
        train_durably(run, prepared.trainer, state, every=every, callbacks=callbacks, progress=progress)
    finally:
        state.ledger.close()
    _check_same_model(prepared, state)
    spent = state.ledger.spent()

    def announce(digests: dict[str, str]) -> None:
        run.mark_files({f"{MODEL}/{name}": digest for name, digest in digests.items()}, state.step)

    outcome = save_outcome(prepared, run.path / MODEL, state.model, state.step, state.ledger.table, spent, announce)
    if all(line["step"] != state.step for line in run.metrics()):
        _keep(run, outcome.evaluation)
    return outcome


def follow(prepared: Prepared, state: TrainingState) -> None:
    """What processes other than the first do while that one takes all steps that are left and saves the model."""
    fit(prepared.trainer, state)
    _check_same_model(prepared, state)


def _check_same_model(prepared: Prepared, state: TrainingState) -> None:
    if prepared.trainer.peers.size > 1:
        prepared.trainer.peers.check_same(model=model_digest(state.model))


def save_outcome(
    prepared: Prepared,
    folder: Path,
    model: nn.Module,
    steps: int,
    table: OwnerTable,
    spent: FloatArray,
    announce: Callable[[dict[str, str]], None] | None = None,
) -> Outcome:
    """Judge the model by held-out examples and save it with its card in ``folder``; see `inosgd.models.saved`."""
    evaluation = judge(prepared, model, steps)
    description = describe(
        prepared.study,
        prepared.data,
        table=table,
        spent=spent,
        steps=steps,
        seed=prepared.seed,
        evaluation=evaluation,
    )
    save_model(folder, model, description, announce)
    return Outcome(folder, steps, table, spent, evaluation)


def save_checkpoint(run: RunFolder, prepared: Prepared, checkpoint: Checkpoint, folder: Path) -> Outcome:
    """Write the model of a checkpoint with its card into ``folder``."""
    ledger = run.read_ledger()
    model = load_weights(checkpoint.path, prepared.model)
    return save_outcome(prepared, folder, model, checkpoint.step, ledger.table, ledger.spent(checkpoint.step))


def judge(prepared: Prepared, model: nn.Module, step: int) -> Evaluation | None:
    """How the model does on held-out examples; None if there are none."""
    held_out = prepared.data.held_out
    if held_out is None:
        return None
    names = prepared.trainer.owners.table.names
    balanced = prepared.study.schema.evaluation.balanced
    return evaluate(model, held_out.inputs, held_out.targets, held_out.groups, names, step, balanced=balanced)


def joined_file(run: RunFolder, path: Path, budgets: Mapping[str, Budget]) -> dict[str, bytes]:
    """What owners who are about to join bring, as a file of the run; it counts once the ledger knows the owners."""
    entry = {
        "path": str(path.absolute()),
        "budgets": {name: [budget.epsilon, budget.delta] for name, budget in budgets.items()},
        "digest": keyed(run.data_key(), {"": fingerprint(path)})[""],
    }
    kept = [each for each in _joined_entries(run) if not set(each["budgets"]) & set(budgets)]
    return {JOINED: json.dumps([*kept, entry], indent=1).encode()}


def forget_model(run: LockedRun) -> None:
    """Remove the saved model and the report about it, because steps that it has seen are about to be given up."""
    shutil.rmtree(run.path / MODEL, ignore_errors=True)
    (run.path / REPORT).unlink(missing_ok=True)


def restricted(data: StudyData, table: OwnerTable) -> StudyData:
    """The data of the owners that ``table`` has examples of, in its rows: withdrawn owners leave, their rows stay."""
    rows_in_table = _rows_by_name(data.owners, {name: row for row, (name, _, size) in enumerate(table) if size > 0})
    kept = np.flatnonzero(rows_in_table >= 0)
    owners = Owners.from_rows(rows_in_table[kept], {name: budget for name, budget, _ in table})
    if owners.table != table:
        raise InvalidArgumentError(
            "the data hold other numbers of examples than the run's plan was made for; put back the files that the run "
            "began with, and those that owners joined with"
        )
    rows = torch.from_numpy(kept)
    examples = LabelledExamples(only_rows(data.examples.inputs, rows), data.examples.targets[rows])
    return replace(data, owners=owners, examples=examples, held_out=_regrouped(data, table))


def _rows_by_name(owners: Owners, row_of: Mapping[str, int]) -> RowArray:
    """For each example ``row_of`` its owner's name, in a small type; -1 where it has none."""
    rows = [row_of.get(name, -1) for name in owners.table.names]
    found: RowArray = np.array(rows, dtype=np.min_scalar_type(-len(row_of) - 1))[owners.assignment]
    return found


def _regrouped(data: StudyData, table: OwnerTable) -> HeldOutExamples | None:
    """Held-out examples with groups that are rows of ``table``; those of withdrawn owners leave too."""
    if data.held_out is None:
        return None
    row_of = {name: (row, size) for row, (name, _, size) in enumerate(table)}
    before = [(name, size) for name, _, size in data.owners.table]
    withdrawn = [size > 0 and row_of.get(name, (0, 1))[1] == 0 for name, size in before]
    new_rows = np.array([*(row_of.get(name, (-1, 0))[0] for name, _ in before), -1])
    groups = data.held_out.groups
    stays = np.flatnonzero(~np.array([*withdrawn, False])[groups])
    rows = torch.from_numpy(stays)
    if not len(stays):
        return None
    return HeldOutExamples(only_rows(data.held_out.inputs, rows), data.held_out.targets[rows], new_rows[groups[stays]])


def _together(data: StudyData, extra: StudyData) -> StudyData:
    """The data of both; owners of ``extra`` come behind, and an owner of both is one."""
    budgets = {name: budget for table in (extra.owners.table, data.owners.table) for name, budget, _ in table}
    ordered = {name: budgets[name] for name in dict.fromkeys((*data.owners.table.names, *extra.owners.table.names))}
    row_of = {name: row for row, name in enumerate(ordered)}
    owners = Owners.from_rows(np.append(*(_rows_by_name(each.owners, row_of) for each in (data, extra))), ordered)
    examples = data.examples.followed_by(extra.examples)
    joined = replace(data, owners=owners, examples=examples)
    judged = _regrouped(extra, owners.table)
    if data.held_out is not None and judged is not None:
        judged = data.held_out.followed_by(judged)
    return replace(joined, held_out=judged or data.held_out)


def _built(
    study: StudyFile,
    data: StudyData,
    fingerprints: dict[str, str],
    plan: Plan,
    model: nn.Module,
    seed: int | None,
    peers: Peers,
) -> Prepared:
    training = study.schema.training
    trainer = Trainer(plan, data.owners, data.examples, losses, study_method(training), peers=peers)
    _probe(trainer, model)
    return Prepared(study, data, fingerprints, trainer, model, study_optimizer(training, model), seed)


def _probe(trainer: Trainer, model: nn.Module) -> None:
    """The engine's own checks on a few examples, so that a model it refuses is refused before a run exists."""
    rows = np.arange(min(PROBED, len(trainer.store)))
    with torch_seeded_by(study_source(0)), trainer.engine.on(model, trainer.losses, trainer.store.take(rows)) as found:
        found.measure()


def _check_delta(study: StudyFile, table: OwnerTable) -> None:
    """The planner's rule, with the key of the study."""
    large = table.too_large_delta()
    if large is not None:
        raise study.error("budgets.delta", *large)


def _keep(run: LockedRun, evaluation: Evaluation | None) -> None:
    """Add an evaluation to the metrics."""
    if evaluation is not None:
        run.add_metrics(evaluation.step, {key: each for key, each in evaluation.to_json().items() if key != "step"})


def _joined_entries(run: RunFolder) -> list[dict[str, Any]]:
    if JOINED not in run.read_ledger().history.files:
        return []
    entries: list[dict[str, Any]] = json.loads(run.read_file(JOINED))
    return entries


def _joined(run: RunFolder) -> list[dict[str, Any]]:
    """What owners brought who have joined by the ledger."""
    names = set(run.read_ledger().table.names)
    return [
        {
            **entry,
            "budgets": {
                name: Budget(epsilon=epsilon, delta=delta) for name, (epsilon, delta) in entry["budgets"].items()
            },
        }
        for entry in _joined_entries(run)
        if set(entry["budgets"]) <= names
    ]
