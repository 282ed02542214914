"""Runs: a training in a folder that survives its machine, and changes of budgets on the way."""

from inosgd.runs.folder import Resumed, RunFolder, begin, resume, train_durably, verify_run
from inosgd.runs.progression import Changes, carry_out, propose

__all__ = ["Changes", "Resumed", "RunFolder", "begin", "carry_out", "propose", "resume", "train_durably", "verify_run"]
