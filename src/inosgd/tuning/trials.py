"""Trials: one training of a candidate, kept in memory, and how it is ranked."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from inosgd.analysis.evaluation import Evaluation
from inosgd.errors import InvalidArgumentError
from inosgd.ledger.ledger import Ledger
from inosgd.plan import Plan
from inosgd.study.building import build, source_for
from inosgd.study.judging import judge_result
from inosgd.study.shares import settled
from inosgd.study.study import Study, StudyData, split_of
from inosgd.training import TrainingState, fit
from inosgd.tuning.candidates import Candidate

RANKINGS = ("overall", "worst")
"""By all held-out examples together, or by those of the worst-off owner."""


@dataclass(frozen=True, eq=False)
class TrialTask:
    """A training that has to be done: a candidate, its plan, and a seed where repeating matters more than privacy."""

    study: Study
    candidate: Candidate
    plan: Plan
    seed: int | None


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
    study, data = task.study, trial_data(task.study)
    built = build(study, data, task.plan, settled(task.candidate.config, data))
    with tempfile.TemporaryDirectory() as place:  # private to its user
        path = Path(place) / "ledger.jsonl"
        ledger = Ledger.for_plan(task.plan, path, durable=False)
        source = source_for(task.seed)
        state = TrainingState.start(built.trainer, built.model, built.optimizer, source, ledger, built.also)
        fit(built.trainer, state)
        ledger.close()
        with state.result() as model:
            weights = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
        return Trial(judge_result(data, state, measure=True), weights, path.read_text(encoding="utf-8"))


def trial_data(study: Study) -> StudyData:
    """The data of a study, which all of its candidates share; read once per process.

    Raises:
        InvalidArgumentError: If no example is held out, so that nothing could judge a trial.
    """
    data = split_of(study, 0)
    if data.held_out is None:
        raise InvalidArgumentError(f"{study.name}: trials are judged by held-out examples; set data.held_out")
    return data
