"""Arrays: ``.npz`` files as NumPy writes them, read without executing anything that they contain."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd.datasets.npy import NUMBERS_AND_TEXTS
from inosgd.datasets.npz import names_in, read_npz
from inosgd.datasets.tables import Texts, closest
from inosgd.errors import InvalidArgumentError

Array = npt.NDArray[Any]


def read_arrays(path: Path, wanted: Mapping[str, str]) -> dict[str, Array]:
    """The ``wanted`` arrays of ``path``, which all have one entry per example.

    Args:
        path: A file written by ``numpy.savez`` or ``numpy.savez_compressed``.
        wanted: The name of each array, and what asks for it, for messages.
    """
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: there is no such file; correct the path")
    if not zipfile.is_zipfile(path):
        raise InvalidArgumentError(f"{path}: this is not an .npz file; write one with numpy.savez")
    arrays = _read(path, wanted)
    for name, array in arrays.items():
        if array.ndim == 0:
            raise InvalidArgumentError(f"{path}: array {name!r} is a single value; give one entry per example")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidArgumentError(f"{path}: {shown} entries; give every array one entry per example")
    if 0 in lengths.values():
        raise InvalidArgumentError(f"{path}: the arrays are empty; give at least one example")
    return arrays


def array_numbers(path: Path, name: str, array: Array) -> Array:
    """``array`` if it holds finite numbers; an error that names the first example that does not."""
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise InvalidArgumentError(f"{path}: array {name!r} holds values of type {array.dtype}; give numbers")
    wrong = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    if wrong.any():
        raise InvalidArgumentError(
            f"{path}: array {name!r}, row {int(np.argmax(wrong)) + 1}: it holds NaN or infinity; fill it in, or leave "
            "the example out"
        )
    return array


def array_texts(path: Path, name: str, array: Array) -> Texts:
    """A flat array of names or whole numbers, as text."""
    if array.ndim != 1:
        raise InvalidArgumentError(f"{path}: array {name!r} has shape {array.shape}; give one entry per example")
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind in "US"):
        raise InvalidArgumentError(
            f"{path}: array {name!r} holds values of type {array.dtype}; store names and classes as text or whole "
            "numbers"
        )
    texts = [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in array.tolist()]
    found = np.empty(len(texts), dtype=object)
    found[:] = [text.strip() for text in texts]
    if (found == "").any():
        raise InvalidArgumentError(f"{path}: array {name!r}, row {int(np.argmax(found == '')) + 1}: it is empty")
    return found


def _read(path: Path, wanted: Mapping[str, str]) -> dict[str, Array]:
    present = names_in(path)
    missing = [name for name in wanted if name not in present]
    if missing:
        hint = closest(missing[0], present)
        raise InvalidArgumentError(f"{path}: there is no array {missing[0]!r} ({wanted[missing[0]]}); {hint}")
    return read_npz(path, *wanted, kinds=NUMBERS_AND_TEXTS)
