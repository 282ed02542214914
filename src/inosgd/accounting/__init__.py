"""Accounting: from what was released to what every owner has spent."""

from inosgd.accounting.reference import reference_epsilon
from inosgd.accounting.spending import ACCOUNTANTS, Exposures, epsilons, epsilons_spent

__all__ = ["ACCOUNTANTS", "Exposures", "epsilons", "epsilons_spent", "reference_epsilon"]
