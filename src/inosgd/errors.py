"""Errors of inosgd: each carries the values a program would want to act on."""

from __future__ import annotations


class InosgdError(Exception):
    """Any error that inosgd raises on purpose."""


class InvalidArgumentError(InosgdError, ValueError):
    """An argument that cannot be used; the message names it, its value and what to give instead."""


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
            f"{spent:g}; plan fewer steps or more noise, or ask the owner for a larger budget"
        )
        self.owner, self.epsilon, self.spent, self.step = owner, epsilon, spent, step


class InfeasibleError(InosgdError):
    """Budgets, steps and batch size that no plan can reconcile.

    Attributes:
        owner: The owner that the request fails on, if it is a single one.
    """

    def __init__(self, message: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner
