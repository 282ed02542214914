"""Requests: what a plan is asked for, for the budgets of those who take part."""

from __future__ import annotations

from dataclasses import dataclass

from inosgd._arrays import FloatArray, IntArray
from inosgd.plan import Phase, Terms
from inosgd.plan_config import Fairness, PlanConfig
from inosgd.planning.classes import BudgetClasses


@dataclass(frozen=True, eq=False)
class Request:
    """A configuration for classes of budgets.

    ``past`` holds the phases before, ``counted`` the terms of a count before them, and ``rows`` the owners that take
    part from now on; they make up the classes.
    """

    config: PlanConfig
    classes: BudgetClasses
    past: tuple[Phase, ...]
    rows: IntArray
    counted: Terms | None = None

    @property
    def steps(self) -> int:
        """The number of steps after the ``past``."""
        return self.config.steps - sum(phase.steps for phase in self.past)

    @property
    def accountant(self) -> str:
        """By which accountant budgets are kept."""
        return self.config.accountant

    @property
    def fairness(self) -> Fairness:
        """The knobs of ``fair`` and ``both``."""
        return self.config.fairness

    @property
    def batch(self) -> float:
        """The expected batch size, where it is given."""
        return self.config.expected_batch_size or 0.0

    @property
    def rate(self) -> float:
        """The common rate of plans that treat all examples alike."""
        return self.batch / float(self.classes.examples.sum())

    @property
    def mu(self) -> FloatArray:
        """The Gaussian parameter that each class still allows."""
        return self.classes.mu
