"""Arrays from .npz files, never pickled objects, in memory that the file's size bounds.

NumPy makes room for whatever shape a header names. Here the header is first held against the size of the entry, and
that against the compressed bytes that are there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from inosgd.data.files import refuse, refuse_bomb
from inosgd.data.npy import NUMBERS, read_header
from inosgd.errors import InosgdError


def read_npz(path: Path, *names: str, kinds: str = NUMBERS) -> dict[str, npt.NDArray[Any]]:
    """The arrays called ``names``, each a plain array of numbers, or of other ``kinds``."""
    with _opened(path) as archive:
        return {name: _read_entry(path, archive, name, kinds) for name in names}


def names_in(path: Path) -> tuple[str, ...]:
    """The names of the arrays in ``path``."""
    with _opened(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist())


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever the libraries have to say about its bytes becomes one error about the file."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield archive
    except InosgdError:
        raise
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from None
    except Exception as error:  # zipfile and zlib raise almost anything on bytes that were made to confuse them
        raise refuse(path, f"truncated or corrupt .npz file ({error}); make or fetch it again") from None


def _read_entry(path: Path, archive: zipfile.ZipFile, name: str, kinds: str) -> npt.NDArray[Any]:
    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        present = ", ".join(archive.namelist()) or "nothing"
        raise refuse(path, f"no array {name!r} in it; it holds {present}") from None
    if entry.compress_size > path.stat().st_size:
        raise refuse(path, f"array {name!r} claims {entry.compress_size:,} bytes, more than the file can hold")
    refuse_bomb(path, f"array {name!r}", entry.file_size, entry.compress_size)
    with archive.open(entry) as stream:
        read_header(path, f"array {name!r}", stream, entry.file_size, kinds)
    with archive.open(entry) as stream:
        try:
            array: npt.NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        except ValueError as error:
            raise refuse(path, f"array {name!r} cannot be read ({error})") from None
        stream.read(1)  # at its end the stream holds the content against its checksum
    return array


def check_labels(path: Path, labels: npt.NDArray[Any], count: int, what: str) -> npt.NDArray[np.int64]:
    """Labels as int64: one whole number of at least 0 for each of ``count`` examples."""
    if labels.shape != (count,):
        raise refuse(path, f"labels of shape {labels.shape} for {count:,} {what}; there must be one for each")
    if labels.dtype.kind not in "ui" or (count and labels.min() < 0):
        raise refuse(path, "labels must be whole numbers of at least 0")
    return labels.astype(np.int64)
