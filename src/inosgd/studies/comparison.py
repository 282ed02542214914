"""Comparison: the same model under the same budgets by several methods, with paired seeds.

For each seed every method gets the same split, the same initial model and the same streams of draws and noise,
so differences between methods are differences of method.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from inosgd.analysis.evaluation import Evaluation, evaluate
from inosgd.analysis.guarantees import group_guarantees
from inosgd.analysis.summary import MeanSd, mean_sd
from inosgd.gradients import supervised
from inosgd.ledger import Ledger
from inosgd.method import IDP_SGD, INO_SGD, Method
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import make_plan
from inosgd.randomness import SeededSource
from inosgd.studies.study import Settings, Study, StudyData
from inosgd.training import Trainer, TrainingState, every, fit

EVALUATIONS = 20
"""How many points a learning curve has."""


@dataclass(frozen=True)
class Entrant:
    """A method as it is entered: the name of its row in tables, and the method with its planner chosen."""

    label: str
    method: Method


@dataclass(frozen=True, eq=False)
class Run:
    """One training: who, which seed, the plan, what each owner spent, and the learning curve."""

    entrant: Entrant
    seed: int
    plan: Plan
    spent: dict[str, float]
    curve: tuple[Evaluation, ...]

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last step."""
        return self.curve[-1]


@dataclass(frozen=True)
class OwnerSummary:
    """What one owner got from one method, over all seeds; ``group`` is the epsilon of several of its records."""

    recall: MeanSd
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

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; an owner's ``mean`` and ``sd`` are those of its recall."""
        return {
            "overall": self.overall.to_json(),
            "worst": self.worst.to_json(),
            "owners": {
                name: {**owner.recall.to_json(), "loss": owner.loss.to_json()} for name, owner in self.owners.items()
            },
            "spent": {name: owner.spent for name, owner in self.owners.items()},
            "allowed": {name: owner.allowed for name, owner in self.owners.items()},
            "group": {name: owner.group for name, owner in self.owners.items()},
        }


def entrants(methods: Sequence[Method], variant: str) -> list[Entrant]:
    """The methods, those of the paper that treat owners individually with ``variant`` as their planner."""
    individual = (IDP_SGD, INO_SGD)
    return [
        Entrant(method.name, dataclasses.replace(method, variant=variant) if method in individual else method)
        for method in methods
    ]


def compare(study: Study, entered: Sequence[Entrant], seeds: Sequence[int], folder: Path) -> Iterator[Run]:
    """Train every entrant with every seed, writing configuration, plans, ledgers and curves into ``folder``."""
    _write_json(folder / "config.json", _config(study, entered, seeds))
    plans = _PlanCache(study.settings)
    for seed in seeds:
        data = study.split(seed)
        for entrant in entered:
            place = folder / entrant.label / f"seed-{seed}"
            place.mkdir(parents=True)
            plan = plans.get(data.owners.table, entrant.method.variant)
            run = train_once(study, data, entrant, plan, seed, place / "ledger.jsonl")
            _write_json(place / "plan.json", json.loads(plan.to_json()))
            _write_json(place / "metrics.json", [point.to_json() for point in run.curve])
            yield run


def train_once(
    study: Study, data: StudyData, entrant: Entrant, plan: Plan, seed: int, ledger_path: Path | None = None
) -> Run:
    """One training from a seed, evaluated on held-out examples along the way."""
    trainer = Trainer(plan, data.owners, (data.inputs, data.targets), supervised(F.cross_entropy), entrant.method)
    model = study.model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=study.settings.learning_rate)
    ledger = Ledger.for_plan(plan, ledger_path)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(seed), ledger)
    curve: list[Evaluation] = []
    fit(trainer, state, callbacks=[every(_interval(plan.steps), _evaluator(data, curve))])
    if curve[-1].step != state.step:
        _evaluator(data, curve)(state)
    ledger.close()
    spent = dict(zip(plan.table.names, ledger.spent().tolist(), strict=True))
    return Run(entrant, seed, plan, spent, tuple(curve))


def summarize(runs: Sequence[Run]) -> dict[str, Summary]:
    """One summary per method, in the order in which the methods first appear."""
    labels = list(dict.fromkeys(run.entrant.label for run in runs))
    return {label: _summary([run for run in runs if run.entrant.label == label]) for label in labels}


def verdict(summaries: Mapping[str, Summary]) -> str:
    """One plain sentence on what the numbers mean."""
    fairest = max(summaries, key=lambda label: summaries[label].worst.mean)
    best = max(summaries, key=lambda label: summaries[label].overall.mean)
    worst_owner = min(summaries[fairest].owners.items(), key=lambda item: item[1].recall.mean)[0]
    text = (
        f"{fairest} serves its worst-off owner best ({worst_owner}: {summaries[fairest].worst.mean:.1%} right)"
        f"{' and is also' if best == fairest else f', while {best} is'} best overall "
        f"({summaries[best].overall.mean:.1%})"
    )
    if {"idp-sgd", "ino-sgd"} <= set(summaries):
        idp, ino = summaries["idp-sgd"], summaries["ino-sgd"]
        text += (
            f"; against idp-sgd at the same budgets, ino-sgd changes overall accuracy by "
            f"{100 * (ino.overall.mean - idp.overall.mean):+.1f} points and the worst owner by "
            f"{100 * (ino.worst.mean - idp.worst.mean):+.1f}"
        )
    kept = all(owner.spent <= owner.allowed for summary in summaries.values() for owner in summary.owners.values())
    return text + (
        "; every owner stayed within its budget." if kept else "; A BUDGET WAS EXCEEDED, see what was spent."
    )


class _PlanCache:
    """Plans by owners' table and variant: seeds whose splits have equal sizes share a plan."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._plans: list[Plan] = []

    def get(self, table: OwnerTable, variant: str) -> Plan:
        for plan in self._plans:
            if plan.variant == variant and plan.table == table:
                return plan
        made = make_plan(
            table,
            steps=self._settings.steps,
            expected_batch_size=self._settings.expected_batch_size,
            clipping_threshold=self._settings.clipping_threshold,
            variant=variant,
            accountant=self._settings.accountant,
        )
        self._plans.append(made)
        return made


def _evaluator(data: StudyData, curve: list[Evaluation]) -> Callable[[TrainingState], None]:
    def record(state: TrainingState) -> None:
        names = data.owners.table.names
        curve.append(
            evaluate(state.model, data.held_out_inputs, data.held_out_targets, data.held_out_groups, names, state.step)
        )

    return record


def _config(study: Study, entered: Sequence[Entrant], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "study": study.name,
        "settings": study.settings.to_json(),
        "budgets": {name: dataclasses.asdict(budget) for name, budget in study.budgets.items()},
        "methods": {entrant.label: {"variant": entrant.method.variant} for entrant in entered},
        "seeds": list(seeds),
        "randomness": "seeded: repeatable, for comparing methods; not for models that are released",
    }


def _interval(steps: int) -> int:
    return max(1, steps // EVALUATIONS)


def _summary(runs: Sequence[Run]) -> Summary:
    finals = [run.final for run in runs]
    plan = runs[0].plan
    owners = {}
    for row, (name, budget, _) in enumerate(plan.table):
        owners[name] = OwnerSummary(
            recall=mean_sd([final.owners[name].recall for final in finals]),
            loss=mean_sd([final.owners[name].loss for final in finals]),
            spent=float(np.max([run.spent[name] for run in runs])),
            allowed=budget.epsilon,
            group=group_guarantees(plan, row),
        )
    return Summary(mean_sd([final.overall for final in finals]), mean_sd([final.worst for final in finals]), owners)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
