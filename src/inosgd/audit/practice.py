"""Practice: what a training really does, apart from what is claimed about it.

An audit compares the two. In an honest practice they are the same plan; in a control (`inosgd.audit.controls`) they
are not. The numbers of a practice are constants: rates, thresholds, noise, expected batch size and the length of the
tail do not follow the number of examples that happen to be in. Adding an example is then exactly what the accountant
speaks of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from inosgd._arrays import FloatArray, IntArray
from inosgd.class_shares import ClassShares
from inosgd.counting import Labels
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ExampleLosses, GradientEngine
from inosgd.importance import Importance
from inosgd.method import Method
from inosgd.owners import EXAMPLE, Owners
from inosgd.plan import Phase, Plan, Terms
from inosgd.randomness import RandomSource
from inosgd.sampling import PoissonSampler
from inosgd.training import Trainer, TrainingState, Under
from inosgd.units import Units


class Sampler(Protocol):
    """Draws batches of example indices."""

    def draw(self, source: RandomSource) -> IntArray:
        """One batch: sorted, distinct indices."""


SamplerMaker = Callable[[FloatArray, IntArray, IntArray], Sampler]
"""From rates per owner, the owner of each example and the class of each example to a sampler."""


def poisson(rates: FloatArray, assignment: IntArray, classes: IntArray) -> Sampler:
    """What is claimed: every example by itself, whatever its class."""
    return PoissonSampler(rates, assignment)


@dataclass(frozen=True, eq=False)
class Practice:
    """The terms of every step, the method, and how batches are drawn.

    ``plan`` has one phase. Its budgets are those of the claim where it is honest, and unlimited in a control, whose
    ledger would otherwise refuse it. ``by_row`` treats each row of a unit as if it were one: a control.
    """

    plan: Plan
    method: Method
    sampler: SamplerMaker = poisson
    shares: ClassShares | None = None
    by_row: bool = False

    def __post_init__(self) -> None:
        if len(self.plan.phases) != 1:
            raise InvalidArgumentError(f"plan: it has {len(self.plan.phases)} phases; audit plans of one phase")

    @property
    def terms(self) -> Terms:
        """The terms of every step."""
        return self.plan.phases[0].terms

    def with_terms(self, terms: Terms) -> Practice:
        """The same with other terms, which no owner is charged for."""
        table = self.plan.table
        unlimited = dataclasses.replace(table, epsilons=np.full(len(table), np.inf))
        phases = (Phase(self.plan.steps, terms),)
        plan = dataclasses.replace(self.plan, table=unlimited, phases=phases, spent=np.full(len(table), np.inf))
        return dataclasses.replace(self, plan=plan)

    def for_owners(self, assignment: IntArray, unit: str = EXAMPLE) -> tuple[Plan, Owners]:
        """The plan and the owners of a training on examples, or units, that belong to these rows; only sizes differ."""
        table = self.plan.table
        sizes = np.bincount(assignment, minlength=len(table))
        sized = dataclasses.replace(table, sizes=sizes, unit=unit)
        return dataclasses.replace(self.plan, table=sized), Owners(sized, assignment)

    def trainer(
        self,
        assignment: IntArray,
        examples: Any,
        losses: ExampleLosses,
        labels: Labels | None = None,
        engine: GradientEngine | None = None,
        units: Units | None = None,
    ) -> Trainer:
        """The library's own trainer for this practice; ``assignment`` is that of units, if there are any."""
        if self.by_row and units is not None:
            assignment, units = assignment[units.of_row], None
        plan, owners = self.for_owners(assignment, EXAMPLE if units is None else units.name)
        engine, shares = engine or BookkeepingEngine(), self.shares
        return Trainer(plan, owners, examples, losses, self.method, engine, shares=shares, labels=labels, units=units)

    def start(
        self,
        trainer: Trainer,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        source: RandomSource,
        classes: IntArray,
    ) -> TrainingState:
        """The state before the first step, with this practice's sampler in place; an honest one's is the step's own."""
        state = TrainingState.start(trainer, model, optimizer, source)
        if self.sampler is poisson:
            return state
        terms = trainer.plan.phases[0].terms
        drawing = self.sampler(terms.sampling_rates, trainer.owners.assignment, classes)
        state.under = Under(trainer, terms, drawing, trainer.losses_under(terms, state.shares))  # type: ignore[arg-type]
        return state


def honest(plan: Plan, method: Method) -> Practice:
    """The practice that does what ``plan`` claims, its tail as long as the plan says."""
    tail = method.tail(plan.expected_threshold_sum())
    if tail is not None:
        method = dataclasses.replace(method, importance=Importance(tail.shape, share=None, length=tail.length))
    return Practice(plan, method)
