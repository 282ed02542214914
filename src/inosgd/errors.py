"""Errors of inosgd: each carries the values a program would want to act on."""

from __future__ import annotations

from collections.abc import Sequence

from inosgd.shown import rounded_down, rounded_up


class InosgdError(Exception):
    """Any error that inosgd raises on purpose."""


class InvalidArgumentError(InosgdError, ValueError):
    """An argument that cannot be used; the message names it, its value and what to give instead."""


class CellsError(InvalidArgumentError):
    """Cells of one column of a table that cannot be used, all for the same reason.

    Attributes:
        column: The column.
        rows: Where in the file their rows stand, counted from 0.
        problem: What is said of each, after its value.
    """

    def __init__(self, message: str, *, column: str, rows: Sequence[int], problem: str) -> None:
        super().__init__(message)
        self.column, self.rows, self.problem = column, tuple(rows), problem


class MissingExtraError(InosgdError, ImportError):
    """A package that is needed here and is installed only with one of the extras.

    Attributes:
        extra: The extra.
        name: The package.
    """

    def __init__(self, extra: str, name: str) -> None:
        super().__init__(f"{name} is not installed: pip install 'inosgd[{extra}]'", name=name)
        self.extra = extra


class UnknownOwnerError(InosgdError, LookupError):
    """An owner that no budget was given for.

    Attributes:
        owner: The name that was not found.
    """

    def __init__(self, owner: str, message: str) -> None:
        super().__init__(message)
        self.owner = owner


class BudgetExceededError(InosgdError):
    """A step that would take an owner past its budget; the step was not released.

    Attributes:
        owner: The owner whose budget is the first to be passed.
        epsilon: What the owner allows, at its delta.
        spent: What the owner would have spent after the refused step.
        step: The refused step.
    """

    def __init__(self, owner: str, epsilon: float, spent: float, step: int) -> None:
        super().__init__(
            f"step {step} is refused: owner {owner!r} allows epsilon={epsilon:g} and would have spent "
            f"{rounded_up(spent, 6)}; plan fewer steps or more noise, or ask the owner for a larger budget"
        )
        self.owner, self.epsilon, self.spent, self.step = owner, epsilon, spent, step


class AccountError(InosgdError):
    """A book of accounts that cannot be believed, or a request that does not fit what it says."""


class AccountExceededError(InosgdError):
    """A charge that the accounts of some owner do not allow; nothing was reserved, charged or released.

    Attributes:
        owner: An owner whose account does not allow it.
        asked: The Rényi divergence that was asked for.
        left: The Rényi divergence that is left.
        order: The order of both.
    """

    def __init__(self, owner: str, asked: float, left: float, order: int) -> None:
        super().__init__(
            f"owner {owner!r}: asked for a Rényi divergence of {rounded_up(asked, 6)} at order {order}, and "
            f"{rounded_down(left, 6)} is left in its account; plan for what is left, settle reservations of runs that "
            "have ended, or ask the owner for a larger budget"
        )
        self.owner, self.asked, self.left, self.order = owner, asked, left, order


class BudgetsChangedError(InosgdError):
    """Owners have changed their budgets since a training reserved; the step was neither recorded nor released.

    Attributes:
        entry: The entry of the book with the last change.
    """

    def __init__(self, entry: int) -> None:
        super().__init__(
            f"budgets were changed in entry {entry} of the account book since this training reserved; go on with "
            "`inosgd resume`, which plans for what is left"
        )
        self.entry = entry


class InfeasibleError(InosgdError):
    """Budgets, steps and batch size that no plan can reconcile.

    Attributes:
        owner: The owner that the request fails on, if it is a single one.
    """

    def __init__(self, message: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class LedgerError(InosgdError):
    """A ledger that cannot be believed, or that could not be written.

    Attributes:
        record: The number of the record that it is about, counted from 1; None if it is about the whole file.
        fault: "edited", "lost", "reordered", "torn", "format", "invalid" or "unwritten".
    """

    def __init__(self, message: str, *, record: int | None, fault: str) -> None:
        super().__init__(message)
        self.record, self.fault = record, fault


class AlreadyPublishedError(InosgdError):
    """A rollback to a step before the published model: what is published cannot be taken back.

    Attributes:
        step: Where the rollback would have led.
        published: The number of steps of the published model.
    """

    def __init__(self, step: int, published: int) -> None:
        super().__init__(
            f"rolling back to step {step} is refused: the model was published after step {published}, and what "
            f"it has spent is never given back; roll back to step {published} at most"
        )
        self.step, self.published = step, published


class TrainingStoppedError(InosgdError):
    """A step of a run that was stopped because an owner's wish cannot be met otherwise."""


class CheckpointError(InosgdError):
    """A checkpoint that is damaged, or that does not fit what it is loaded into."""


class RunLockedError(InosgdError):
    """A run folder in which another process is at work.

    Attributes:
        holder: Who holds it, as far as is known.
    """

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PeerFailedError(InosgdError):
    """Another process of the same training has failed; nothing of the step was recorded or released.

    Attributes:
        rank: The process that failed.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class PeerLostError(InosgdError):
    """Another process of the same training is gone or does not answer; nothing more is released."""
