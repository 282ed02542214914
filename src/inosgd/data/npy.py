"""The headers of arrays in NumPy's format, held against the bytes that are there before anything is made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from inosgd.data.files import refuse

NUMBERS, NUMBERS_AND_TEXTS = "buif", "buifUS"
"""Kinds of arrays, in NumPy's letters."""

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Header:
    """What an array is, and how many bytes into the file it begins."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    start: int


def read_header(path: Path, what: str, stream: IO[bytes], size: int, kinds: str) -> Header:
    """The header at the beginning of ``stream``, which has ``size`` bytes in all; never one of pickled objects.

    Args:
        path: The file, for messages.
        what: What the array is called in messages.
        stream: Where it begins.
        size: How many bytes header and array have.
        kinds: Which types are allowed.
    """
    try:
        shape, by_columns, dtype = _READERS[npy.read_magic(stream)](stream)
    except Exception as error:  # NumPy parses headers as Python and raises almost anything on bytes made to confuse it
        raise refuse(path, f"{what} has no header that can be read ({error})") from None
    if dtype.hasobject or dtype.kind not in kinds:
        wanted = "numbers" if kinds == NUMBERS else "numbers or texts; write it again without Python objects"
        raise refuse(path, f"{what} holds {dtype}, not {wanted}")
    if any(length < 0 for length in shape):
        raise refuse(path, f"{what} claims the shape {shape}")
    start = stream.tell()
    promised = start + math.prod(shape) * dtype.itemsize
    if promised != size:
        raise refuse(path, f"{what}: its header of shape {shape} needs {promised:,} bytes, it has {size:,}")
    return Header(shape, dtype, by_columns, start)
