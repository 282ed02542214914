"""Trials: one training of a candidate, kept in memory, and how it is ranked."""

from __future__ import annotations

import math
import tempfile
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.errors import InvalidArgumentError
from inosgd.ledger.ledger import Ledger
from inosgd.owners import Owners
from inosgd.plan import Plan
from inosgd.study.building import losses, study_method, study_model, study_optimizer, study_source, study_task
from inosgd.study.data import StudyData, load_data
from inosgd.study.reading import StudyFile, parse_study
from inosgd.training import Trainer, TrainingState, fit
from inosgd.tuning.candidates import Candidate
from inosgd.tuning.toml import toml_text

RANKINGS = ("overall", "worst")
"""By all held-out examples together, or by those of the worst-off owner."""


@dataclass(frozen=True, eq=False)
class TrialTask:
    """A training that has to be done: the candidate, its plan, and a seed where repeating matters more than privacy."""

    candidate: Candidate
    plan: Plan
    seed: int | None
    allowed_factory: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Trial:
    """A finished training. Sensitive: nothing of it may be shown unless it is the one that was chosen.

    Attributes:
        evaluation: On held-out examples.
        weights: Of the model.
        ledger: The text of its ledger, under the budgets that its plan was made for.
    """

    evaluation: Evaluation
    weights: dict[str, torch.Tensor]
    ledger: str

    def score(self, by: str) -> float:
        """What trials are ranked by; a model that gives no numbers ranks last."""
        owners = self.evaluation.owners
        value = self.evaluation.worst if by == "worst" and owners else self.evaluation.overall
        return -math.inf if math.isnan(value) else value


def run_trial(task: TrialTask) -> Trial:
    """Train the candidate by its plan and judge it by held-out examples; nothing stays on disk."""
    study = task.candidate.study
    data, training = data_of(study, task.allowed_factory), study.schema.training
    owners = Owners(task.plan.table, data.owners.assignment)
    model = study_model(study, data, task.allowed_factory)
    trainer = Trainer(task.plan, owners, data.examples, losses, study_method(training))
    with tempfile.TemporaryDirectory() as place:  # private to its user
        path = Path(place) / "ledger.jsonl"
        ledger = Ledger.for_plan(task.plan, path, durable=False)
        optimizer = study_optimizer(training, model)
        state = TrainingState.start(trainer, model, optimizer, study_source(task.seed), ledger)
        fit(trainer, state)
        ledger.close()
        weights = {key: tensor.detach().clone() for key, tensor in state.model.state_dict().items()}
        return Trial(_judged(study, data, state), weights, path.read_text(encoding="utf-8"))


def data_of(study: StudyFile, allowed_factory: str | None) -> StudyData:
    """The data of a study, which all of its candidates share; read once per process.

    Raises:
        InvalidArgumentError: If no example is held out, so that nothing could judge a trial.
    """
    data = _read(_without_training(study), study.path, study.folder, allowed_factory)
    if data.held_out is None:
        raise InvalidArgumentError(f"{study.path}: trials are judged by held-out examples; set data.held_out")
    return data


@lru_cache(maxsize=1)
def _read(text: str, path: Path, folder: Path, allowed_factory: str | None) -> StudyData:
    return load_data(parse_study(text, path, folder, allowed_factory=allowed_factory))


def _without_training(study: StudyFile) -> str:
    """The study's text with settings that all candidates of a study agree on: the key of the cache."""
    values = tomllib.loads(study.text)
    neutral = {"method": "dp-sgd", "steps": 1, "expected_batch_size": 1.0, "clipping_threshold": 1.0}
    return toml_text({**values, "training": {**neutral, "learning_rate": 1.0}})


def _judged(study: StudyFile, data: StudyData, state: TrainingState) -> Evaluation:
    held_out, names = data.held_out, data.owners.table.names
    if held_out is None:
        raise InvalidArgumentError(f"{study.path}: no example is held out")
    judged = (held_out.inputs, held_out.targets, held_out.groups)
    return evaluate(study_task(study, data), state.model, *judged, names, state.step)
