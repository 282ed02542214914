"""Runs: a training in a folder that survives its machine, and changes of budgets on the way."""

from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import Resumed, begin, resume, train_durably
from inosgd.runs.verification import verify_run

__all__ = [
    "Changes",
    "LockedRun",
    "Resumed",
    "RunFolder",
    "begin",
    "carry_out",
    "propose",
    "resume",
    "train_durably",
    "verify_run",
]
