"""Requests: what a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Fairness, Phase, Preferences
from inosgd.planning.classes import BudgetClasses


@dataclass(frozen=True)
class Target:
    """Two of expected batch size, mean clipping threshold and noise scale; the third follows from the budgets."""

    expected_batch_size: float | None
    clipping_threshold: float | None
    noise_scale: float | None

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if value is not None:
                _validate.finite_positive(**{name: value})

    def check_for(self, variant: str) -> None:
        """Raise unless exactly the right two are given for ``variant``."""
        follows = "clipping_threshold" if variant == "sample" else "expected_batch_size"
        wanted = [{"expected_batch_size", "clipping_threshold"}, {"noise_scale", follows}]
        if {name for name, value in self.__dict__.items() if value is not None} not in wanted:
            options = " or ".join(" and ".join(sorted(option)) for option in wanted)
            got = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
            raise InvalidArgumentError(f"{got}: for variant {variant!r} give exactly {options}")

    def check_against(self, table: OwnerTable) -> None:
        """Raise unless the owners of ``table`` could meet the target at all."""
        if np.isinf(table.epsilons).any():
            name = table.names[int(np.argmax(table.epsilons))]
            raise InfeasibleError(f"owner {name!r}: epsilon=inf; plans need a finite budget, so give one", name)
        records = int(table.sizes.sum())
        if self.expected_batch_size is not None and not self.expected_batch_size <= records:
            raise InfeasibleError(
                f"expected_batch_size={self.expected_batch_size:g}: the owners have {records} examples in all, and a "
                f"rate is at most 1; ask for at most {records}"
            )


@dataclass(frozen=True, eq=False)
class Request:
    """A target for classes of budgets.

    ``past`` holds the phases before, and ``rows`` the owners that take part from now on; they make up the classes.
    """

    classes: BudgetClasses
    steps: int
    target: Target
    accountant: str
    preferences: Preferences
    past: tuple[Phase, ...]
    rows: IntArray

    @property
    def fairness(self) -> Fairness:
        """The knobs of ``fair`` and ``both``."""
        return self.preferences.fairness

    @property
    def batch(self) -> float:
        """The expected batch size, where it is given."""
        return self.target.expected_batch_size or 0.0

    @property
    def rate(self) -> float:
        """The common rate of plans that treat all records alike."""
        return self.batch / float(self.classes.records.sum())

    @property
    def mu(self) -> FloatArray:
        """The Gaussian parameter that each class still allows."""
        return self.classes.mu
