"""Scaling by a declared range looks at one number at a time; a fitted range does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.scaling import Range
from inosgd.errors import InvalidArgumentError

NUMBERS = st.floats(-1e9, 1e9)


@given(st.lists(NUMBERS, min_size=1, max_size=20), NUMBERS, st.floats(1e-6, 1e9))
def test_scaled_numbers_lie_within_one_and_do_not_depend_on_each_other(values, low, width):
    declared = Range(low, low + width + abs(low) * 1e-6)
    array = np.array(values)
    scaled = declared.scaled(array)
    assert scaled.dtype == np.float32
    assert (np.abs(scaled) <= 1).all()
    alone = [float(declared.scaled(array[row : row + 1])[0]) for row in range(len(array))]
    assert scaled.tolist() == alone


def test_a_fitted_range_moves_with_one_example():
    """The negative control: what is unaccounted about fitting."""
    values = np.array([1.0, 2.0, 3.0])
    with_one_more = np.append(values, 100.0)
    assert Range.fitted(values).scaled(values)[0] == Range.fitted(with_one_more).scaled(with_one_more)[0] == -1
    assert Range.fitted(values).scaled(values)[1] != Range.fitted(with_one_more).scaled(with_one_more)[1]


@pytest.mark.parametrize("value", [0.0, -7.5, 1e300, -1e18])
def test_a_constant_column_is_fitted_to_zero(value):
    assert Range.fitted(np.full(3, value)).scaled(np.full(3, value)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)


@pytest.mark.parametrize(
    "ends", [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (-1.7e308, 1.7e308), (0, float("nan"))]
)
def test_what_is_no_range(ends):
    with pytest.raises(InvalidArgumentError, match="range="):
        Range(*ends)


def test_outside_finds_nan_too():
    assert Range(0, 1).outside(np.array([0.0, 1.0, -0.1, 1.1, np.nan])).tolist() == [False, False, True, True, True]
