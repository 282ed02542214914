"""Plans described: every number a person or a program wants to know about one, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inosgd._arrays import distinct_rows
from inosgd.accounting.profile import gaussian_profile
from inosgd.analysis.guarantees import GROUP_SIZES, group_guarantees, owner_risks
from inosgd.errors import InfeasibleError
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import VARIANTS, PlanConfig, make_plan
from inosgd.planning.signals import signal_ratio, signal_ratio_per_example, signals, widest_angle
from inosgd.shown import rounded_up

MOST_OWNERS = 12
"""With more owners than this, a table for people shows the strictest, the median and the most liberal one."""

MOST_EXPOSURES = 200
"""With more distinct exposures than this, guarantees of groups are computed for the typical owners only."""

NEARLY_ALL = 0.02
"""A budget of which less than this share is left is used."""

CURVE_NOISE_SCALES = (1.0, 2.0, 3.0, 4.0)
CURVE_RATES = (0.01, 0.02, 0.05, 0.1)


def describe_plan(plan: Plan, profile: bool, everyone: bool) -> dict[str, Any]:
    """Terms, signals, spending and guarantees of every owner.

    Unless ``everyone`` is asked for: of a few typical ones where there are many, and of groups of ten only. Where
    owners differ in more than `MOST_EXPOSURES` ways, those few alone have guarantees of groups and profiles: each takes
    as long as planning for a class of budgets. The others have none of these keys, and ``groups_of`` says so.
    """
    terms, typical = plan.at(0), _typical_owners(plan)
    owners = range(len(plan.table)) if everyone else typical
    of_all = not everyone or _exposures(plan) <= MOST_EXPOSURES
    rows = _terms_of(plan, owners)
    for row, owner in zip(rows, owners, strict=True):
        if of_all or owner in typical:
            row |= _owner_guarantees(plan, owner, profile, everyone)
    return {
        "variant": plan.variant,
        "accountant": plan.accountant,
        "steps": plan.steps,
        "noise_scale": terms.noise_scale,
        "expected_batch_size": terms.expected_batch_size,
        "rate_of_noise_unit": terms.expected_batch_size / terms.noise_scale,
        "signal_ratio": signal_ratio(plan),
        "signal_ratio_per_example": signal_ratio_per_example(plan),
        "widest_angle": widest_angle(plan),
        "owner_count": len(plan.table),
        "unit": plan.table.unit,
        "gains": gains_by_more(plan),
        "groups_of": "all owners shown" if of_all else "the strictest, the median and the most liberal owner",
        "owners": rows,
    }


def gains_by_more(plan: Plan) -> str:
    """What owners would gain by allowing more, in a sentence; from the plan alone.

    An owner whose budget is not used up is held back by a cap, not by its budget: more of it would change nothing.
    """
    table = plan.table
    rows = np.flatnonzero(table.sizes > 0)
    is_held_back = plan.spent[rows] < (1 - NEARLY_ALL) * table.epsilons[rows]
    held_back = rows[is_held_back]
    binding = [table.names[row] for row in rows[~is_held_back]]
    if not len(held_back):
        return "Every owner's budget is used: an owner that allows more has a larger signal."
    first = int(held_back[0])
    others = f" and {len(held_back) - 1} more" if len(held_back) > 1 else ""
    named = " and ".join(binding) if len(binding) < 3 else f"{binding[0]}, {binding[1]} and others"
    used = f" What {named} allow{'s' * (len(binding) == 1)} is used, and more of it would be used too." * bool(binding)
    return (
        f"{table.names[first]}{others} would gain nothing by allowing more: of ε {table.epsilons[first]:g} the plan "
        f"uses {rounded_up(float(plan.spent[first]))}.{used}"
    )


def compare_variants(planned: Callable[[str], Plan]) -> dict[str, Any]:
    """Noise, signals and unused budgets by every variant, for the same request."""
    rows: dict[str, Any] = {}
    for variant in VARIANTS:
        try:
            plan = planned(variant)
        except InfeasibleError as error:
            rows[variant] = {"infeasible": str(error)}
            continue
        by_privacy = np.argsort(plan.table.privacy_ranks, kind="stable")
        present = [int(owner) for owner in by_privacy if plan.table.sizes[owner] > 0]
        strength = signals(plan)
        rows[variant] = {
            "noise_scale": plan.at(0).noise_scale,
            "strictest_signal": float(strength[present[0]]),
            "most_liberal_signal": float(strength[present[-1]]),
            "signal_ratio": signal_ratio(plan),
            "widest_angle": widest_angle(plan),
            "least_spent_share": float((plan.spent / plan.table.epsilons)[present].min()),
        }
    return {"variants": rows}


def budget_curves(table: OwnerTable, steps: int, accountant: str) -> dict[str, Any]:
    """Rates at threshold 1 for several noise scales, and thresholds at noise scale 4 for several rates (Fig. C.1)."""
    alone = OwnerTable(table.names, table.epsilons, table.deltas, np.full(len(table), 10**6), table.unit)
    common: dict[str, Any] = {"steps": steps, "accountant": accountant, "allow_large_deltas": True}
    rates, thresholds = {}, {}
    for noise in CURVE_NOISE_SCALES:
        plan = make_plan(alone, PlanConfig(variant="sample", clipping_threshold=1.0, noise_scale=noise, **common))
        rates[f"{noise:g}"] = plan.at(0).sampling_rates.tolist()
    for rate in CURVE_RATES:
        batch = rate * int(alone.sizes.sum())
        plan = make_plan(alone, PlanConfig(variant="scale", expected_batch_size=batch, noise_scale=4.0, **common))
        thresholds[f"{rate:g}"] = plan.at(0).clipping_thresholds.tolist()
    return {
        "steps": steps,
        "accountant": accountant,
        "epsilons": table.epsilons.tolist(),
        "rate_by_noise_scale": rates,
        "threshold_by_rate": thresholds,
    }


def _terms_of(plan: Plan, owners: Sequence[int]) -> list[dict[str, Any]]:
    """What the plan asks of each of ``owners``, and what is left of its budget."""
    table, terms, rows = plan.table, plan.at(0), np.array(owners, dtype=np.int64)
    columns = {
        "epsilon": table.epsilons,
        "delta": table.deltas,
        "size": table.sizes,
        "sampling_rate": terms.sampling_rates,
        "clipping_threshold": terms.clipping_thresholds,
        "expected_records": terms.sampling_rates * table.sizes,
        "signal": signals(plan),
        "spent": plan.spent,
        "unspent": table.epsilons - plan.spent,
    }
    values = zip(*(column[rows].tolist() for column in columns.values()), strict=True)
    return [
        {"name": table.names[owner], **dict(zip(columns, each, strict=True))}
        for owner, each in zip(owners, values, strict=True)
    ]


def _exposures(plan: Plan) -> int:
    """In how many ways owners differ in what happens to an example, in delta or in size."""
    columns = [
        column for phase in plan.charges for column in (phase.terms.sampling_rates, phase.terms.clipping_thresholds)
    ]
    return len(distinct_rows(plan.table.deltas, plan.table.sizes.astype(np.float64), *columns)[0])


def _owner_guarantees(plan: Plan, owner: int, profile: bool, all_groups: bool) -> dict[str, Any]:
    sizes = GROUP_SIZES if all_groups else (10,)
    found: dict[str, Any] = {"group": group_guarantees(plan, owner, sizes, whole=all_groups)}
    if profile:
        budget = plan.table.budget(owner)
        found["profile"] = dataclasses.asdict(owner_risks(plan, owner))
        found["gaussian_profile"] = dataclasses.asdict(gaussian_profile(budget.epsilon, budget.delta))
    return found


def _typical_owners(plan: Plan) -> list[int]:
    if len(plan.table) <= MOST_OWNERS:
        return list(range(len(plan.table)))
    by_privacy = np.argsort(plan.table.privacy_ranks, kind="stable")
    return [int(by_privacy[0]), int(by_privacy[len(by_privacy) // 2]), int(by_privacy[-1])]
