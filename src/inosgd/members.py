"""Members: the k-th example of a group, for examples that are kept in no particular order.

Sampling draws a group and a number k below the group's size, and asks for the k-th of its examples. Up to `LISTED`
examples a list of all of them, sorted by group, answers with one look-up. Above, such a list would be the largest
thing in memory; there, examples are cut into blocks, for every group the numbers of its members up to the end of each
block are kept, and the one block that holds the wanted member is read again. Both give the same examples.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from inosgd._arrays import IntArray, RowArray, by_key, pieces
from inosgd.errors import InvalidArgumentError

LISTED = 1 << 22
"""Up to so many examples are listed; 32 megabytes."""

SMALLEST_BLOCK = 4096
EXAMPLES_PER_COUNT = 8
"""A block has at least so many examples for every group: its counts take at most a byte per example."""


class Members(Protocol):
    """The examples of every group, numbered from 0 by their index."""

    @property
    def counts(self) -> IntArray:
        """How many examples each group has."""

    def at(self, groups: IntArray, positions: IntArray) -> IntArray:
        """For each entry the example of number ``positions[j]`` in the group ``groups[j]``."""


def members_of(group_of_row: IntArray, rows: RowArray, groups: int) -> Members:
    """The members of ``groups`` groups.

    Args:
        group_of_row: The group of each row.
        rows: The row of each example, in any integer type; it may be memory-mapped.
        groups: How many groups there are.
    """
    if len(rows) <= LISTED:
        return ListedMembers(group_of_row, rows, groups)
    return CountedMembers(group_of_row, rows, groups)


class ListedMembers:
    """All examples sorted by group: eight bytes each."""

    def __init__(self, group_of_row: IntArray, rows: RowArray, groups: int) -> None:
        of_example = group_of_row[rows]
        self._examples = np.argsort(of_example, kind="stable")
        self.counts = np.bincount(of_example, minlength=groups)
        self._starts = np.cumsum(self.counts) - self.counts

    def at(self, groups: IntArray, positions: IntArray) -> IntArray:
        """One look-up each."""
        examples: IntArray = self._examples[self._starts[groups] + positions]
        return examples


class CountedMembers:
    """Counts per block: at most a byte for each example, and one block is sorted for each block that is asked about.

    Guarantee:
        The examples are those of `ListedMembers`, so a uniform position is a uniform member. If ``rows`` has changed
        since the counting, as a memory-mapped file may, blocks whose counts differ are refused: rates and bounds were
        decided for other examples.
    """

    def __init__(self, group_of_row: IntArray, rows: RowArray, groups: int, block: int | None = None) -> None:
        self._group_of_row, self._rows, self._groups = group_of_row, rows, groups
        self._block = block or max(SMALLEST_BLOCK, EXAMPLES_PER_COUNT * groups)
        ends = np.zeros((groups, -(-len(rows) // self._block)), dtype=np.int64)
        for start, piece in pieces(rows, self._block):
            if len(piece):
                ends[:, start // self._block] = np.bincount(group_of_row[piece], minlength=groups)
        self._ends = np.cumsum(ends, axis=1, out=ends)
        self.counts = ends[:, -1].copy() if ends.size else np.zeros(groups, dtype=np.int64)

    def at(self, groups: IntArray, positions: IntArray) -> IntArray:
        """Each block that holds a wanted member is read and sorted once."""
        examples = np.empty(len(positions), dtype=np.int64)
        for block, wanted in by_key(self._blocks(groups, positions)):
            examples[wanted] = self._in_block(block, groups[wanted], positions[wanted])
        return examples

    def _blocks(self, groups: IntArray, positions: IntArray) -> IntArray:
        """The block of each wanted member: the first at whose end its group has more members than its position."""
        blocks = np.empty(len(positions), dtype=np.int64)
        for group, wanted in by_key(groups):
            blocks[wanted] = np.searchsorted(self._ends[group], positions[wanted], side="right")
        return blocks

    def _in_block(self, block: int, groups: IntArray, positions: IntArray) -> IntArray:
        before = self._ends[:, block - 1] if block else np.zeros(self._groups, dtype=np.int64)
        first = block * self._block
        of_example = self._group_of_row[self._rows[first : first + self._block]]
        counts = np.bincount(of_example, minlength=self._groups)
        if not np.array_equal(counts, self._ends[:, block] - before):
            raise InvalidArgumentError(
                f"owners: between examples {first} and {first + self._block} they are not those that were counted "
                "first; keep the file of owners as it is while training, and plan again for the new ones"
            )
        starts = np.cumsum(counts) - counts
        members: IntArray = first + np.argsort(of_example, kind="stable")[(starts - before)[groups] + positions]
        return members
