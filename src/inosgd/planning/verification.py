"""Verification: every plan is checked by dp-accounting, which shares no code with our own accountants."""

from __future__ import annotations

import math

import numpy as np

from inosgd._arrays import FloatArray, IntArray, distinct_rows
from inosgd.accounting.reference import Exposure, reference_epsilon
from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.errors import InfeasibleError
from inosgd.plan import Plan

MOST_VERIFIED = 200
SAMPLED_BEYOND = 10
GRID = 2e-4
"""Every distinct exposure is verified up to 200 of them; beyond, the two extremes and an even sample.

On a grid of 2e-4 of epsilon the rounding of dp-accounting itself stays below 0.01%.
"""


def verify_plan(plan: Plan) -> None:
    """Raise `InfeasibleError` unless dp-accounting finds every checked owner within its budget.

    What the first look does not confirm, for lack of fractional orders or of a fine grid, its privacy-loss
    accountant must confirm on a grid eight times finer.
    """
    for owner in _owners_to_check(plan):
        epsilon = reference_spent(plan, int(owner), plan.accountant)
        if not epsilon <= plan.table.epsilons[owner]:
            epsilon = reference_spent(plan, int(owner), "pld", grid=GRID / 8)
        if not epsilon <= plan.table.epsilons[owner]:
            name = plan.table.names[owner]
            raise InfeasibleError(
                f"owner {name!r}: the reference accountant finds epsilon={epsilon:.6g} for the planned terms, above "
                f"the budget {plan.table.epsilons[owner]:g}; the plan is withdrawn",
                owner=name,
            )


def reference_spent(plan: Plan, owner: int, accountant: str, *, grid: float = GRID) -> float:
    """What ``owner`` spends by dp-accounting's ``accountant``; ``grid`` is relative to the owner's epsilon."""
    exposures = [
        (float(phase.terms.sampling_rates[owner]), float(phase.terms.noise_multipliers()[owner]), phase.steps)
        for phase in plan.phases
    ]
    epsilon, delta = float(plan.table.epsilons[owner]), float(plan.table.deltas[owner])
    if accountant == "rdp":
        return reference_epsilon(exposures, delta, accountant, orders=_orders_near_best(exposures, delta))
    spacing = float(np.clip(grid * epsilon, 1e-7, 1e-2)) / max(1.0, math.sqrt(plan.steps / 1e4))
    return reference_epsilon(exposures, delta, accountant, discretization=spacing)


def _orders_near_best(exposures: list[Exposure], delta: float) -> list[int]:
    """Whole orders around the one that our Rényi core finds best; any order alone certifies."""
    divergences = sum(steps * renyi_divergences(rate, multiplier) for rate, multiplier, steps in exposures)
    _, best = epsilon_from_renyi(divergences, RENYI_ORDERS, delta)
    centre = math.floor(float(best[0]))
    return [order for order in range(centre - 1, centre + 4) if order >= 2]


def _owners_to_check(plan: Plan) -> IntArray:
    """For each distinct exposure and delta the strictest owner, thinned to a sample where there are many."""
    columns: list[FloatArray] = [plan.table.deltas]
    for phase in plan.phases:
        columns += [phase.terms.sampling_rates, phase.terms.clipping_thresholds]
    owners, _ = distinct_rows(*columns, then_by=plan.table.epsilons)
    if len(owners) <= MOST_VERIFIED:
        return owners
    by_budget = owners[np.argsort(plan.table.epsilons[owners], kind="stable")]
    chosen: IntArray = by_budget[np.linspace(0, len(by_budget) - 1, SAMPLED_BEYOND).astype(np.int64)]
    return chosen
