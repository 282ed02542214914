"""Frozen values that hold arrays: read-only contents, equality by content."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


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


class ArrayValue:
    """Equality by content for frozen dataclasses with array fields; such values are not hashable."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
