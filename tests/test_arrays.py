"""Distinct rows, the work-horse of planning for many owners; keys and pieces, that of sampling for many examples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inosgd._arrays import by_key, distinct_rows, pieces


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 9)), min_size=1, max_size=40))
def test_distinct_rows_are_those_of_numpy(rows):
    one, two, three = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    first, inverse = distinct_rows(one, two, then_by=three)
    expected, expected_inverse = np.unique(np.column_stack([one, two]), axis=0, return_inverse=True)
    np.testing.assert_array_equal(np.column_stack([one, two])[first], expected)
    np.testing.assert_array_equal(inverse, expected_inverse.reshape(-1))
    for place, row in enumerate(first):
        assert three[row] == three[inverse == place].min()


def test_no_rows():
    first, inverse = distinct_rows(np.zeros(0), np.zeros(0))
    assert len(first) == len(inverse) == 0


@given(st.lists(st.integers(-3, 3), max_size=30))
def test_keys_with_their_positions(keys):
    found = list(by_key(np.array(keys, dtype=np.int64)))
    assert [key for key, _ in found] == sorted(set(keys))
    for key, positions in found:
        assert positions.tolist() == [place for place, each in enumerate(keys) if each == key]


@given(st.lists(st.integers(), max_size=30), st.integers(1, 40))
def test_pieces_are_the_whole(values, length):
    found = list(pieces(np.array(values, dtype=object), length))
    assert [value for _, piece in found for value in piece] == values
    assert all(len(piece) <= length and start == length * place for place, (start, piece) in enumerate(found))
