"""One training of a comparison: an entrant and a seed, judged along the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import findings
from inosgd.compare.entrant import Entrant, as_entered
from inosgd.compare.results import Result
from inosgd.gradients import parameter_count
from inosgd.ledger.ledger import Ledger
from inosgd.randomness import SeededSource
from inosgd.study.building import build
from inosgd.study.config import plan_once
from inosgd.study.judging import judge_result
from inosgd.study.norms import judge_end
from inosgd.study.shares import settled
from inosgd.study.study import Study, StudyData, for_validation, split_of
from inosgd.training import Callback, Trainer, TrainingState, every, fit

EVALUATIONS = 20
"""How many points a learning curve has."""

Watch = Callable[[Trainer], Callback]
"""Something else to measure along a training, made for its trainer."""


def entered_data(study: Study, entrant: Entrant, seed: int, *, validation: bool = False) -> StudyData:
    """The data as ``entrant`` trains on them; with ``validation`` judged by a part of the training examples."""
    data = split_of(study, seed)
    return as_entered(for_validation(data, seed) if validation else data, entrant, seed)


def train_once(
    study: Study,
    data: StudyData,
    entrant: Entrant,
    seed: int,
    watch: Watch | None = None,
    *,
    evaluations: int = EVALUATIONS,
) -> Result:
    """One training from a seed, judged by held-out examples ``evaluations`` times along the way.

    Sampling, noise and the initial model depend on the seed alone, so that entrants with the same seed are paired.
    """
    config = settled(entrant.config(study.config), data)
    plan = plan_once(config, data.owners.table)
    built = build(study, data, plan, config, seed=seed)
    ledger = Ledger.for_plan(plan)  # in memory: nothing of a comparison is published
    source = SeededSource(seed)
    state = TrainingState.start(built.trainer, built.model, built.optimizer, source, ledger, built.also)
    curve: list[Evaluation] = []

    def record(now: TrainingState) -> None:
        at_end = now.step == plan.steps
        curve.append(judge_end(built.trainer, data, now) if at_end else judge_result(data, now))

    watching = [] if watch is None else [watch(built.trainer)]
    start = time.process_time()  # of this process, which has one thread: others on the machine do not count
    interval = evaluation_interval(plan.steps, evaluations)
    fit(built.trainer, state, callbacks=[every(interval, record), *watching])
    seconds = time.process_time() - start
    if not curve or curve[-1].step != state.step:
        record(state)
    found = findings(curve, data.task.names, plan, parameter_count(built.model))
    return Result.of(entrant, seed, plan, ledger.spent(), tuple(curve), found, seconds, data)


def evaluation_interval(steps: int, evaluations: int = EVALUATIONS) -> int:
    """Every how many steps a training is evaluated."""
    return max(1, steps // evaluations)
