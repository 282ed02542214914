"""Arrays from .npz files, never pickled objects, in memory that the file's size bounds.

NumPy makes room for whatever shape a header names. Here the header is first held against the size of the entry, and
that against the compressed bytes that are there.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from inosgd.datasets.files import MAX_EXPANSION, refuse

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_SLACK = 1 << 10


def read_npz(path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays called ``names``, each a plain array of numbers."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _read_entry(path, archive, name) for name in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise refuse(path, f"truncated or corrupt .npz file ({error}); make or fetch it again") from None
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from None


def names_in(path: Path) -> tuple[str, ...]:
    """The names of the arrays in ``path``."""
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise refuse(path, f"truncated or corrupt .npz file ({error}); make or fetch it again") from None
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from None


def _read_entry(path: Path, archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        present = ", ".join(archive.namelist()) or "nothing"
        raise refuse(path, f"no array {name!r} in it; it holds {present}") from None
    if entry.file_size > entry.compress_size * MAX_EXPANSION + _SLACK or entry.compress_size > path.stat().st_size:
        raise refuse(path, f"array {name!r} claims {entry.file_size:,} bytes, more than the file can hold")
    with archive.open(entry) as stream:
        _check_header(path, name, stream, entry.file_size)
    with archive.open(entry) as stream:
        try:
            array: npt.NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        except ValueError as error:
            raise refuse(path, f"array {name!r} cannot be read ({error})") from None
        stream.read(1)  # at its end the stream holds the content against its checksum
    return array


def _check_header(path: Path, name: str, stream: IO[bytes], size: int) -> None:
    try:
        shape, _, dtype = _HEADERS[npy.read_magic(stream)](stream)
    except (ValueError, KeyError) as error:
        raise refuse(path, f"array {name!r} has no header that can be read ({error})") from None
    if dtype.hasobject or dtype.kind not in "buif":
        raise refuse(path, f"array {name!r} holds {dtype}, not numbers")
    promised = stream.tell() + math.prod(shape) * dtype.itemsize
    if promised != size:
        raise refuse(path, f"array {name!r}: its header of shape {shape} needs {promised:,} bytes, it has {size:,}")


def check_labels(path: Path, labels: npt.NDArray[Any], count: int, what: str) -> npt.NDArray[np.int64]:
    """Labels as int64: one whole number of at least 0 for each of ``count`` examples."""
    if labels.shape != (count,):
        raise refuse(path, f"labels of shape {labels.shape} for {count:,} {what}; there must be one for each")
    if labels.dtype.kind not in "ui" or (count and labels.min() < 0):
        raise refuse(path, "labels must be whole numbers of at least 0")
    return labels.astype(np.int64)
