"""Tuning on public data: every candidate is trained and shown, because no owner's privacy is at stake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.study.shares import settled
from inosgd.study.study import Study
from inosgd.tuning.candidates import Candidate, Space
from inosgd.tuning.pricing import plans_of
from inosgd.tuning.trials import RANKINGS, TrialTask, run_trial, trial_data

WHY_FREE = (
    "Nothing is spent: every example that a trial was trained on or judged by is declared public, and no private "
    "example was touched."
)


@dataclass(frozen=True)
class Scored:
    """A candidate and its score with each seed; NaN never wins."""

    candidate: Candidate
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(np.mean(self.scores))


def tune_on_public_data(
    study: Study, space: Space, *, by: str = "overall", seeds: int = 1, workers: Workers = LOCAL
) -> Iterator[list[Scored]]:
    """Train every candidate with every seed on a study whose examples are all public.

    The caller declares them public by calling this. Trials have the plan, and so the noise, that the study's budgets
    lead to: a stand-in for the private study should have budgets, sizes and steps like it.

    Yields what is known after each training, the best first, candidates without a score left out.

    Raises:
        InosgdError: At the end, if trainings failed; it names them.
    """
    _validate.whole(1, seeds=seeds)
    _validate.one_of(RANKINGS, by=by)
    candidates = space.candidates(study.config)
    tasks = _tasks(candidates, study, seeds)
    names = [f"{task.candidate.label}, seed {task.seed}" for task in tasks]
    scores: dict[int, float] = {}
    failures = []
    for index, trial in run_all(run_trial, tasks, names=names, workers=workers):
        if isinstance(trial, Failure):
            failures.append(trial)
            continue
        scores[index] = trial.score(by)
        yield _ranked(candidates, scores, seeds)
    if failures:
        raise failures_error(failures, len(tasks))


def _tasks(candidates: Sequence[Candidate], study: Study, seeds: int) -> list[TrialTask]:
    data = trial_data(study)
    plans = plans_of([settled(candidate.config, data) for candidate in candidates], data.owners.table)
    return [
        TrialTask(study, candidate, plan, seed)
        for candidate, plan in zip(candidates, plans, strict=True)
        for seed in range(seeds)
    ]


def _ranked(candidates: Sequence[Candidate], scores: dict[int, float], seeds: int) -> list[Scored]:
    found = [
        Scored(candidate, tuple(scores[index] for index in range(row * seeds, (row + 1) * seeds) if index in scores))
        for row, candidate in enumerate(candidates)
    ]
    return sorted((each for each in found if each.scores), key=lambda each: -each.mean)
