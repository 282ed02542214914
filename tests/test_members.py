"""The k-th example of a group: from a list, or from counts per block, always the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import members
from inosgd.errors import InvalidArgumentError
from inosgd.members import CountedMembers, ListedMembers, members_of

ROWS = st.lists(st.integers(0, 5), max_size=60)
GROUP_OF_ROW = np.array([1, 0, 2, 1, 4, 2])
TYPES = [np.uint8, np.uint16, np.int32, np.int64]


def by_hand(rows: list[int]) -> dict[tuple[int, int], int]:
    """The example of each group and position, by looking at one example after the other."""
    found: dict[tuple[int, int], int] = {}
    seen = dict.fromkeys(range(5), 0)
    for example, row in enumerate(rows):
        group = int(GROUP_OF_ROW[row])
        found[group, seen[group]] = example
        seen[group] += 1
    return found


@given(ROWS, st.sampled_from(TYPES), st.integers(1, 70), st.randoms())
def test_counts_find_the_members_that_a_list_holds(rows, kind, block, shuffled):
    array = np.array(rows, dtype=kind)
    wanted = list(by_hand(rows).items())
    shuffled.shuffle(wanted)
    groups = np.array([group for (group, _), _ in wanted], dtype=np.int64)
    positions = np.array([position for (_, position), _ in wanted], dtype=np.int64)
    listed = ListedMembers(GROUP_OF_ROW, array, 5)
    counted = CountedMembers(GROUP_OF_ROW, array, 5, block)
    for found in (listed, counted):
        assert found.at(groups, positions).tolist() == [example for _, example in wanted]
        assert found.counts.tolist() == np.bincount(GROUP_OF_ROW[rows] if rows else [], minlength=5).tolist()


def test_many_examples_are_counted_and_few_listed(monkeypatch):
    monkeypatch.setattr(members, "LISTED", 10)
    assert isinstance(members_of(GROUP_OF_ROW, np.zeros(10, dtype=np.uint8), 5), ListedMembers)
    assert isinstance(members_of(GROUP_OF_ROW, np.zeros(11, dtype=np.uint8), 5), CountedMembers)


@pytest.mark.parametrize("groups", [2, 1000, 4097])
def test_counts_take_at_most_a_byte_per_example(groups):
    rows = np.arange(300_000) % groups
    counted = CountedMembers(np.arange(groups), rows, groups)
    assert counted._ends.nbytes <= len(rows) + 8 * groups


def test_rows_that_change_after_the_counting_are_refused():
    rows = np.zeros(100, dtype=np.uint8)
    counted = CountedMembers(GROUP_OF_ROW, rows, 5, 10)
    rows[34] = 1
    assert counted.at(np.array([1]), np.array([5])).tolist() == [5]  # another block
    with pytest.raises(InvalidArgumentError, match="between examples 30 and 40"):
        counted.at(np.array([1]), np.array([33]))
