"""inosgd: train PyTorch models under individual privacy budgets, and serve the strict owners too."""

from importlib.metadata import version as _version

from inosgd.errors import BudgetExceededError, InfeasibleError, InosgdError, InvalidArgumentError, UnknownOwnerError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, replace_batchnorm, supervised
from inosgd.importance import BetaTail, FunctionTail, Importance, StepTail, Tail
from inosgd.ledger import Ledger
from inosgd.mechanism import ino_sgm
from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, METHODS, Method
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.planning import Fairness, make_plan
from inosgd.randomness import SecureSource, SeededSource
from inosgd.training import Trainer, TrainingState, every, fit, train_step

__version__ = _version("inosgd")

__all__ = [
    "DP_SGD",
    "IDP_SGD",
    "INO_SGD",
    "INO_SGD_FAIR",
    "METHODS",
    "BetaTail",
    "BookkeepingEngine",
    "Budget",
    "BudgetExceededError",
    "Fairness",
    "FunctionTail",
    "Importance",
    "InfeasibleError",
    "InosgdError",
    "InvalidArgumentError",
    "Ledger",
    "Method",
    "OwnerTable",
    "Owners",
    "Phase",
    "Plan",
    "ReferenceEngine",
    "SecureSource",
    "SeededSource",
    "StepTail",
    "Tail",
    "Terms",
    "Trainer",
    "TrainingState",
    "UnknownOwnerError",
    "every",
    "fit",
    "ino_sgm",
    "make_plan",
    "replace_batchnorm",
    "supervised",
    "train_step",
]
