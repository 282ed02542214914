"""Arrays: ``.npz`` files and folders of ``.npy`` files, read without executing anything that they contain."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd.data.npy import NUMBERS_AND_TEXTS, read_header
from inosgd.data.npz import names_in, read_npz
from inosgd.data.tables import Texts, closest
from inosgd.errors import InvalidArgumentError

Array = npt.NDArray[Any]


def read_arrays(path: Path, wanted: Mapping[str, str]) -> dict[str, Array]:
    """The ``wanted`` arrays of ``path``, which all have one entry per example.

    Args:
        path: A file written by ``numpy.savez`` or ``numpy.savez_compressed``, or a folder of files written by
            ``numpy.save``, one for each array, called after it.
        wanted: The name of each array, and what asks for it, for messages.
    """
    if path.is_dir():
        arrays = {name: _read_one(find_array(path, name, asker)) for name, asker in wanted.items()}
    else:
        arrays = _read_archive(path, wanted)
    for name, array in arrays.items():
        if array.ndim == 0:
            raise InvalidArgumentError(f"{path}: array {name!r} is a single value; give one entry per example")
    check_lengths(path, {name: len(array) for name, array in arrays.items()})
    return arrays


def check_lengths(path: Path, lengths: Mapping[str, int]) -> None:
    """Raise unless all arrays are equally long, and not empty."""
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidArgumentError(f"{path}: {shown} entries; give every array one entry per example")
    if 0 in lengths.values():
        raise InvalidArgumentError(f"{path}: the arrays are empty; give at least one example")


def find_array(folder: Path, name: str, asker: str) -> Path:
    """The file of the array called ``name``."""
    path = folder / f"{name}.npy"
    if path.is_file() and path.parent == folder:
        return path
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder}: there is no such folder; correct the path")
    present = sorted(each.stem for each in folder.glob("*.npy"))
    hint = closest(name, present) if present else "write arrays there with numpy.save"
    raise InvalidArgumentError(f"{folder}: there is no array {name!r} ({asker}); {hint}")


def array_numbers(path: Path, name: str, array: Array, first: int = 0) -> Array:
    """``array`` if it holds finite numbers; an error that names the first example that does not.

    A piece of an array begins with example ``first``.
    """
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise InvalidArgumentError(f"{path}: array {name!r} holds values of type {array.dtype}; give numbers")
    wrong = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    if wrong.any():
        row = first + int(np.argmax(wrong)) + 1
        raise InvalidArgumentError(
            f"{path}: array {name!r}, row {row}: it holds NaN or infinity; fill it in, or leave the example out"
        )
    return array


def array_texts(path: Path, name: str, array: Array, first: int = 0) -> Texts:
    """A flat array of names or whole numbers, as text; a piece of an array begins with example ``first``."""
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
        row = first + int(np.argmax(found == "")) + 1
        raise InvalidArgumentError(f"{path}: array {name!r}, row {row}: it is empty")
    return found


def _read_one(path: Path) -> Array:
    with path.open("rb") as file:
        read_header(path, "the array", file, path.stat().st_size, NUMBERS_AND_TEXTS)
    array: Array = np.load(path, allow_pickle=False)
    return array


def _read_archive(path: Path, wanted: Mapping[str, str]) -> dict[str, Array]:
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: there is no such file; correct the path")
    if not zipfile.is_zipfile(path):
        raise InvalidArgumentError(f"{path}: this is not an .npz file; write one with numpy.savez")
    present = names_in(path)
    missing = [name for name in wanted if name not in present]
    if missing:
        hint = closest(missing[0], present)
        raise InvalidArgumentError(f"{path}: there is no array {missing[0]!r} ({wanted[missing[0]]}); {hint}")
    return read_npz(path, *wanted, kinds=NUMBERS_AND_TEXTS)
