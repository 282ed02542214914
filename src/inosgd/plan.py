"""Plans: what every step will do, decided before training and public.

`Terms` holds for one step: a sampling rate and a clipping threshold per owner and one noise scale. A `Phase`
repeats terms for some steps; a `Plan` is a sequence of phases together with what it makes every owner spend.
Plans hold no data and are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray, frozen_floats
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan_config import PlanConfig
from inosgd.shown import BUDGET, SPENT, USED, rounded_up, spending_shown
from inosgd.tabled import Tabled, TextTable

PLAN_FORMAT = 3
"""Raised when a field changes its meaning; adding a field with a default does not raise it."""

LARGEST_THRESHOLD_RATIO = 1e6
"""How far thresholds may lie apart. `inosgd.importance` says what roundings of the weights then add at most."""


@dataclass(frozen=True, eq=False)
class Terms(ArrayValue):
    """The terms of one step: q_n and C_n per owner, one noise scale sigma, and b = sum over n of q_n |D_n|.

    Owner n's examples are included independently with probability ``sampling_rates[n]``; each moves the
    weighted sum by at most ``clipping_thresholds[n]``; the sum is released with Gaussian noise of standard
    deviation ``noise_scale`` in every coordinate, and divided by ``expected_batch_size``.
    """

    sampling_rates: FloatArray
    clipping_thresholds: FloatArray
    noise_scale: float
    expected_batch_size: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_rates", frozen_floats(self.sampling_rates))
        object.__setattr__(self, "clipping_thresholds", frozen_floats(self.clipping_thresholds))
        _validate.same_length(sampling_rates=self.sampling_rates, clipping_thresholds=self.clipping_thresholds)
        _validate.closed_unit(sampling_rate=self.sampling_rates)
        _validate.positive(clipping_threshold=self.clipping_thresholds)
        _validate.non_negative(noise_scale=self.noise_scale)
        _validate.finite_positive(expected_batch_size=self.expected_batch_size)
        largest, smallest = self.clipping_thresholds.max(), self.clipping_thresholds.min()
        if not largest <= LARGEST_THRESHOLD_RATIO * smallest:
            raise InvalidArgumentError(
                f"clipping_thresholds from {smallest:g} to {largest:g}: keep them within a factor of "
                f"{LARGEST_THRESHOLD_RATIO:,.0f}"
            )

    @classmethod
    def for_owners(
        cls,
        table: OwnerTable,
        sampling_rates: FloatArray,
        clipping_thresholds: FloatArray,
        noise_scale: float,
    ) -> Self:
        """Terms whose expected batch size follows from the owners' sizes."""
        expected = float(np.dot(sampling_rates, table.sizes))
        return cls(sampling_rates, clipping_thresholds, noise_scale, expected)

    def thresholds_of(self, owners: IntArray) -> FloatArray:
        """The clipping threshold of each example, from the table row of its owner."""
        thresholds: FloatArray = self.clipping_thresholds[owners]
        return thresholds

    def noise_multipliers(self) -> FloatArray:
        """z_n = noise_scale / C_n, the only form in which accounting sees thresholds and noise."""
        return self.noise_scale / self.clipping_thresholds

    def to_json(self) -> dict[str, Any]:
        """Columns as plain lists."""
        return {
            "sampling_rates": self.sampling_rates.tolist(),
            "clipping_thresholds": self.clipping_thresholds.tolist(),
            "noise_scale": self.noise_scale,
            "expected_batch_size": self.expected_batch_size,
        }


@dataclass(frozen=True)
class Phase:
    """The same terms for a number of steps."""

    steps: int
    terms: Terms

    def __post_init__(self) -> None:
        _validate.whole(1, steps=self.steps)

    def to_json(self) -> dict[str, Any]:
        """The terms and the number of steps."""
        return {"steps": self.steps, "terms": self.terms.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(int(fields["steps"]), Terms(**fields["terms"]))


def check_count(terms: Terms | None) -> None:
    """Raise unless ``terms`` are those of a count: of all examples of an owner, or of none."""
    if terms is not None and not np.isin(terms.sampling_rates, (0.0, 1.0)).all():
        raise InvalidArgumentError("count.sampling_rates: a count is of all of an owner's examples; give 0 or 1")


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Tabled, ArrayValue):
    """Phases for a table of owners, and what they make every owner spend.

    Guarantee:
        ``spent[n]`` is an upper bound, by ``accountant``, on the epsilon that the count and all phases together cost
        each of owner n's examples at ``table.deltas[n]``. A plan whose ``spent`` exceeds a budget is refused.

    Attributes:
        table: Owners, budgets and sizes; all of it is public.
        phases: What the steps do, in their order.
        accountant: By which accountant ``spent`` is a bound.
        spent: An epsilon for each owner.
        config: What was asked for, so that planning again can ask for the same; None if the phases were made by hand.
        count: The terms of the count of classes before the first step (`inosgd.counting`); None if none are counted.
    """

    table: OwnerTable
    phases: tuple[Phase, ...]
    accountant: str
    spent: FloatArray
    config: PlanConfig | None = None
    count: Terms | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "spent", frozen_floats(self.spent))
        _validate.same_length(owners=self.table, spent=self.spent)
        if not self.phases:
            raise InvalidArgumentError("phases=(): give at least one phase")
        check_count(self.count)
        for phase in self.charges:
            _validate.same_length(owners=self.table, sampling_rates=phase.terms.sampling_rates)
        over = ~(self.spent <= self.table.epsilons)
        if over.any():
            owner = int(np.argmax(over))
            raise InvalidArgumentError(
                f"spent={rounded_up(self.spent[owner], 6)}: owner {self.table.names[owner]!r} allows only "
                f"epsilon={self.table.epsilons[owner]:g}; plan fewer steps or more noise"
            )

    def tabled(self) -> TextTable:
        """What every owner allows, how it takes part in the first step, and what it spends."""
        table, terms = self.table, self.at(0)
        expected = terms.sampling_rates * table.sizes
        columns = zip(expected, terms.clipping_thresholds, table.epsilons, table.deltas, self.spent, strict=True)
        rows = (
            (name, f"{count:.4g}", f"{threshold:.4g}", shown.budget, shown.spent, shown.used)
            for name, (count, threshold, *known) in zip(table.names, columns, strict=True)
            for shown in (spending_shown(*known),)
        )
        title = (
            f"{self.variant} plan: {self.steps:,} steps ({self.epochs:.3g} epochs), noise scale "
            f"{terms.noise_scale:.4g}, by {self.accountant}"
        )
        heads = ("owner", f"{table.units} in a step", "threshold", BUDGET, SPENT, USED)
        return TextTable(title, heads, rows, len(table))

    @property
    def epochs(self) -> float:
        """How often all units are expected to be drawn: the sum of expected batches over the number of units.

        What a ``DataLoader`` calls an epoch, on average: under Poisson sampling no epoch has an end.
        """
        drawn = sum(phase.steps * float(phase.terms.sampling_rates @ self.table.sizes) for phase in self.phases)
        return drawn / max(int(self.table.sizes.sum()), 1)

    @property
    def variant(self) -> str:
        """The variant that was asked for."""
        return "by hand" if self.config is None else self.config.variant

    @property
    def charges(self) -> tuple[Phase, ...]:
        """Everything that is charged for: the count of classes, as a phase of one release, and the phases of steps."""
        return self.phases if self.count is None else (Phase(1, self.count), *self.phases)

    @property
    def steps(self) -> int:
        """The number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def at(self, step: int) -> Terms:
        """The terms of ``step``, counted from 0."""
        _validate.whole(0, step=step)
        end = 0
        for phase in self.phases:
            end += phase.steps
            if step < end:
                return phase.terms
        raise _validate.fail("step", step, f"the plan ends after {self.steps} steps")

    def expected_threshold_sum(self, step: int = 0) -> float:
        """The expected sum of thresholds in a batch, sum over n of q_n |D_n| C_n: a tail's natural unit."""
        terms = self.at(step)
        return float(np.dot(terms.sampling_rates * self.table.sizes, terms.clipping_thresholds))

    def to_json(self) -> str:
        """The plan as JSON text; `from_json` gives an equal plan back."""
        fields = {
            "format": PLAN_FORMAT,
            "accountant": self.accountant,
            "owners": self.table.to_json(),
            "count": None if self.count is None else self.count.to_json(),
            "phases": [phase.to_json() for phase in self.phases],
            "spent": self.spent.tolist(),
            "config": None if self.config is None else self.config.to_json(),
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` wrote.

        Raises:
            InvalidArgumentError: If ``text`` is not a plan.
        """
        try:
            return cls._from_fields(json.loads(text))
        except InosgdError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidArgumentError(f"plan: this is not the JSON of a plan ({why}); write it again") from None

    @classmethod
    def _from_fields(cls, fields: Mapping[str, Any]) -> Self:
        if fields.get("format") != PLAN_FORMAT:
            raise _validate.other_format("plan", fields.get("format"), PLAN_FORMAT, "plan again")
        phases = tuple(Phase.from_json(phase) for phase in fields["phases"])
        table = OwnerTable.from_json(fields["owners"])
        config = None if fields["config"] is None else PlanConfig.from_json(fields["config"])
        count = None if fields["count"] is None else Terms(**fields["count"])
        return cls(table, phases, str(fields["accountant"]), fields["spent"], config, count)
