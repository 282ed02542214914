"""Minority initial drop (MID): where it starts and where it ends along a training.

The paper's words (Sec. 2.2): "an initial drop or fluctuation in model utility" on one group "while utility on" another
"improves as normal". Its theorem looks at it from the other side: while the left side of Thm. 3.1 is not positive the
loss *may* rise. Both are here: `unmet_periods` finds when it may happen, `initial_drop` when it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd.analysis.condition import ConditionPoint


@dataclass(frozen=True)
class Period:
    """From the step ``start`` up to, but without, the step ``end``; None if it lasts to the end of the curve."""

    start: int
    end: int | None


@dataclass(frozen=True)
class InitialDrop:
    """The first time an owner gets worse while another one gets better.

    Attributes:
        start: The last step before things get worse.
        turn: The step at which the owner is worst off.
        end: The first step at which the owner is as well off again as at the start; None if training ends before.
    """

    start: int
    turn: int
    end: int | None


def unmet_periods(points: Sequence[ConditionPoint], owner: str, other: str, right_side: float = 0.0) -> list[Period]:
    """When the condition for the loss of ``owner`` against ``other`` did not hold: its left side was <= ``right_side``.

    Bounds are steps of ``points``, so they are as exact as the points are dense. An undefined angle (a gradient of
    zero) counts as not holding.
    """
    conditions = [point.pair(owner, other) for point in points]
    held = [condition.left_side > right_side for condition in conditions]
    return _runs([condition.step for condition in conditions], [not each for each in held])


def initial_drop(
    steps: Sequence[int], losses: npt.ArrayLike, other_losses: npt.ArrayLike, *, tolerance: float = 0.0
) -> InitialDrop | None:
    """Where an owner's loss first rises while another owner's falls; None if it never does.

    The rise must exceed the lowest loss before it by more than ``tolerance``, which should be above the noise of the
    curve. For curves of a score give ``1 - score``.
    """
    own, other = np.asarray(losses, dtype=np.float64), np.asarray(other_losses, dtype=np.float64)
    _validate.same_length(steps=steps, losses=own, other_losses=other)
    _validate.non_negative(tolerance=tolerance)
    for index in range(1, len(own)):
        start = int(np.argmin(own[:index]))
        if own[index] > own[start] + tolerance and other[index] < other[start]:
            return _drop_from(steps, own, start, index)
    return None


def _drop_from(steps: Sequence[int], losses: npt.NDArray[np.float64], start: int, risen: int) -> InitialDrop:
    back = np.flatnonzero(losses[risen:] <= losses[start])
    end = risen + int(back[0]) if len(back) else None
    turn = start + int(np.argmax(losses[start:end]))
    return InitialDrop(int(steps[start]), int(steps[turn]), None if end is None else int(steps[end]))


def _runs(steps: Sequence[int], inside: Sequence[bool]) -> list[Period]:
    periods: list[Period] = []
    start: int | None = None
    for step, now in zip(steps, inside, strict=True):
        if now and start is None:
            start = step
        if not now and start is not None:
            periods.append(Period(start, step))
            start = None
    return periods if start is None else [*periods, Period(start, None)]
