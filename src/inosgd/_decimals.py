"""Decimal arithmetic that does not depend on what a program has set for its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from decimal import ROUND_HALF_EVEN, Context, DivisionByZero, InvalidOperation, Overflow, localcontext


def decimals(digits: int) -> AbstractContextManager[Context]:
    """Inside, decimals are computed with so many digits and rounded to the nearest; afterwards as before.

    A program's own context may have fewer digits, other roundings, smaller exponents, or raise where a number is not
    exact. A local context alone would take over whatever of that is not set anew.
    """
    context = Context(
        prec=digits,
        rounding=ROUND_HALF_EVEN,
        Emin=-999_999,
        Emax=999_999,
        capitals=1,
        clamp=0,
        flags=[],
        traps=[DivisionByZero, InvalidOperation, Overflow],
    )
    return localcontext(context)
