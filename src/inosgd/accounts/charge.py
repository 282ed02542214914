"""Charges: mechanisms as rates, noise multipliers and numbers of releases; never epsilons.

A training is a sequence of phases, each a sampled Gaussian mechanism for some releases: a count of classes is a phase
of one release, then come the phases of steps. A tuning on private data is a selection: of several candidates, each a
training, the best of a random number of trials is shown. It is one release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures
from inosgd.accounting.reference import ORDERS
from inosgd.accounting.renyi import renyi_divergences
from inosgd.accounting.selection import NegativeBinomialTrials, PoissonTrials, Trials, selection_divergences
from inosgd.accounts.filter import LARGEST, in_units, prices
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Phase, Plan


@dataclass(frozen=True, eq=False)
class Charge:
    """What is asked of each row: an owner, or a class of owners.

    Attributes:
        table: One row each; rate and noise multiplier of every phase, candidate by candidate.
        steps: Of every phase, candidate by candidate.
        trials: The distribution of the number of trials; None for a training, which is its only candidate.
    """

    table: FloatArray
    steps: tuple[tuple[int, ...], ...]
    trials: Trials | None = None

    def __post_init__(self) -> None:
        rates, multipliers = self.table[:, 0::2], self.table[:, 1::2]
        if not ((rates >= 0) & (rates <= 1)).all():
            raise InvalidArgumentError("table: a sampling rate is not a number from 0 to 1, and has no price")
        if not (multipliers[rates > 0] > 0).all():
            raise InvalidArgumentError("noise_multiplier: a release without noise has no price; add noise")
        for count in (count for steps in self.steps for count in steps):
            _validate.whole(0, steps=count)

    @classmethod
    def of_phases(cls, phases: Sequence[Phase]) -> Charge:
        """A training, from what it is charged for."""
        return cls(_table([phases]), (tuple(phase.steps for phase in phases),))

    @classmethod
    def of_selection(cls, plans: Sequence[Plan], trials: Trials) -> Charge:
        """A tuning, from the plans of its candidates."""
        distinct = list({id(plan): plan for plan in plans}.values())
        steps = tuple(tuple(phase.steps for phase in plan.charges) for plan in distinct)
        return cls(_table([plan.charges for plan in distinct]), steps, trials)

    @property
    def releases(self) -> tuple[int, ...]:
        """How many releases each price is for."""
        return self.steps[0] if self.trials is None else (1,)

    @property
    def exposures(self) -> list[list[Exposures]]:
        """The phases of each candidate."""
        columns = iter(self.table.T)
        return [[Exposures(next(columns), next(columns), count) for count in steps] for steps in self.steps]

    def prices(self, orders: IntArray) -> IntArray:
        """In units, what one release costs each row: a column for each entry of ``releases``."""
        if self.trials is None:
            return np.column_stack([prices(rates, zs, orders) for rates, zs, _ in self.exposures[0]])
        return self._selection(self.trials, orders)[:, None]

    def _selection(self, trials: Trials, orders: IntArray) -> IntArray:
        """Of showing the best of several trials; rows that no candidate samples are not charged."""
        base, sampled = np.zeros((len(self.table), len(ORDERS))), np.zeros(len(self.table), dtype=np.bool_)
        for candidate in self.exposures:
            total = np.zeros_like(base)
            for rates, multipliers, count in candidate:
                total += count * renyi_divergences(rates, np.where(rates > 0, multipliers, np.inf), ORDERS)
                sampled |= rates > 0
            base = np.maximum(base, total)
        own = np.array([ORDERS.index(order) for order in orders.tolist()])
        best = selection_divergences(base, ORDERS, trials)[np.arange(len(base)), own]
        return in_units(np.where(sampled, best, 0.0))

    def rows(self, rows: IntArray) -> Charge:
        """What is asked of some rows, in their order; a row may repeat."""
        return replace(self, table=self.table[rows])

    def at(self, places: IntArray, owners: int) -> FloatArray:
        """The table for all ``owners`` of a collection, of which those at ``places`` are asked, and no other."""
        if len(places) != len(self.table) or len(np.unique(places)) != len(places):
            raise InvalidArgumentError(
                f"names: {len(places)} owners for {len(self.table)} rows of a charge; name the owner of each row, once"
            )
        table = np.tile([0.0, math.inf], (owners, self.table.shape[1] // 2))
        table[places] = self.table
        return table

    def to_json(self) -> dict[str, Any]:
        """Everything but the table."""
        return {
            "steps": [list(steps) for steps in self.steps],
            "trials": None if self.trials is None else self.trials.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], table: FloatArray) -> Charge:
        """The inverse of `to_json`, with the table."""
        return cls(table, tuple(tuple(steps) for steps in fields["steps"]), trials_of(fields["trials"]))


def trials_of(fields: Mapping[str, Any] | None) -> Trials | None:
    """The distribution that its ``to_json`` describes."""
    if fields is None:
        return None
    if fields["family"] == "poisson":
        return PoissonTrials(float(fields["mean"]))
    return NegativeBinomialTrials(float(fields["eta"]), float(fields["gamma"]))


def _table(candidates: Sequence[Sequence[Phase]]) -> FloatArray:
    columns = []
    for phase in (phase for phases in candidates for phase in phases):
        rates, multipliers = phase.terms.sampling_rates, phase.terms.noise_multipliers()
        if not (multipliers[rates > 0] > 0).all():
            raise InvalidArgumentError("noise_scale=0: a release without noise has no price; add noise")
        columns += [rates, np.where(rates > 0, multipliers, math.inf)]
    return np.column_stack(columns)


def cost(unit_prices: IntArray, releases: Sequence[int], taken: int) -> IntArray:
    """What the first ``taken`` releases cost each row, of prices that each hold for a number of ``releases``.

    Sums that no room allows are all the same, more than any room: 64 bits would not hold them.
    """
    total, left = np.zeros(len(unit_prices), dtype=np.int64), taken
    for column, count in enumerate(releases):
        now = min(max(left, 0), count)
        total = np.minimum(total + np.minimum(unit_prices[:, column], -(-_TOO_MUCH // max(now, 1))) * now, _TOO_MUCH)
        left -= count
    return total


_TOO_MUCH = 2 * LARGEST
