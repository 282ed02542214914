"""Reproduction: a study trained by its entrants with paired seeds, in parallel, continued where it stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from inosgd.compare.entrant import Entrant, prepared
from inosgd.compare.results import Result, ResultStore, result_key
from inosgd.compare.run import PlanCache, train_once
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.study.study import Settings, Study, for_validation


@dataclass(frozen=True)
class Task:
    """One training that has to be done."""

    study: Study
    entrant: Entrant
    seed: int
    validation: bool = False

    @property
    def name(self) -> str:
        """How messages refer to it."""
        return f"{self.study.name}: {self.entrant.label} ({self.entrant.method.variant}), seed {self.seed}"


def train_task(task: Task) -> Result:
    """Split, plan, train, and keep what is worth keeping."""
    data = task.study.split(task.seed)
    if task.validation:
        data = for_validation(data, task.seed)
    data = prepared(data, task.entrant, task.seed)
    plan = plans_of(task.study.settings).get(data.owners.table, task.entrant)
    return Result.of(train_once(task.study, data, task.entrant, plan, task.seed), data)


def reproduce(
    study: Study,
    entered: Sequence[Entrant],
    seeds: Sequence[int],
    store: ResultStore,
    *,
    workers: Workers = LOCAL,
    validation: bool = False,
) -> Iterator[Result]:
    """Train what ``store`` does not hold yet, and yield results as they come.

    Raises:
        InosgdError: At the end, when every other training is done, if some failed; it names them.
    """
    tasks = missing_tasks(study, entered, seeds, store, validation=validation)
    failures: list[Failure] = []
    for _, outcome in run_all(train_task, tasks, names=[task.name for task in tasks], workers=workers):
        if isinstance(outcome, Failure):
            failures.append(outcome)
            continue
        store.add(outcome)
        yield outcome
    if failures:
        raise failures_error(failures, len(tasks))


def missing_tasks(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], store: ResultStore, *, validation: bool = False
) -> list[Task]:
    """The trainings that are asked for and not there; entrants that differ in name only are trained once."""
    wanted: dict[str, Task] = {}
    for seed in seeds:
        for entrant in entered:
            wanted.setdefault(result_key(entrant, seed), Task(study, entrant, seed, validation))
    return [task for key, task in wanted.items() if key not in store.results]


def configuration(study: Study, scale: str, *, validation: bool = False) -> dict[str, Any]:
    """What all results in one folder have in common."""
    fields = {"study": study.name, "scale": scale, "settings": study.settings.to_json(), "balanced": study.balanced}
    return {**fields, "held_out": "validation split of the training data" if validation else "test data"}


def with_learning_rate(study: Study, learning_rate: float | None) -> Study:
    """The study with another learning rate, if one is given."""
    if learning_rate is None:
        return study
    return dataclasses.replace(study, settings=dataclasses.replace(study.settings, learning_rate=learning_rate))


@cache
def plans_of(settings: Settings) -> PlanCache:
    """One cache of plans per process and settings."""
    return PlanCache(settings)
