"""Accounting: from what was released to what every owner has spent."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd.accounting.reference import reference_epsilon
    from inosgd.accounting.spending import Exposures, epsilons, epsilons_spent
    from inosgd.plan_config import ACCOUNTANTS
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd.accounting.reference": ("reference_epsilon",),
            "inosgd.accounting.spending": ("Exposures", "epsilons", "epsilons_spent"),
            "inosgd.plan_config": ("ACCOUNTANTS",),
        },
    )

__all__ = [
    "ACCOUNTANTS",
    "Exposures",
    "epsilons",
    "epsilons_spent",
    "reference_epsilon",
]
