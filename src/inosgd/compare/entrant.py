"""Entrants: a method as it enters a study, with its plan and what is done to owners before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd.method import IDP_SGD, INO_SGD, Method
from inosgd.owners import Owners, OwnerTable
from inosgd.plan_config import Fairness
from inosgd.study.config import TrainingConfig
from inosgd.study.study import StudyData, only_examples


@dataclass(frozen=True)
class Entrant:
    """One row of a comparison.

    Attributes:
        label: The name of its row in tables.
        method: The method, with its planner chosen.
        fairness: The knobs of fair plans; the study's own if None.
        budget_cut: By which share of its distance to the strictest budget every budget is lowered: the simple way to
            more balance that Pareto curves compare with (App. D.4.3).
        undersampling: Which share of the examples of owners with more than the mean budget is dropped at random before
            training (App. D.1.3).
    """

    label: str
    method: Method
    fairness: Fairness | None = None
    budget_cut: float = 0.0
    undersampling: float = 0.0

    def __post_init__(self) -> None:
        _validate.closed_unit(budget_cut=self.budget_cut, undersampling=self.undersampling)

    def config(self, config: TrainingConfig) -> TrainingConfig:
        """How this entrant trains a study with ``config``."""
        return config.by(self.method, self.fairness)

    def to_json(self) -> dict[str, Any]:
        """Everything that makes this entrant train differently from another."""
        return {
            "label": self.label,
            **self.method.to_json(),
            "fairness": None if self.fairness is None else dataclasses.asdict(self.fairness),
            "budget_cut": self.budget_cut,
            "undersampling": self.undersampling,
        }


def entrants(methods: Sequence[Method], variants: Sequence[str]) -> list[Entrant]:
    """The methods; those of the paper that treat owners individually once with each of ``variants``."""
    individual = (IDP_SGD, INO_SGD)
    tables = {
        variant: [
            Entrant(method.name, dataclasses.replace(method, variant=variant) if method in individual else method)
            for method in methods
        ]
        for variant in variants
    }
    return told_apart(tables)


def told_apart(tables: Mapping[str, Sequence[Entrant]]) -> list[Entrant]:
    """The rows of several variants as one list: rows that are the same once, later ones with their variant's name."""
    found: dict[str, Entrant] = {}
    for variant, rows in tables.items():
        for row in rows:
            known = found.get(row.label)
            if known is not None and known != row:
                row = dataclasses.replace(row, label=f"{row.label} ({variant})")
            found.setdefault(row.label, row)
    return list(found.values())


def as_entered(data: StudyData, entrant: Entrant, seed: int) -> StudyData:
    """The data as the entrant trains on it. Only public values (budgets, sizes) and fresh randomness decide."""
    if entrant.undersampling:
        data = _undersampled(data, entrant.undersampling, seed)
    if entrant.budget_cut:
        owners = Owners(_with_lower_budgets(data.owners.table, entrant.budget_cut), data.owners.assignment)
        data = dataclasses.replace(data, owners=owners)
    return data


def _with_lower_budgets(table: OwnerTable, cut: float) -> OwnerTable:
    strictest = table.epsilons.min()
    epsilons = table.epsilons - cut * (table.epsilons - strictest)
    return OwnerTable(table.names, epsilons, table.deltas, table.sizes, table.unit)


def _undersampled(data: StudyData, share: float, seed: int) -> StudyData:
    epsilons = data.owners.table.epsilons
    liberal = (epsilons > np.average(epsilons, weights=data.owners.table.sizes))[data.owners.assignment]
    dropped = liberal & (np.random.default_rng([seed, 0xD120]).random(len(liberal)) < share)
    return only_examples(data, np.flatnonzero(~dropped))
