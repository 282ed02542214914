"""Accounting: from what was released to what every owner has spent."""

from inosgd.accounting.reference import reference_epsilon
from inosgd.accounting.spending import Exposures, epsilons, epsilons_spent
from inosgd.plan_config import ACCOUNTANTS

__all__ = ["ACCOUNTANTS", "Exposures", "epsilons", "epsilons_spent", "reference_epsilon"]
