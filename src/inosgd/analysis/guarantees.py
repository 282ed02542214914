"""Guarantees: what a plan means for several examples of one owner, and for the rest of each privacy profile."""

from __future__ import annotations

from collections.abc import Sequence

from inosgd.accounting.group import composed_group_epsilon
from inosgd.accounting.privacy_loss import SampledGaussian, compose
from inosgd.accounting.profile import RiskProfile, risk_profile
from inosgd.plan import Plan

GROUP_SIZES = (1, 2, 5, 10)


def group_guarantees(
    plan: Plan, owner: int, sizes: tuple[int, ...] = GROUP_SIZES, *, whole: bool = True
) -> dict[str, float]:
    """The epsilon of groups of the owner's examples at its delta, by their size; "all" for the ``whole`` of them.

    The guarantee of a plan is per example. This is what it amounts to for several, so that it is not taken for a
    guarantee of the owner as a whole. Sizes that the owner does not have are left out.
    """
    delta, examples = float(plan.table.deltas[owner]), int(plan.table.sizes[owner])
    return epsilons_by_size(owner_exposures(plan, owner), delta, examples, sizes, whole=whole)


def epsilons_by_size(
    exposures: Sequence[SampledGaussian],
    delta: float,
    examples: int,
    sizes: tuple[int, ...] = GROUP_SIZES,
    *,
    whole: bool = True,
) -> dict[str, float]:
    """The same from what happens to each of ``examples`` examples."""
    groups = {str(size): size for size in sizes if size <= examples}
    if whole and examples > 0:
        groups["all"] = examples
    return {name: composed_group_epsilon(exposures, delta, size) for name, size in groups.items()}


def owner_risks(plan: Plan, owner: int) -> RiskProfile:
    """The owner's privacy profile beyond its one (epsilon, delta)."""
    return risk_profile(compose(owner_exposures(plan, owner)), float(plan.table.deltas[owner]))


def owner_exposures(plan: Plan, owner: int) -> list[SampledGaussian]:
    """What the plan does to each example of the owner, phase by phase."""
    return [
        SampledGaussian(
            float(phase.terms.sampling_rates[owner]), float(phase.terms.noise_multipliers()[owner]), phase.steps
        )
        for phase in plan.charges
    ]
