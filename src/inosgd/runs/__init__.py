"""Runs: a training in a folder that survives its machine, and changes of budgets on the way."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd.runs.folder import LockedRun, RunFolder
    from inosgd.runs.progression import Changes, carry_out, propose
    from inosgd.runs.resuming import Resumed, begin, resume, train_durably
    from inosgd.runs.verification import verify_run
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd.runs.folder": ("LockedRun", "RunFolder"),
            "inosgd.runs.progression": ("Changes", "carry_out", "propose"),
            "inosgd.runs.resuming": ("Resumed", "begin", "resume", "train_durably"),
            "inosgd.runs.verification": ("verify_run",),
        },
    )

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
