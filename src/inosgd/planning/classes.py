"""Budget classes: owners with the same budget plan alike, so planning costs what its distinct budgets cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from inosgd._arrays import FloatArray, IntArray, by_key, distinct_rows
from inosgd.accounting import Exposures, epsilons
from inosgd.accounting.privacy_loss import RESOLUTION
from inosgd.accounting.profile import gaussian_profile
from inosgd.accounting.renyi import renyi_divergences
from inosgd.owners import OwnerTable
from inosgd.planning.rooms import Rooms
from inosgd.planning.saddle_points import estimated_epsilons

MOST_EXACT = 256
"""Up to this many distinct budgets are planned exactly; beyond, budgets are rounded down to a grid first."""

EXACT_OF_MANY = 64
"""For how many of many classes what is past is computed before anything is solved, which computes it for all."""

EPSILON_GRID = 0.004
DELTA_GRID = 0.01
"""Relative spacing of the grids. Rounding down gives away at most 0.4% of epsilon, and 0.05% through delta."""


@dataclass(frozen=True, eq=False)
class BudgetClasses:
    """The distinct budgets of a table, strictest first within each delta.

    Guarantee:
        The budget of an owner's class is at most the owner's own in both epsilon and delta, so terms that
        respect the class respect the owner.

    Attributes:
        epsilons: One per class.
        deltas: One per class.
        examples: The number of examples of all owners of the class.
        of_owner: The class of each owner.
        names: The name of one owner of each class, for messages.
        limit_deltas: Where on its privacy profile each class is limited, a column per limit; the first is its delta.
        limit_epsilons: The epsilon allowed at each of them; the first is its budget.
        many: Whether there are so many classes that solving them less closely is worth it.
        past: What the examples of each class have been exposed to before; counts against the budget.
        mu: The Gaussian parameter that the class still allows, by the central limit; a guess to start from.
        rooms: What accounts leave to each class; None without accounts.
    """

    epsilons: FloatArray
    deltas: FloatArray
    examples: IntArray
    of_owner: IntArray
    names: tuple[str, ...]
    limit_deltas: FloatArray
    limit_epsilons: FloatArray
    many: bool
    past: tuple[Exposures, ...]
    mu: FloatArray
    rooms: Rooms | None = None

    def __len__(self) -> int:
        return len(self.epsilons)

    @property
    def resolution(self) -> float:
        """How finely privacy losses are resolved: twice as coarsely where there are many classes to solve."""
        return 2 * RESOLUTION if self.many else RESOLUTION

    def only(self, chosen: IntArray) -> BudgetClasses:
        """Some of the classes, without their owners."""
        names = tuple(self.names[index] for index in chosen)
        no_owners = np.zeros(0, dtype=np.int64)
        return BudgetClasses(
            self.epsilons[chosen],
            self.deltas[chosen],
            self.examples[chosen],
            no_owners,
            names,
            self.limit_deltas[chosen],
            self.limit_epsilons[chosen],
            self.many,
            self.past_of(chosen),
            self.mu[chosen],
            None if self.rooms is None else self.rooms.of(chosen),
        )

    def past_of(self, chosen: IntArray) -> tuple[Exposures, ...]:
        """The past of some of the classes; one may be chosen several times."""
        return tuple(Exposures(rates[chosen], multipliers[chosen], steps) for rates, multipliers, steps in self.past)

    def room_used(self, which: IntArray, exposures: Exposures) -> FloatArray:
        """The share of the room of each of the classes ``which`` that ``exposures`` take; 0 without rooms.

        What is past was charged before and is not in the room any more.
        """
        if self.rooms is None:
            return np.zeros(len(which))
        rates, multipliers, steps = exposures
        used, rooms = np.zeros(len(which)), self.rooms.of(which)
        for order, rows in by_key(rooms.orders):
            noisy = np.where(rates[rows] > 0, multipliers[rows], np.inf)
            used[rows] = steps * renyi_divergences(rates[rows], noisy, [float(order)])[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(used > 0, used / rooms.divergences, 0.0)

    def tightened(self, factor: float) -> BudgetClasses:
        """The same classes with every epsilon divided by ``factor``."""
        return replace(self, epsilons=self.epsilons / factor, limit_epsilons=self.limit_epsilons / factor)

    @classmethod
    def of(
        cls,
        table: OwnerTable,
        profile_margin: float | None = None,
        past: tuple[Exposures, ...] = (),
        accountant: str = "pld",
        rooms: Rooms | None = None,
    ) -> Self:
        """The classes of ``table``.

        With a ``profile_margin`` m, epsilon at delta / 10, / 100 and / 1000 is limited too: to (1 + m) times that of
        a plain Gaussian mechanism with the same budget. Owners with a different ``past`` are in different classes;
        within a delta, classes come by what is left.
        """
        deltas, epsilons_allowed = table.deltas, table.epsilons
        lived: list[npt.NDArray[Any]] = [column for exposures in past for column in exposures[:2]]
        in_rooms: list[npt.NDArray[Any]] = [] if rooms is None else [rooms.orders, rooms.divergences]
        first, of_owner = distinct_rows(deltas, epsilons_allowed, *lived, *in_rooms)
        if len(first) > MOST_EXACT:
            deltas = _rounded_down(deltas, DELTA_GRID) if len(np.unique(deltas)) > 8 else deltas
            epsilons_allowed = _rounded_down(epsilons_allowed, EPSILON_GRID)
            if rooms is not None:
                rooms = Rooms(rooms.orders, _rounded_down(rooms.divergences, EPSILON_GRID))
                in_rooms = [rooms.orders, rooms.divergences]
            first, of_owner = distinct_rows(deltas, epsilons_allowed, *lived, *in_rooms, then_by=table.epsilons)
        spent_before = tuple(Exposures(rates[first], multipliers[first], steps) for rates, multipliers, steps in past)
        mu = _mu_left(epsilons_allowed[first], deltas[first], spent_before, accountant)
        if rooms is not None:
            rooms = rooms.of(first)
            mu = np.minimum(mu, np.sqrt(2 * rooms.divergences / rooms.orders))
        examples = np.bincount(of_owner, weights=table.sizes, minlength=len(first)).astype(np.int64)
        names = tuple(table.names[row] for row in first)
        limits = _limits(epsilons_allowed[first], deltas[first], profile_margin)
        many = len(first) > MOST_EXACT
        classes = cls(
            epsilons_allowed[first], deltas[first], examples, of_owner, names, *limits, many, spent_before, mu, rooms
        )
        return classes if not past and rooms is None else classes._by_what_is_left()

    def _by_what_is_left(self) -> Self:
        order = np.lexsort((self.mu, self.deltas))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return replace(self.only(order), of_owner=place[self.of_owner])  # type: ignore[return-value]


def gaussian_mu(epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """The mu whose Gaussian mechanism N(mu, 1) against N(0, 1) has exactly these (epsilon, delta).

    delta = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu), solved by bisection.

    >>> float(np.round(gaussian_mu(np.array([1.0]), np.array([1e-5]))[0], 3))
    0.268
    """
    low, high = np.full(np.shape(epsilon), -20.0), np.full(np.shape(epsilon), 8.0)
    for _ in range(60):
        middle = (low + high) / 2
        mu = np.exp(middle)
        reached = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        low, high = np.where(reached <= delta, middle, low), np.where(reached <= delta, high, middle)
    solved: FloatArray = np.exp(low)
    return solved


def _mu_left(allowed: FloatArray, deltas: FloatArray, past: tuple[Exposures, ...], accountant: str) -> FloatArray:
    """Squares of mu add up under composition: what is left of the square, and at least a ten-thousandth of mu."""
    mu = gaussian_mu(allowed, deltas)
    if not past:
        return mu
    spent = gaussian_mu(np.minimum(_about_spent(past, deltas, allowed, accountant), allowed), deltas)
    left: FloatArray = np.sqrt(np.maximum(mu**2 - spent**2, (1e-4 * mu) ** 2))
    return left


def _about_spent(past: tuple[Exposures, ...], deltas: FloatArray, allowed: FloatArray, accountant: str) -> FloatArray:
    """What the past cost each class. Of many, estimates, corrected as some of them, evenly chosen, turn out to be."""
    if len(deltas) <= MOST_EXACT or accountant != "pld":
        return epsilons(past, deltas, accountant)
    estimates = allowed
    for _ in range(3):
        estimates = np.clip(estimated_epsilons(past, deltas, estimates), allowed / 20, allowed)
    some = np.argsort(estimates, kind="stable")[np.linspace(0, len(deltas) - 1, EXACT_OF_MANY).astype(np.int64)]
    exact = epsilons([Exposures(q[some], z[some], steps) for q, z, steps in past], deltas[some], accountant)
    wrong = np.log(np.clip(exact, allowed[some] / 20, allowed[some]) / estimates[some])
    corrected: FloatArray = estimates * np.exp(np.interp(np.log(estimates), np.log(estimates[some]), wrong))
    return corrected


def _limits(epsilons: FloatArray, deltas: FloatArray, margin: float | None) -> tuple[FloatArray, FloatArray]:
    if margin is None:
        return deltas[:, None], epsilons[:, None]
    gaussians = [gaussian_profile(*budget) for budget in zip(epsilons.tolist(), deltas.tolist(), strict=True)]
    beyond = [[g.epsilon_at_tenth, g.epsilon_at_hundredth, g.epsilon_at_thousandth] for g in gaussians]
    limit_epsilons = np.column_stack([epsilons, (1 + margin) * np.array(beyond)])
    return deltas[:, None] / np.array([1.0, 10.0, 100.0, 1000.0]), limit_epsilons


def _rounded_down(values: FloatArray, spacing: float) -> FloatArray:
    """Each value moved down to the grid smallest x (1 + spacing)^k, by at most a factor 1 + spacing."""
    smallest = float(values.min())
    powers = np.floor(np.log(values / smallest) / np.log1p(spacing) * (1 - 1e-12))
    rounded: FloatArray = smallest * (1 + spacing) ** powers
    return np.minimum(rounded, values)
