"""Frozen values that hold arrays: read-only contents, equality by content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
RowArray = npt.NDArray[Any]
"""Whole numbers of any width, one per example, perhaps memory-mapped: which row of a table is the example's."""

PIECE = 1 << 20


def frozen_floats(values: npt.ArrayLike) -> FloatArray:
    """A read-only float64 copy of ``values``."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def frozen_integers(values: npt.ArrayLike) -> IntArray:
    """A read-only int64 copy of ``values``."""
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def pieces(array: RowArray, length: int = PIECE) -> Iterator[tuple[int, RowArray]]:
    """``array`` cut into pieces, each with where it starts; one empty piece if there is nothing.

    What is computed piece by piece needs temporary memory for one piece only, whatever the number of examples.
    """
    for start in range(0, max(len(array), 1), length):
        yield start, array[start : start + length]


def by_key(keys: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each key that occurs, in ascending order, with the positions where it does."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order])) + 1
    for positions in np.split(order, starts) if len(order) else []:
        yield int(keys[positions[0]]), positions


class ArrayValue:
    """Equality by content for frozen dataclasses with array fields; such values are not hashable."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def distinct_rows(*columns: npt.NDArray[Any], then_by: FloatArray | None = None) -> tuple[IntArray, IntArray]:
    """Where each distinct row of a table with these columns first stands, and which of them every row equals.

    Rows are distinct if they differ in a column; they come sorted by the columns, the first one foremost. Of equal
    rows the one with the smallest ``then_by`` stands for all, or the earliest. Sorting by columns is many times
    faster than ``numpy.unique`` on rows.
    """
    keys = [*columns] if then_by is None else [*columns, then_by]
    order = np.lexsort(keys[::-1])
    changed = np.zeros(len(order), dtype=np.bool_)
    changed[:1] = True
    for column in columns:
        ordered = column[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.cumsum(changed) - 1
    return order[changed], inverse


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
