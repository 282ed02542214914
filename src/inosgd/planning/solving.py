"""Solving: the largest rate, or the smallest noise multiplier, that each budget allows.

Guesses come from the central limit theorem for privacy (Dong, Roth and Su 2022; Bu et al. 2020): T steps at rate
q and noise multiplier z are nearly a Gaussian mechanism with

    mu = q sqrt(T (exp(1 / z^2) - 1)),

and (epsilon, delta) determines the mu it allows. Guesses are only guesses: every result is evaluated by the
accountant and lies on the private side of its budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting import Exposures, epsilons
from inosgd.errors import InfeasibleError
from inosgd.planning.classes import BudgetClasses
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

Evaluate = Callable[[FloatArray, IntArray], FloatArray]
"""From knobs x and the classes they belong to, to epsilons; non-decreasing in x."""


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


def solve_multipliers(classes: BudgetClasses, rates: FloatArray, steps: int, accountant: str) -> Solution:
    """The smallest noise multiplier that each class allows at its rate, to the private side."""

    def evaluate(knobs: FloatArray, which: IntArray) -> FloatArray:
        return _budget_used(classes, which, Exposures(rates[which], np.exp(-knobs), steps), accountant)

    guess = -np.log(guess_multipliers(classes.mu, rates, steps))
    lowest, highest = -np.log(LARGEST_MULTIPLIER), -np.log(SMALLEST_MULTIPLIER)
    knobs, spent = _solve_all(evaluate, classes, np.clip(guess, lowest, highest), lowest, highest)
    return Solution(rates, np.exp(-knobs), spent)


def solve_rates(
    classes: BudgetClasses, multiplier: float, steps: int, accountant: str, guess: FloatArray | None = None
) -> Solution:
    """The largest rate, at most 1, that each class allows at a common noise multiplier, to the private side."""

    def evaluate(knobs: FloatArray, which: IntArray) -> FloatArray:
        exposures = Exposures(np.exp(knobs), np.full(len(knobs), multiplier), steps)
        return _budget_used(classes, which, exposures, accountant)

    if guess is None:
        guess = guess_rates(classes.mu, multiplier, steps)
    knobs = np.log(np.clip(guess, SMALLEST_RATE, 1.0))
    solved, spent = _solve_all(evaluate, classes, knobs, np.log(SMALLEST_RATE), 0.0)
    return Solution(np.exp(solved), np.full(len(classes), multiplier), spent)


def _budget_used(classes: BudgetClasses, which: IntArray, exposures: Exposures, accountant: str) -> FloatArray:
    """The epsilon that is used of each budget; where another limit is used more, that share of the budget."""
    limits = classes.limit_deltas.shape[1]
    all_exposures = [*classes.past_of(which), exposures]
    repeated = [Exposures(np.tile(rates, limits), np.tile(zs, limits), steps) for rates, zs, steps in all_exposures]
    deltas = classes.limit_deltas[which].T.ravel()
    reached = epsilons(repeated, deltas, accountant, resolution=classes.resolution).reshape(limits, -1)
    shares = (reached / classes.limit_epsilons[which].T).max(axis=0)
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
    """A few classes of each delta, from the strictest to the most liberal; all where the past or a room matters."""
    if classes.past or classes.rooms is not None:
        return np.arange(len(classes))
    chosen = []
    for delta in np.unique(classes.deltas):
        members = np.flatnonzero(classes.deltas == delta)
        chosen.append(members[np.unique(np.linspace(0, len(members) - 1, ANCHORS).astype(np.int64))])
    return np.sort(np.concatenate(chosen))


def spread_from_anchors(classes: BudgetClasses, anchors: IntArray, values: FloatArray) -> FloatArray:
    """Values at the anchors, interpolated in log epsilon to all classes of the same delta."""
    if len(anchors) == len(classes):
        return values
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
    evaluate: Evaluate, classes: BudgetClasses, guess: FloatArray, lowest: float, highest: float
) -> tuple[FloatArray, FloatArray]:
    """Knobs and the epsilons they reach; anchors are solved first and their corrections improve the other guesses."""
    anchors = _anchors_by_what_is_left(classes) if classes.past and classes.many else anchors_of(classes)
    solved, spent_at_anchors = _solve(evaluate, classes, anchors, guess[anchors], lowest, highest)
    spread = _spread_by_what_is_left if classes.past and classes.many else spread_from_anchors
    knobs = np.clip(guess + spread(classes, anchors, solved - guess[anchors]), lowest, highest)
    spent = np.empty(len(classes))
    knobs[anchors], spent[anchors] = solved, spent_at_anchors
    others = np.setdiff1d(np.arange(len(classes)), anchors)
    if len(others):
        knobs[others], spent[others] = _solve(evaluate, classes, others, knobs[others], lowest, highest)
    return knobs, spent


def _anchors_by_what_is_left(classes: BudgetClasses) -> IntArray:
    """Some of many classes with a past, evenly by the Gaussian parameter that is left to them."""
    by_mu = np.argsort(classes.mu, kind="stable")
    chosen: IntArray = np.sort(by_mu[np.unique(np.linspace(0, len(by_mu) - 1, ANCHORS).astype(np.int64))])
    return chosen


def _spread_by_what_is_left(classes: BudgetClasses, anchors: IntArray, values: FloatArray) -> FloatArray:
    """Values at such anchors, interpolated to all classes; for guesses alone."""
    by_mu = anchors[np.argsort(classes.mu[anchors], kind="stable")]
    heights = values[np.searchsorted(anchors, by_mu)]
    spread: FloatArray = np.interp(np.log(classes.mu), np.log(classes.mu[by_mu]), heights)
    return spread


def _solve(
    evaluate: Evaluate, classes: BudgetClasses, which: IntArray, start: FloatArray, lowest: float, highest: float
) -> tuple[FloatArray, FloatArray]:
    """A secant method on log epsilon against the knob, each class within its own shrinking bracket.

    Where the accountant's curve jumps (Rényi bounds fall to 0 at once), no knob comes close to the budget from
    below, and the largest knob found within it is the result.
    """
    knobs, active = start.copy(), np.arange(len(which))
    low, high = np.full(len(which), lowest), np.full(len(which), highest)
    within, spent = np.full(len(which), np.nan), np.full(len(which), np.nan)
    last_knob, last_excess = np.full(len(which), np.nan), np.full(len(which), np.nan)
    farthest = FARTHEST_OF_MANY if classes.many else FARTHEST
    aim = np.log(classes.epsilons[which] * (1 - (CLOSEST + farthest) / 2))
    tolerance = (farthest - CLOSEST) / 2
    for iteration in range(MOST_ITERATIONS):
        knob = knobs[active]
        reached = evaluate(knob, which[active])
        excess = _log_excess(reached, aim[active])
        under, allowed = excess < 0, excess <= tolerance
        within[active], spent[active] = np.where(allowed, (knob, reached), (within[active], spent[active]))
        low[active], high[active] = np.where(under, knob, low[active]), np.where(under, high[active], knob)
        settled = (np.abs(excess) <= tolerance) | (under & (knob >= highest)) | (high - low < NARROWEST)[active]
        proposal = _secant(knob, excess, last_knob[active], last_excess[active])
        # Secants creep towards a jump from one side; after a few of them every other step halves the bracket.
        halving = iteration >= 6 and iteration % 2 == 0
        knobs[active] = _inside(np.where(halving, np.nan, proposal), low[active], high[active], highest)
        last_knob[active], last_excess[active] = knob, excess
        active = active[~settled]
        if not len(active):
            break
    if np.isnan(within).any():
        hopeless = which[np.flatnonzero(np.isnan(within))[:1]]
        raise _infeasible(classes, int(hopeless[0]), float(evaluate(np.array([lowest]), hopeless)[0]))
    return within, spent


def _inside(proposal: FloatArray, low: FloatArray, high: FloatArray, highest: float) -> FloatArray:
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
