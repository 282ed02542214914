"""inosgd: train PyTorch models under individual privacy budgets, with accuracy for the strict owners as well."""

from importlib.metadata import version as _version

from inosgd.distributed import Peers, connect
from inosgd.errors import (
    AlreadyPublishedError,
    BudgetExceededError,
    CheckpointError,
    InfeasibleError,
    InosgdError,
    InvalidArgumentError,
    LedgerError,
    PeerFailedError,
    PeerLostError,
    RunLockedError,
    TrainingStoppedError,
    UnknownOwnerError,
)
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, replace_batchnorm, supervised
from inosgd.importance import BetaTail, FunctionTail, Importance, StepTail, Tail
from inosgd.ledger.ledger import Ledger, verify_ledger
from inosgd.mechanism import ino_sgm
from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, METHODS, Method
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.plan_config import Fairness, PlanConfig
from inosgd.planning import make_plan
from inosgd.randomness import SecureSource, SeededSource
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.runs.verification import verify_run
from inosgd.training import Trainer, TrainingState, every, fit, train_step

__version__ = _version("inosgd")

__all__ = [
    "DP_SGD",
    "IDP_SGD",
    "INO_SGD",
    "INO_SGD_FAIR",
    "METHODS",
    "AlreadyPublishedError",
    "BetaTail",
    "BookkeepingEngine",
    "Budget",
    "BudgetExceededError",
    "Changes",
    "CheckpointError",
    "Fairness",
    "FunctionTail",
    "Importance",
    "InfeasibleError",
    "InosgdError",
    "InvalidArgumentError",
    "Ledger",
    "LedgerError",
    "LockedRun",
    "Method",
    "OwnerTable",
    "Owners",
    "PeerFailedError",
    "PeerLostError",
    "Peers",
    "Phase",
    "Plan",
    "PlanConfig",
    "ReferenceEngine",
    "RunFolder",
    "RunLockedError",
    "SecureSource",
    "SeededSource",
    "StepTail",
    "Tail",
    "Terms",
    "Trainer",
    "TrainingState",
    "TrainingStoppedError",
    "UnknownOwnerError",
    "begin",
    "carry_out",
    "connect",
    "every",
    "fit",
    "ino_sgm",
    "make_plan",
    "propose",
    "replace_batchnorm",
    "resume",
    "supervised",
    "train_durably",
    "train_step",
    "verify_ledger",
    "verify_run",
]
