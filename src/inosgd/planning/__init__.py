"""Planning: from budgets to a plan."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd.plan_config import VARIANTS, Fairness, PlanConfig
    from inosgd.planning.planner import make_plan
    from inosgd.planning.rooms import Rooms
    from inosgd.planning.verification import reference_spent, verify_plan
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd.plan_config": ("VARIANTS", "Fairness", "PlanConfig"),
            "inosgd.planning.planner": ("make_plan",),
            "inosgd.planning.rooms": ("Rooms",),
            "inosgd.planning.verification": ("reference_spent", "verify_plan"),
        },
    )

__all__ = [
    "VARIANTS",
    "Fairness",
    "PlanConfig",
    "Rooms",
    "make_plan",
    "reference_spent",
    "verify_plan",
]
