"""Planning: from budgets to a plan."""

from inosgd.planning.planner import VARIANTS, Fairness, make_plan
from inosgd.planning.verification import reference_spent, verify_plan

__all__ = ["VARIANTS", "Fairness", "make_plan", "reference_spent", "verify_plan"]
