"""Keyword validators: the keyword is the argument's name, so the message names it.

Every test is written positively (``if not value > 0``), so NaN never passes. Arrays are checked entry by
entry and the first offending entry is the one reported.

>>> positive(epsilon=0.5)
>>> positive(epsilon=float("nan"))
Traceback (most recent call last):
...
inosgd.errors.InvalidArgumentError: epsilon=nan: give a number greater than 0
"""

from __future__ import annotations

from collections.abc import Collection, Sized

import numpy as np
import numpy.typing as npt

from inosgd.errors import InvalidArgumentError

Numbers = float | npt.NDArray[np.float64] | npt.NDArray[np.int64]


def fail(argument: str, value: object, fix: str) -> InvalidArgumentError:
    """The error for ``argument=value``, to be raised by the caller."""
    shown = value.item() if isinstance(value, np.generic) else value
    return InvalidArgumentError(f"{argument}={shown!r}: {fix}")


def _require(name: str, value: Numbers, holds: npt.ArrayLike, fix: str) -> None:
    held = np.asarray(holds)
    if held.all():
        return
    if held.ndim == 0:
        raise fail(name, value, fix)
    index = int(np.argmin(held))
    raise fail(f"{name}[{index}]", np.asarray(value)[index], fix)


def positive(**arguments: Numbers) -> None:
    """Every value is greater than 0; infinity passes."""
    for name, value in arguments.items():
        _require(name, value, np.asarray(value) > 0, "give a number greater than 0")


def finite_positive(**arguments: Numbers) -> None:
    """Every value is greater than 0 and finite."""
    for name, value in arguments.items():
        array = np.asarray(value)
        _require(name, value, (array > 0) & np.isfinite(array), "give a finite number greater than 0")


def non_negative(**arguments: Numbers) -> None:
    """Every value is at least 0 and finite."""
    for name, value in arguments.items():
        array = np.asarray(value)
        _require(name, value, (array >= 0) & np.isfinite(array), "give a finite number of at least 0")


def open_unit(**arguments: Numbers) -> None:
    """Every value lies strictly between 0 and 1."""
    for name, value in arguments.items():
        array = np.asarray(value)
        _require(name, value, (array > 0) & (array < 1), "give a number strictly between 0 and 1")


def closed_unit(**arguments: Numbers) -> None:
    """Every value lies between 0 and 1, both included."""
    for name, value in arguments.items():
        array = np.asarray(value)
        _require(name, value, (array >= 0) & (array <= 1), "give a number from 0 to 1")


def whole(minimum: int, **arguments: int) -> None:
    """Every value is an integer (not a boolean, not a float) of at least ``minimum``."""
    for name, value in arguments.items():
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not (is_integer and value >= minimum):
            raise fail(name, value, f"give a whole number of at least {minimum}")


def one_of(choices: Collection[str], **arguments: object) -> None:
    """Every value is one of ``choices``."""
    for name, value in arguments.items():
        if value not in choices:
            raise fail(name, value, f"choose one of {', '.join(choices)}")


def same_length(**arguments: Sized) -> None:
    """All arguments have the same length."""
    lengths = {name: len(value) for name, value in arguments.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"len({name})={length}" for name, length in lengths.items())
        raise InvalidArgumentError(f"{shown}: give one entry for each, so that the lengths are equal")


def other_format(what: str, found: object, known: int, fix: str) -> InvalidArgumentError:
    """The error for a plan, a ledger, a run or a model in the format of another version."""
    return fail(
        "format", found, f"another version of inosgd wrote this {what}, and this one reads format {known}; {fix}"
    )
