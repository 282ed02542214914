"""Shown: numbers as people read them. Epsilons have few digits, and are never better than they are.

What was spent is rounded up and what is left is rounded down. Values that programs read (JSON, ledgers, plans) are not
rounded.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import NamedTuple

from inosgd._decimals import decimals

EXACT = 17
"""So many digits tell any two floating-point numbers apart."""

LEAST_WRITTEN_OUT, LARGEST_WRITTEN_OUT = Decimal("1e-4"), Decimal("1e6")
"""Smaller and larger numbers are shown as 1e-5 or 1e+7."""


BUDGET, SPENT, LEFT, USED = "budget ε", "spent ε", "left ε", "used"
"""Heads of columns, the same in every table; each can be read alone."""


class Spending(NamedTuple):
    """What an owner allows and has spent, as ledgers, plans, cards, reports and `inosgd watch` all show it."""

    budget: str
    delta: str
    spent: str
    left: str
    used: str


def spending_shown(epsilon: float, delta: float, spent: float, remaining: float | None = None) -> Spending:
    """The texts of one owner's row, from the exact numbers.

    Guarantee: what is shown as spent is at least ``spent``, and within the budget if that is; what is shown as left is
    at most what is left; the share used is rounded up.

    Args:
        epsilon: The budget.
        delta: Of the budget.
        spent: The epsilon so far.
        remaining: What is left, where it is not the difference.

    >>> spending_shown(1.0, 1e-5, 0.99901)
    Spending(budget='1', delta='1e-05', spent='0.9991', left='0.00099', used='100 %')
    """
    left = max(epsilon - spent, 0.0) if remaining is None else remaining
    share = 0.0 if math.isinf(epsilon) else 100 * spent / epsilon
    used = f"{rounded_up(share, 3, within=100.0)} %"
    return Spending(f"{epsilon:g}", f"{delta:g}", rounded_up(spent, within=epsilon), rounded_down(left), used)


def learning_rate_shown(rate: float, unit: str) -> str:
    """A learning rate with its unit, unless that is the usual one.

    >>> learning_rate_shown(10.0, "batch"), learning_rate_shown(0.05, "noise")
    ('10', '0.05 in noise units')
    """
    return f"{rate:g}" + (" in noise units" if unit == "noise" else "")


def rounded_up(epsilon: float, digits: int = 4, *, within: float | None = None) -> str:
    """What was spent, or any other bound on a loss, with this many digits.

    Guarantee: the number that is shown is at least ``epsilon``. If ``epsilon`` keeps to the budget ``within``, so does
    the number, with as many more digits as that takes; if it does not, neither does the number.

    >>> rounded_up(0.99901, 3), rounded_up(1.23412, 3), rounded_up(1.23412, 3, within=1.2345)
    ('1', '1.24', '1.2342')
    """
    shown = _rounded(epsilon, digits, ROUND_CEILING)
    if within is None or not epsilon <= within:
        return shown
    finer = (_rounded(epsilon, more, ROUND_CEILING) for more in range(digits, EXACT + 1))
    return next((text for text in finer if float(text) <= within), shown)


def rounded_down(epsilon: float, digits: int = 4) -> str:
    """What is left of a budget, with this many digits.

    Guarantee: the number that is shown is at most ``epsilon``.

    >>> rounded_down(0.99999, 3), rounded_down(0.0)
    ('0.999', '0')
    """
    return _rounded(epsilon, digits, ROUND_FLOOR)


def _rounded(epsilon: float, digits: int, direction: str) -> str:
    """The decimal that Python writes for ``epsilon``, rounded exactly; infinity, NaN and 0 are themselves."""
    epsilon = float(epsilon)
    if not math.isfinite(epsilon) or epsilon == 0:
        return f"{epsilon:g}"
    with decimals(2 * EXACT):
        exact = Decimal(repr(epsilon))
        unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        rounded = exact.quantize(unit, rounding=direction).normalize()
        return f"{rounded:f}" if LEAST_WRITTEN_OUT <= abs(rounded) < LARGEST_WRITTEN_OUT else f"{rounded:e}"
