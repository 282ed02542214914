"""Epsilons that people read are never better than they are."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.runs import progression
from inosgd.shown import rounded_down, rounded_up

EPSILONS = st.floats(1e-12, 1e12)
DIGITS = st.integers(1, 6)


def honest(show, epsilon: float, digits: int) -> bool:
    """Whether what is shown as spent is no less than what was spent."""
    return Fraction(show(epsilon, digits)) >= Fraction(repr(epsilon))


@given(EPSILONS, DIGITS)
def test_spent_is_never_shown_as_less(epsilon, digits):
    assert honest(rounded_up, epsilon, digits)
    assert float(rounded_up(epsilon, digits)) <= epsilon * (1 + 10.0 ** (1 - digits))  # and not as much more


@given(EPSILONS, DIGITS)
def test_left_is_never_shown_as_more(epsilon, digits):
    shown = Fraction(rounded_down(epsilon, digits))
    assert epsilon * (1 - 10.0 ** (1 - digits)) <= shown <= Fraction(repr(epsilon))


def test_the_usual_ways_of_writing_numbers_would_fail():
    """The control: rounding to the nearest, and rounding up with room for floating-point noise."""
    assert not honest(lambda epsilon, digits: f"{epsilon:.{digits}g}", 1.23412, 4)
    assert not honest(lambda epsilon, digits: f"{math.ceil(epsilon * 1e3 - 1e-9) / 1e3:g}", 1.0000000001e-3, 4)


@given(EPSILONS, st.floats(0.5, 2.0), DIGITS)
def test_the_number_is_on_the_same_side_of_the_budget_as_what_was_spent(epsilon, ratio, digits):
    budget = epsilon * ratio
    shown = rounded_up(epsilon, digits, within=budget)
    assert Fraction(shown) >= Fraction(repr(epsilon))
    assert (float(shown) <= budget) == (epsilon <= budget)


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (0.1, "0.1", "0.1"),
        (0.30000000000000004, "0.3001", "0.3"),
        (7.0, "7", "7"),
        (12345.6, "12350", "12340"),
        (1e-7, "1e-7", "1e-7"),
        (3.14159e9, "3.142e+9", "3.141e+9"),
        (0.99999, "1", "0.9999"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
        (math.nan, "nan", "nan"),
    ],
)
def test_what_is_written(epsilon, up, down):
    assert rounded_up(epsilon) == up
    assert rounded_down(epsilon) == down


def test_the_reason_for_a_rollback_shows_no_less_than_was_spent():
    past = SimpleNamespace(
        ledger=SimpleNamespace(steps=9, published=8),
        allows=lambda step: False,
        first_over=lambda step: ("a", 1.23412, 1.0),
    )
    assert "has spent 1.235;" in progression._reason(past, 4, SimpleNamespace(steps=12))
    assert "had spent 1.235 when" in progression._published_reason(past)
