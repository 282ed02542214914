"""Comparison: the same model under the same budgets by several methods, with paired seeds.

For each seed every method gets the same split, the same initial model and the same streams of draws and noise,
so differences between methods are differences of method.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inosgd.analysis.guarantees import group_guarantees
from inosgd.analysis.score import score_named
from inosgd.analysis.summary import MeanSd, mean_sd
from inosgd.compare.entrant import Entrant, prepared
from inosgd.compare.reproduction import Task, plans_of
from inosgd.compare.run import Run, train_once
from inosgd.files import write_private
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.study.study import Study


@dataclass(frozen=True)
class OwnerSummary:
    """What one owner got from one method, over all seeds; ``group`` is the epsilon of several of its records."""

    score: MeanSd
    loss: MeanSd
    spent: float
    allowed: float
    group: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """What one method gave, over all seeds."""

    overall: MeanSd
    worst: MeanSd
    owners: dict[str, OwnerSummary]
    scored_by: str = "accuracy"

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; an owner's ``mean`` and ``sd`` are those of its score."""
        return {
            "scored_by": self.scored_by,
            "overall": self.overall.to_json(),
            "worst": self.worst.to_json(),
            "owners": {
                name: {**owner.score.to_json(), "loss": owner.loss.to_json()} for name, owner in self.owners.items()
            },
            "spent": {name: owner.spent for name, owner in self.owners.items()},
            "allowed": {name: owner.allowed for name, owner in self.owners.items()},
            "group": {name: owner.group for name, owner in self.owners.items()},
        }


@dataclass(frozen=True)
class Compared:
    """One training of a comparison, with the text of its ledger."""

    run: Run
    ledger: str


def compare(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], folder: Path, workers: Workers = LOCAL
) -> Iterator[Run]:
    """Train every entrant with every seed, writing configuration, plans, ledgers and curves into ``folder``.

    Runs come in the order in which they finish.

    Raises:
        InosgdError: At the first training that fails for good; it is named.
    """
    _write_json(folder / "config.json", _config(study, entered, seeds))
    tasks = [Task(study, entrant, seed) for seed in seeds for entrant in entered]
    for _, outcome in run_all(compared, tasks, names=[task.name for task in tasks], workers=workers):
        if isinstance(outcome, Failure):
            raise failures_error([outcome], len(tasks), kept=False)
        _write(folder, outcome)
        yield outcome.run


def compared(task: Task) -> Compared:
    """One training; its ledger comes back as text, because a worker may not share our disk."""
    data = prepared(task.study.split(task.seed), task.entrant, task.seed)
    plan = plans_of(task.study.settings).get(data.owners.table, task.entrant)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger.jsonl"
        run = train_once(task.study, data, task.entrant, plan, task.seed, path)
        return Compared(run, path.read_text(encoding="utf-8"))


def _write(folder: Path, compared: Compared) -> None:
    run = compared.run
    place = folder / run.entrant.label / f"seed-{run.seed}"
    place.mkdir(parents=True)
    write_private(place / "ledger.jsonl", compared.ledger.encode())
    _write_json(place / "plan.json", json.loads(run.plan.to_json()))
    _write_json(place / "metrics.json", [point.to_json() for point in run.curve])


def summarize(runs: Sequence[Run]) -> dict[str, Summary]:
    """One summary per method, in the order in which the methods first appear."""
    labels = list(dict.fromkeys(run.entrant.label for run in runs))
    return {label: _summary([run for run in runs if run.entrant.label == label]) for label in labels}


def verdict(summaries: Mapping[str, Summary]) -> str:
    """One plain sentence on what the numbers mean."""
    fairest = max(summaries, key=lambda label: summaries[label].worst.mean)
    best = max(summaries, key=lambda label: summaries[label].overall.mean)
    worst_owner = min(summaries[fairest].owners.items(), key=lambda item: item[1].score.mean)[0]
    scoring = score_named(summaries[fairest].scored_by)
    text = (
        f"{fairest} has the highest {scoring.name} for its worst owner ({worst_owner}: "
        f"{scoring.shown(summaries[fairest].worst.mean)})"
        f"{' and is also' if best == fairest else f', while {best} is'} best overall "
        f"({scoring.shown(summaries[best].overall.mean)})"
    )
    if {"idp-sgd", "ino-sgd"} <= set(summaries):
        idp, ino = summaries["idp-sgd"], summaries["ino-sgd"]
        text += (
            f"; against idp-sgd at the same budgets, ino-sgd changes overall {scoring.name} by "
            f"{scoring.change(ino.overall.mean - idp.overall.mean)} and that of the worst owner by "
            f"{scoring.change(ino.worst.mean - idp.worst.mean)}"
        )
    kept = all(owner.spent <= owner.allowed for summary in summaries.values() for owner in summary.owners.values())
    return text + (
        "; every owner stayed within its budget." if kept else "; A BUDGET WAS EXCEEDED, see what was spent."
    )


def _config(study: Study, entered: Sequence[Entrant], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "study": study.name,
        "settings": study.settings.to_json(),
        "budgets": {name: dataclasses.asdict(budget) for name, budget, _ in study.split(seeds[0]).owners.table},
        "methods": {entrant.label: {"variant": entrant.method.variant} for entrant in entered},
        "seeds": list(seeds),
        "randomness": "seeded: repeatable, for comparing methods; not for models that are released",
    }


def _summary(runs: Sequence[Run]) -> Summary:
    finals = [run.final for run in runs]
    plan = runs[0].plan
    owners = {}
    for row, (name, budget, _) in enumerate(plan.table):
        owners[name] = OwnerSummary(
            score=mean_sd([final.owners[name].score for final in finals]),
            loss=mean_sd([final.owners[name].loss for final in finals]),
            spent=float(np.max([run.spent[name] for run in runs])),
            allowed=budget.epsilon,
            group=group_guarantees(plan, row),
        )
    overall, worst = ([getattr(final, name) for final in finals] for name in ("overall", "worst"))
    return Summary(mean_sd(overall), mean_sd(worst), owners, finals[0].scored_by)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
