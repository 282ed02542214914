"""inosgd: train PyTorch models under individual privacy budgets, with accuracy for the strict owners as well."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd._version import __version__
    from inosgd.errors import InosgdError
    from inosgd.gradients import BookkeepingEngine, ReferenceEngine, replace_batchnorm, supervised
    from inosgd.importance import BetaTail, FunctionTail, Importance, StepTail
    from inosgd.ledger.ledger import Ledger
    from inosgd.ledger.verification import verify_ledger
    from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, Method
    from inosgd.owners import Budget, Owners, OwnerTable
    from inosgd.plan import Plan
    from inosgd.plan_config import Fairness, PlanConfig
    from inosgd.planning.planner import make_plan
    from inosgd.randomness import SecureSource, SeededSource
    from inosgd.runs.folder import RunFolder
    from inosgd.training import Trainer, TrainingState, fit, train_step
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd._version": ("__version__",),
            "inosgd.errors": ("InosgdError",),
            "inosgd.gradients": ("BookkeepingEngine", "ReferenceEngine", "replace_batchnorm", "supervised"),
            "inosgd.importance": ("BetaTail", "FunctionTail", "Importance", "StepTail"),
            "inosgd.ledger.ledger": ("Ledger",),
            "inosgd.ledger.verification": ("verify_ledger",),
            "inosgd.method": ("DP_SGD", "IDP_SGD", "INO_SGD", "INO_SGD_FAIR", "Method"),
            "inosgd.owners": ("Budget", "OwnerTable", "Owners"),
            "inosgd.plan": ("Plan",),
            "inosgd.plan_config": ("Fairness", "PlanConfig"),
            "inosgd.planning.planner": ("make_plan",),
            "inosgd.randomness": ("SecureSource", "SeededSource"),
            "inosgd.runs.folder": ("RunFolder",),
            "inosgd.training": ("Trainer", "TrainingState", "fit", "train_step"),
        },
    )

__all__ = [
    "DP_SGD",
    "IDP_SGD",
    "INO_SGD",
    "INO_SGD_FAIR",
    "BetaTail",
    "BookkeepingEngine",
    "Budget",
    "Fairness",
    "FunctionTail",
    "Importance",
    "InosgdError",
    "Ledger",
    "Method",
    "OwnerTable",
    "Owners",
    "Plan",
    "PlanConfig",
    "ReferenceEngine",
    "RunFolder",
    "SecureSource",
    "SeededSource",
    "StepTail",
    "Trainer",
    "TrainingState",
    "__version__",
    "fit",
    "make_plan",
    "replace_batchnorm",
    "supervised",
    "train_step",
    "verify_ledger",
]
