"""Verification: every plan is checked by dp-accounting, which shares no code with our own accountants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inosgd._arrays import FloatArray, IntArray, distinct_rows
from inosgd.accounting.reference import Exposure, reference_epsilon
from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.accounting.spending import epsilons_spent
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan
from inosgd.shown import rounded_up

MOST_VERIFIED = 200
SAMPLED_BEYOND = 10
GRID = 2e-4
MOST_POINTS = 60_000
"""Every distinct exposure is verified up to 200 of them; beyond, the two extremes and an even sample.

On a grid of 2e-4 of epsilon the rounding of dp-accounting itself mostly stays below 0.01%; where a step can lose much
more than epsilon, a bound on the number of grid points keeps it from taking minutes.
"""


COARSE = 0.4
CLEAR_ROOM = 6e-4
"""On a grid 2.5 times as coarse the rounding is some 0.05%: where more than 0.06% is left, that tells as much."""


def verify_plan(plan: Plan) -> None:
    """Raise `InfeasibleError` unless dp-accounting finds every checked owner within its budget."""
    excess, owner, epsilon = reference_excess(plan)
    if not excess <= 1:
        name, budget = plan.table.names[owner], plan.table.epsilons[owner]
        raise InfeasibleError(
            f"owner {name!r}: the reference accountant finds epsilon={rounded_up(epsilon, 6)} for the planned terms, "
            f"above the budget {budget:g}; the plan is withdrawn; plan fewer steps or a smaller batch, or rely on our "
            "accountant alone with verify=False",
            owner=name,
        )


def reference_excess(plan: Plan) -> tuple[float, int, float]:
    """The largest share of a budget that dp-accounting finds spent, whose it is, and the epsilon found."""
    worst = (0.0, 0, 0.0)
    found = reference_epsilons(plan.table, plan.charges, plan.accountant, plan.spent)
    for owner, epsilon in found.items():
        worst = max(worst, (epsilon / float(plan.table.epsilons[owner]), owner, epsilon))
    return worst


def reference_epsilons(
    table: OwnerTable, phases: Sequence[Phase], accountant: str, spent: FloatArray | None = None
) -> dict[int, float]:
    """What dp-accounting finds spent in ``phases``, for one owner of each distinct exposure (`MOST_VERIFIED`).

    Every grid gives an upper bound, and a coarser one a larger bound. Of owners that have spent clearly less than their
    budgets, by our own ``spent``, the first look is on a coarser grid. What a look finds above the budget, for lack of
    fractional orders or of a fine grid, the privacy-loss accountant looks at again on a finer one.
    """
    found = {}
    for owner in _owners_to_check(table, phases).tolist():
        room = 0.0 if spent is None else 1 - float(spent[owner] / table.epsilons[owner])
        looks = [(accountant, COARSE)] if room > CLEAR_ROOM else []
        epsilon = math.inf
        for way, finer in (*looks, (accountant, 1.0), ("pld", 4.0)):
            epsilon = _reference(table, phases, owner, way, finer=finer)
            if epsilon <= table.epsilons[owner]:
                break
        found[owner] = epsilon
    return found


def reference_spent(plan: Plan, owner: int, accountant: str, *, finer: float = 1.0) -> float:
    """What ``owner`` spends by dp-accounting's ``accountant``."""
    return _reference(plan.table, plan.charges, owner, accountant, finer=finer)


def _reference(table: OwnerTable, phases: Sequence[Phase], owner: int, accountant: str, *, finer: float = 1.0) -> float:
    exposures = [
        (float(phase.terms.sampling_rates[owner]), float(phase.terms.noise_multipliers()[owner]), phase.steps)
        for phase in phases
        if phase.terms.sampling_rates[owner] > 0
    ]
    if _likely_to_differ(exposures) <= table.deltas[owner]:
        return 0.0
    if any(multiplier == 0 for _, multiplier, _ in exposures):
        return math.inf
    epsilon, delta = float(table.epsilons[owner]), float(table.deltas[owner])
    if accountant == "rdp":
        return reference_epsilon(exposures, delta, accountant, orders=_orders_near_best(exposures, delta))
    steps = sum(count for _, _, count in exposures)
    spacing = min(GRID * epsilon, 1e-2) / max(1.0, math.sqrt(steps / 1e4))
    spacing = max(spacing / finer, _largest_loss(exposures) / (MOST_POINTS * finer), 1e-7)
    return reference_epsilon(exposures, delta, accountant, discretization=spacing)


def _likely_to_differ(exposures: list[Exposure]) -> float:
    """The total-variation distance, which no delta needs to exceed; dp-accounting does not look at it."""
    agree = [
        steps * math.log1p(-min(rate * math.erf(1 / (z * math.sqrt(8)) if z > 0 else math.inf), 1 - 2.0**-53))
        for rate, z, steps in exposures
    ]
    return -math.expm1(math.fsum(agree))


def _largest_loss(exposures: list[Exposure]) -> float:
    """About the largest privacy loss of one step, seven standard deviations out: log(1 + q (e^x - 1))."""
    outermost = [min(1 / (2 * z * z) + 7 / z, 600.0) for _, z, _ in exposures]
    return max(math.log1p(rate * math.expm1(x)) for (rate, _, _), x in zip(exposures, outermost, strict=True))


def _orders_near_best(exposures: list[Exposure], delta: float) -> list[int]:
    """Whole orders around the one that our Rényi core finds best; any order alone certifies."""
    divergences = sum(steps * renyi_divergences(rate, multiplier) for rate, multiplier, steps in exposures)
    _, best = epsilon_from_renyi(divergences, RENYI_ORDERS, delta)
    centre = math.floor(float(best[0]))
    return [order for order in range(centre - 1, centre + 4) if order >= 2]


def _owners_to_check(table: OwnerTable, phases: Sequence[Phase]) -> IntArray:
    """For each distinct exposure and delta the strictest owner, thinned to a sample where there are many."""
    columns: list[FloatArray] = [table.deltas]
    for phase in phases:
        columns += [phase.terms.sampling_rates, phase.terms.clipping_thresholds]
    owners, _ = distinct_rows(*columns, then_by=table.epsilons)
    if len(owners) <= MOST_VERIFIED:
        return owners
    by_budget = owners[np.argsort(table.epsilons[owners], kind="stable")]
    chosen: IntArray = by_budget[np.linspace(0, len(by_budget) - 1, SAMPLED_BEYOND).astype(np.int64)]
    return chosen


def check_spent(plan: Plan) -> None:
    """Raise unless our accountant, asked afresh, finds no more spent than the plan says; for plans from a file."""
    spent = epsilons_spent(plan.charges, plan.table.deltas, plan.accountant)
    wrong = ~(spent <= np.minimum(plan.spent * (1 + 1e-6), plan.table.epsilons))
    if wrong.any():
        owner = int(np.argmax(wrong))
        raise InvalidArgumentError(
            f"plan: it says that owner {plan.table.names[owner]!r} spends {rounded_up(plan.spent[owner], 6)} of "
            f"{plan.table.epsilons[owner]:g}, and its phases cost {rounded_up(spent[owner], 6)}; it was edited: "
            "plan again"
        )
