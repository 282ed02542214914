"""Comparison: a study trained by several entrants with paired seeds, in parallel, continued where it stopped.

For each seed every entrant gets the same split, the same initial model and the same streams of draws and noise, so
that differences between entrants are differences of method.

A comparison is repeatable, and computed from private examples without regard to budgets. It is for the eyes of the
holder of the data, and not to be published: `inosgd.tuning` is the way to choose under the guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inosgd.compare.common import Common
from inosgd.compare.entrant import Entrant
from inosgd.compare.results import Result, ResultStore, result_key
from inosgd.compare.training import EVALUATIONS, entered_data, train_once
from inosgd.files import folder_of
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.study.study import Study

NOT_FOR_PUBLICATION = (
    "A comparison is repeatable and looks at private examples without spending anyone's budget: it is for the eyes of "
    "the holder of the data, and not to be published. `inosgd tune --private` chooses settings under the guarantee."
)


def open_store(study: Study, folder: Path | None, *, validation: bool = False) -> ResultStore:
    """The results of a study in ``folder``, or in one that its settings determine.

    Results of one study, its data and its configuration share a folder, so that asking for more seeds or entrants adds
    to them.

    Raises:
        InvalidArgumentError: If the folder holds results of other settings or other data.
    """
    place = folder or folder_of(f"compare-{study.name}", [study.origin, study.config.to_json()])
    return ResultStore(place, lambda key: Common.of(study, key, validation=validation))


@dataclass(frozen=True)
class Task:
    """One training that has to be done."""

    study: Study
    entrant: Entrant
    seed: int
    validation: bool = False
    evaluations: int = EVALUATIONS

    @property
    def name(self) -> str:
        """How messages refer to it."""
        return f"{self.study.name}: {self.entrant.label} ({self.entrant.method.variant}), seed {self.seed}"


def train_task(task: Task) -> Result:
    """Split, plan, train, and keep what is worth keeping."""
    data = entered_data(task.study, task.entrant, task.seed, validation=task.validation)
    return train_once(task.study, data, task.entrant, task.seed, evaluations=task.evaluations)


def compare(
    study: Study,
    entered: Sequence[Entrant],
    seeds: Sequence[int],
    store: ResultStore,
    *,
    workers: Workers = LOCAL,
    validation: bool = False,
    evaluations: int = EVALUATIONS,
) -> Iterator[Result]:
    """Train what ``store`` does not hold yet, each judged ``evaluations`` times, and yield results as they come.

    Raises:
        InosgdError: At the end, when every other training is done, if some failed; it names them.
    """
    tasks = missing_tasks(study, entered, seeds, store, validation=validation)
    tasks = [replace(task, evaluations=evaluations) for task in tasks]
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
