"""Entrants: a method as it enters a study, with its plan and what is done to owners before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd.method import IDP_SGD, INO_SGD, Method
from inosgd.owners import Owners, OwnerTable
from inosgd.planning import Fairness
from inosgd.study.study import StudyData, owners_of_rows


@dataclass(frozen=True)
class Entrant:
    """One row of a comparison.

    Attributes:
        label: The name of its row in tables.
        method: The method, with its planner chosen.
        fairness: The knobs of fair plans.
        budget_cut: By which share of its distance to the strictest budget every budget is lowered: the simple way to
            more balance that Pareto curves compare with (App. D.4.3).
        undersampling: Which share of the examples of owners with more than the mean budget is dropped at random before
            training (App. D.1.3).
    """

    label: str
    method: Method
    fairness: Fairness = field(default_factory=Fairness)
    budget_cut: float = 0.0
    undersampling: float = 0.0

    def __post_init__(self) -> None:
        _validate.closed_unit(budget_cut=self.budget_cut, undersampling=self.undersampling)

    def to_json(self) -> dict[str, Any]:
        """Everything that makes this entrant train differently from another."""
        method = self.method
        return {
            "label": self.label,
            "method": method.name,
            "variant": method.variant,
            "importance": None if method.importance is None else repr(method.importance),
            "order": method.order.name,
            "clipping": repr(method.clipping),
            "fairness": dataclasses.asdict(self.fairness) if method.variant in ("fair", "both") else None,
            "budget_cut": self.budget_cut,
            "undersampling": self.undersampling,
        }


def entrants(methods: Sequence[Method], variant: str) -> list[Entrant]:
    """The methods, those of the paper that treat owners individually with ``variant`` as their planner."""
    individual = (IDP_SGD, INO_SGD)
    return [
        Entrant(method.name, dataclasses.replace(method, variant=variant) if method in individual else method)
        for method in methods
    ]


def prepared(data: StudyData, entrant: Entrant, seed: int) -> StudyData:
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
    return OwnerTable(table.names, epsilons, table.deltas, table.sizes)


def _undersampled(data: StudyData, share: float, seed: int) -> StudyData:
    epsilons = data.owners.table.epsilons
    liberal = (epsilons > np.average(epsilons, weights=data.owners.table.sizes))[data.owners.assignment]
    dropped = liberal & (np.random.default_rng([seed, 0xD120]).random(len(liberal)) < share)
    kept = np.flatnonzero(~dropped)
    return dataclasses.replace(
        data,
        owners=owners_of_rows(data.owners, kept),
        inputs=data.inputs[kept],
        targets=data.targets[kept],
        train_groups=data.train_groups[kept],
    )
