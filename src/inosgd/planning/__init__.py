"""Planning: from budgets to a plan."""

from inosgd.plan_config import VARIANTS, Fairness, PlanConfig
from inosgd.planning.planner import make_plan
from inosgd.planning.signals import signal_ratio, signals, widest_angle
from inosgd.planning.verification import reference_spent, verify_plan

__all__ = [
    "VARIANTS",
    "Fairness",
    "PlanConfig",
    "make_plan",
    "reference_spent",
    "signal_ratio",
    "signals",
    "verify_plan",
    "widest_angle",
]
