"""One training of a study: an entrant, a seed, the plan, what owners spent, and the learning curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.analysis.task import Task, classification
from inosgd.compare.entrant import Entrant
from inosgd.gradients import supervised
from inosgd.ledger.ledger import Ledger
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import make_plan
from inosgd.randomness import SeededSource
from inosgd.study.study import Settings, Study, StudyData
from inosgd.training import Callback, Trainer, TrainingState, every, fit

EVALUATIONS = 20
"""How many points a learning curve has."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training: who, which seed, the plan, what each owner spent, the learning curve, and how long steps took."""

    entrant: Entrant
    seed: int
    plan: Plan
    spent: dict[str, float]
    curve: tuple[Evaluation, ...]
    seconds: float = math.nan

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last step."""
        return self.curve[-1]


@dataclass
class PlanCache:
    """Plans by owners' table and entrant: seeds whose splits have equal sizes share a plan."""

    settings: Settings
    known: list[tuple[Entrant, Plan]] = field(default_factory=list)

    def get(self, table: OwnerTable, entrant: Entrant) -> Plan:
        """The plan for these owners, made once."""
        for other, plan in self.known:
            same_terms = (other.method.variant, other.fairness) == (entrant.method.variant, entrant.fairness)
            if same_terms and plan.table == table:
                return plan
        made = make_plan(
            table,
            steps=self.settings.steps,
            expected_batch_size=self.settings.expected_batch_size,
            clipping_threshold=self.settings.clipping_threshold,
            variant=entrant.method.variant,
            accountant=self.settings.accountant,
            fairness=entrant.fairness,
        )
        self.known.append((entrant, made))
        return made


Watch = Callable[[Trainer], Callback]
"""Something else to measure along a training, made for its trainer."""


def train_once(
    study: Study,
    data: StudyData,
    entrant: Entrant,
    plan: Plan,
    seed: int,
    ledger_path: Path | None = None,
    watch: Watch | None = None,
) -> Run:
    """One training from a seed, evaluated on held-out examples along the way.

    Sampling, noise and the initial model depend on the seed alone, so that entrants with the same seed are paired.
    """
    trainer = Trainer(plan, data.owners, (data.inputs, data.targets), supervised(F.cross_entropy), entrant.method)
    model = study.model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=study.settings.learning_rate)
    ledger = Ledger.for_plan(plan, ledger_path, durable=False)  # nothing of a study is released
    state = TrainingState.start(trainer, model, optimizer, SeededSource(seed), ledger)
    curve: list[Evaluation] = []
    record = _evaluator(_task(study, data), data, curve, plan.steps)
    watching = [] if watch is None else [watch(trainer)]
    start = time.process_time()  # of this process, which has one thread: others on the machine do not count
    fit(trainer, state, callbacks=[every(evaluation_interval(plan.steps), record), *watching])
    seconds = time.process_time() - start
    if curve[-1].step != state.step:
        record(state)
    ledger.close()
    spent = dict(zip(plan.table.names, ledger.spent().tolist(), strict=True))
    return Run(entrant, seed, plan, spent, tuple(curve), seconds)


def _task(study: Study, data: StudyData) -> Task:
    count = int(max(data.targets.max(), data.held_out_targets.max())) + 1
    return classification([str(number) for number in range(max(count, 2))], balanced=study.balanced)


def _evaluator(task: Task, data: StudyData, curve: list[Evaluation], steps: int) -> Callable[[TrainingState], None]:
    """Adds an evaluation to the curve; the last one has all measures."""
    held_out = (data.held_out_inputs, data.held_out_targets, data.held_out_groups, data.groups.names)

    def record(state: TrainingState) -> None:
        curve.append(evaluate(task, state.model, *held_out, state.step, measure=state.step == steps))

    return record


def evaluation_interval(steps: int) -> int:
    """Every how many steps a training is evaluated."""
    return max(1, steps // EVALUATIONS)


def group_means(values: np.typing.NDArray[np.float64], data: StudyData) -> dict[str, float]:
    """Per group the mean over its training examples of a value that is given per owner."""
    of_examples = values[data.owners.assignment]
    return {
        name: float(of_examples[data.train_groups == row].mean())
        for row, name in enumerate(data.groups.names)
        if (data.train_groups == row).any()
    }
