"""Solving: the largest rate, or the smallest noise multiplier, that each budget allows.

Guesses come from the central limit theorem for privacy (Dong, Roth and Su 2022; Bu et al. 2020): T steps at rate
q and noise multiplier z are nearly a Gaussian mechanism with

    mu = q sqrt(T (exp(1 / z^2) - 1)),

and (epsilon, delta) determines the mu it allows. Of many classes, a few are solved first and correct the guesses for
the others. Where each has a past of its own, few tell little of the others: all are then solved by estimates of epsilon
first (`inosgd.planning.saddle_points`), which take a tenth of the accountant's time or less. Guesses are only guesses:
every result is evaluated by the accountant and lies on the private side of its budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.interpolate import PchipInterpolator

from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures, epsilons
from inosgd.errors import InfeasibleError
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.saddle_points import estimated_epsilons
from inosgd.shown import rounded_up

CLOSEST = 1e-4
FARTHEST = 3e-4
FARTHEST_OF_MANY = 1.5e-3
"""A solved epsilon lies between (1 - FARTHEST) and (1 - CLOSEST) times its budget; with many classes, less close.

The gap to the budget leaves room for the reference accountant, whose grid or orders differ from ours.
"""

SMALLEST_MULTIPLIER = 0.1
LARGEST_MULTIPLIER = 1e7
SMALLEST_RATE = 1e-12
ANCHORS = 24
MOST_ITERATIONS = 60
NARROWEST = 1e-9
ESTIMATES_WITHIN = 1e-4
MOST_ESTIMATES = 8
"""Estimates are solved this closely, so that the accountant has its own tolerance to itself, or this often."""

Cost = Callable[[Sequence[Exposures], FloatArray, FloatArray], FloatArray]
"""From exposures, deltas and epsilons that are allowed at them to epsilons: an accountant, or an estimate of it."""

Evaluate = Callable[[Cost, FloatArray, IntArray], FloatArray]
"""From a cost, knobs x and the classes they belong to, to epsilons; non-decreasing in x."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A rate and a noise multiplier for each class, and the epsilon that they cost at its delta.

    Guarantee:
        By the accountant it was solved with, the steps at (rates[k], multipliers[k]) cost at most spent[k], which is
        at most the epsilon of class k.
    """

    rates: FloatArray
    multipliers: FloatArray
    spent: FloatArray


def solve_multipliers(
    classes: BudgetClasses, rates: FloatArray, steps: int, accountant: str, least: FloatArray | float = 0.0
) -> Solution:
    """The smallest noise multiplier, from ``least`` on, that each class allows at its rate, to the private side."""
    guess = estimated_multipliers(classes, rates, steps, accountant)
    least = np.maximum(np.full(len(classes), SMALLEST_MULTIPLIER), least)
    ends = -math.log(LARGEST_MULTIPLIER), -np.log(least)
    knobs, spent = _solve_all(_at_rates(classes, rates, steps), classes, -np.log(guess), *ends, accountant)
    return Solution(rates, np.maximum(np.exp(-knobs), least), spent)


def solve_rates(
    classes: BudgetClasses, multiplier: float, steps: int, accountant: str, guess: FloatArray | None = None
) -> Solution:
    """The largest rate, at most 1, that each class allows at a common noise multiplier, to the private side."""
    if guess is None:
        guess = estimated_rates(classes, multiplier, steps, accountant)
    ends = math.log(SMALLEST_RATE), np.zeros(len(classes))
    knobs, spent = _solve_all(_at_multiplier(classes, multiplier, steps), classes, np.log(guess), *ends, accountant)
    return Solution(np.exp(knobs), np.full(len(classes), multiplier), spent)


def estimated_multipliers(classes: BudgetClasses, rates: FloatArray, steps: int, accountant: str) -> FloatArray:
    """About what `solve_multipliers` will find: by the central limit; of many classes with a past, by estimates."""
    guess = guess_multipliers(classes.mu, rates, steps)
    if not (classes.many and classes.past and accountant == "pld"):
        return guess
    ends = -math.log(LARGEST_MULTIPLIER), np.full(len(classes), -math.log(SMALLEST_MULTIPLIER))
    return np.exp(-_estimated(_at_rates(classes, rates, steps), classes, -np.log(guess), *ends))


def estimated_rates(
    classes: BudgetClasses, multiplier: float, steps: int, accountant: str, guess: FloatArray | None = None
) -> FloatArray:
    """About what `solve_rates` will find: by the central limit; of many classes with a past, by estimates."""
    if guess is None:
        guess = guess_rates(classes.mu, multiplier, steps)
    if not (classes.many and classes.past and accountant == "pld"):
        return guess
    ends = math.log(SMALLEST_RATE), np.zeros(len(classes))
    return np.exp(_estimated(_at_multiplier(classes, multiplier, steps), classes, np.log(guess), *ends))


def _at_rates(classes: BudgetClasses, rates: FloatArray, steps: int) -> Evaluate:
    def evaluate(cost: Cost, knobs: FloatArray, which: IntArray) -> FloatArray:
        return _budget_used(classes, which, Exposures(rates[which], np.exp(-knobs), steps), cost)

    return evaluate


def _at_multiplier(classes: BudgetClasses, multiplier: float, steps: int) -> Evaluate:
    def evaluate(cost: Cost, knobs: FloatArray, which: IntArray) -> FloatArray:
        exposures = Exposures(np.exp(knobs), np.full(len(knobs), multiplier), steps)
        return _budget_used(classes, which, exposures, cost)

    return evaluate


def _budget_used(classes: BudgetClasses, which: IntArray, exposures: Exposures, cost: Cost) -> FloatArray:
    """The epsilon that is used of each budget; where another limit is used more, that share of the budget."""
    limits = classes.limit_deltas.shape[1]
    all_exposures = [*classes.past_of(which), exposures]
    repeated = [Exposures(np.tile(rates, limits), np.tile(zs, limits), steps) for rates, zs, steps in all_exposures]
    deltas = classes.limit_deltas[which].T.ravel()
    allowed = classes.limit_epsilons[which].T
    reached = cost(repeated, deltas, allowed.ravel()).reshape(limits, -1)
    shares = (reached / allowed).max(axis=0)
    used: FloatArray = np.maximum(shares, classes.room_used(which, exposures)) * classes.epsilons[which]
    return used


def guess_multipliers(mu: FloatArray, rates: FloatArray, steps: int) -> FloatArray:
    """The z of the central limit for given mu and q."""
    guess: FloatArray = 1 / np.sqrt(np.log1p(mu**2 / (steps * rates**2)))
    return guess


def guess_rates(mu: FloatArray, multiplier: float, steps: int) -> FloatArray:
    """The q of the central limit for given mu and z, possibly above 1."""
    with np.errstate(over="ignore"):
        guess: FloatArray = mu / np.sqrt(steps * np.expm1(1 / multiplier**2))
    return guess


def anchors_of(classes: BudgetClasses) -> IntArray:
    """A few classes of each delta, from the strictest to the most liberal.

    Where there is a past or a room, all classes; of many with a past, a few by what is left to them.
    """
    if classes.past and classes.many:
        return np.sort(_some_of(np.argsort(classes.mu, kind="stable")))
    if classes.past or classes.rooms is not None:
        return np.arange(len(classes))
    of_deltas = [_some_of(np.flatnonzero(classes.deltas == delta)) for delta in np.unique(classes.deltas)]
    return np.sort(np.concatenate(of_deltas))


def _some_of(members: IntArray) -> IntArray:
    """Up to `ANCHORS` of the members, evenly."""
    chosen: IntArray = members[np.unique(np.linspace(0, len(members) - 1, ANCHORS).astype(np.int64))]
    return chosen


def spread_from_anchors(classes: BudgetClasses, anchors: IntArray, values: FloatArray) -> FloatArray:
    """Values at the anchors, interpolated to all classes: in log epsilon within a delta, or by what is left."""
    if len(anchors) == len(classes):
        return values
    if classes.past and classes.many:
        by_mu = np.argsort(classes.mu[anchors], kind="stable")
        return np.interp(np.log(classes.mu), np.log(classes.mu[anchors][by_mu]), values[by_mu])
    spread = np.empty(len(classes))
    log_budgets = np.log(classes.epsilons)
    for delta in np.unique(classes.deltas):
        members = np.flatnonzero(classes.deltas == delta)
        known = classes.deltas[anchors] == delta
        knots, heights = log_budgets[anchors[known]], values[known]
        smooth = PchipInterpolator(knots, heights) if len(knots) > 1 else lambda _, only=heights[0]: only
        spread[members] = smooth(log_budgets[members])
    return spread


def _solve_all(
    evaluate: Evaluate, classes: BudgetClasses, guess: FloatArray, lowest: float, highest: FloatArray, accountant: str
) -> tuple[FloatArray, FloatArray]:
    """Knobs and the epsilons they reach; anchors are solved first and their corrections improve the other guesses."""

    def cost(exposures: Sequence[Exposures], deltas: FloatArray, _: FloatArray) -> FloatArray:
        return epsilons(exposures, deltas, accountant, resolution=classes.resolution)

    guess = np.clip(guess, lowest, highest)
    anchors = anchors_of(classes)
    knobs, spent = guess.copy(), np.empty(len(classes))
    knobs[anchors], spent[anchors] = _solve(evaluate, cost, classes, anchors, guess, lowest, highest)
    others = np.setdiff1d(np.arange(len(classes)), anchors)
    if len(others):
        correction = spread_from_anchors(classes, anchors, (knobs - guess)[anchors])
        corrected = np.clip(guess + correction, lowest, highest)
        knobs[others], spent[others] = _solve(evaluate, cost, classes, others, corrected, lowest, highest)
    return knobs, spent


def _solve(
    evaluate: Evaluate,
    cost: Cost,
    classes: BudgetClasses,
    which: IntArray,
    guess: FloatArray,
    lowest: float,
    highest: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Knobs of some classes that keep their budgets, and the epsilons they reach.

    Raises:
        InfeasibleError: If a class has none; it is named.
    """
    exact = partial(evaluate, cost)
    tolerance = (_farthest(classes) - CLOSEST) / 2
    within, spent = _search(exact, classes, which, guess[which], lowest, highest[which], tolerance)
    if np.isnan(within).any():
        hopeless = which[np.flatnonzero(np.isnan(within))[:1]]
        raise _infeasible(classes, int(hopeless[0]), float(exact(np.array([lowest]), hopeless)[0]))
    return within, spent


def _estimated(
    evaluate: Evaluate, classes: BudgetClasses, guess: FloatArray, lowest: float, highest: FloatArray
) -> FloatArray:
    """Knobs that are solved with estimates; the guess where they find none that keeps the budget."""
    guess, everyone = np.clip(guess, lowest, highest), np.arange(len(classes))
    estimate = partial(evaluate, estimated_epsilons)
    knobs, _ = _search(estimate, classes, everyone, guess, lowest, highest, ESTIMATES_WITHIN, MOST_ESTIMATES)
    return np.where(np.isnan(knobs), guess, knobs)


def _farthest(classes: BudgetClasses) -> float:
    return FARTHEST_OF_MANY if classes.many else FARTHEST


def _search(
    evaluate: Callable[[FloatArray, IntArray], FloatArray],
    classes: BudgetClasses,
    which: IntArray,
    start: FloatArray,
    lowest: float,
    highest: FloatArray,
    tolerance: float,
    iterations: int = MOST_ITERATIONS,
) -> tuple[FloatArray, FloatArray]:
    """A secant method on log epsilon against the knob, each class within its own shrinking bracket.

    Where the accountant's curve jumps (Rényi bounds fall to 0 at once), no knob comes close to the budget from
    below, and the largest knob found within it is the result; NaN if none was found.
    """
    knobs, active = start.copy(), np.arange(len(which))
    low, high = np.full(len(which), lowest), highest.copy()
    within, spent = np.full(len(which), np.nan), np.full(len(which), np.nan)
    last_knob, last_excess = np.full(len(which), np.nan), np.full(len(which), np.nan)
    aim = np.log(classes.epsilons[which] * (1 - (CLOSEST + _farthest(classes)) / 2))
    for iteration in range(iterations):
        knob = knobs[active]
        reached = evaluate(knob, which[active])
        excess = _log_excess(reached, aim[active])
        under, allowed = excess < 0, excess <= tolerance
        within[active], spent[active] = np.where(allowed, (knob, reached), (within[active], spent[active]))
        low[active], high[active] = np.where(under, knob, low[active]), np.where(under, high[active], knob)
        at_end = under & (knob >= highest[active])
        settled = (np.abs(excess) <= tolerance) | at_end | (high - low < NARROWEST)[active]
        proposal = _secant(knob, excess, last_knob[active], last_excess[active])
        # Secants creep towards a jump from one side; after a few of them every other step halves the bracket.
        halving = iteration >= 6 and iteration % 2 == 0
        proposal = np.where(halving, np.nan, proposal)
        knobs[active] = _inside(proposal, low[active], high[active], highest[active])
        last_knob[active], last_excess[active] = knob, excess
        active = active[~settled]
        if not len(active):
            break
    return within, spent


def _inside(proposal: FloatArray, low: FloatArray, high: FloatArray, highest: FloatArray) -> FloatArray:
    """The proposal if it lies in its bracket; the end of the range before it is approached by halving."""
    middle = np.where((proposal >= high) & (high == highest), highest, (low + high) / 2)
    return np.where((proposal > low) & (proposal < high), proposal, middle)


def _log_excess(reached: FloatArray, aim: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(reached) - aim, -30.0, 30.0)


def _secant(knob: FloatArray, excess: FloatArray, last_knob: FloatArray, last_excess: FloatArray) -> FloatArray:
    """The next knob; while there is no earlier point, or no useful one, epsilon is taken to grow as knob^1.5."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (excess - last_excess) / (knob - last_knob)
    slope = np.where(np.isfinite(slope) & (slope > 0.05), slope, 1.5)
    return knob - np.clip(excess / slope, -3.0, 3.0)


def _infeasible(classes: BudgetClasses, index: int, smallest: float) -> InfeasibleError:
    name, epsilon, delta = classes.names[index], classes.epsilons[index], classes.deltas[index]
    return InfeasibleError(
        f"owner {name!r}: no plan of this kind keeps epsilon={epsilon:g} at delta={delta:g}; the smallest that can be "
        f"certified for these steps is {rounded_up(smallest, 3)}; ask for that, plan fewer steps, or use another "
        "accountant",
        owner=name,
    )
