"""MNIST, and the idx format of its files.

An idx file opens with two zero bytes, a type (8 for bytes), the number of dimensions, and each dimension as a
big-endian 32-bit integer; the values follow. The publisher's files are gzip; unpacked ones are read as well.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd.data.files import open_bytes, read_at_most, refuse, refuse_bomb
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples

_UNSIGNED_BYTES = 8


def load_mnist(folder: Path) -> DataSet:
    """MNIST: 60,000 and 10,000 grey images of 28 x 28 pixels, as bytes of shape (1, 28, 28)."""
    return DataSet(
        name="mnist",
        train=_digits(folder, "train"),
        test=_digits(folder, "t10k"),
        classes=tuple(str(digit) for digit in range(10)),
    )


def read_idx(path: Path, item_shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The items of an idx file of bytes, each of shape ``item_shape``."""
    with open_bytes(path) as (stream, limit):
        header = 4 + 4 * (1 + len(item_shape))
        shape = _read_shape(path, read_at_most(stream, header), 1 + len(item_shape))
        if shape[1:] != item_shape:
            raise refuse(path, f"its items have shape {shape[1:]}; expected {item_shape}")
        size = math.prod(shape)
        if size > limit - min(limit, header):
            raise refuse(path, f"its header promises {size:,} bytes, more than the file can hold; fetch it again")
        refuse_bomb(path, "its header", size, path.stat().st_size)
        content = read_at_most(stream, size + 1)
    if len(content) != size:
        found = f"{len(content):,}" if len(content) < size else "more"
        raise refuse(path, f"its header promises {size:,} bytes and {found} follow; fetch the file again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    expected = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if header[:4] != expected:
        raise refuse(
            path,
            f"not an idx file of {dimensions}-dimensional bytes: it starts with {header[:4].hex()!r}, "
            f"expected {expected.hex()!r}",
        )
    if len(header) < 4 + 4 * dimensions:
        raise refuse(path, "it ends within its header; fetch the file again")
    return struct.unpack(f">{dimensions}I", header[4:])


def _digits(folder: Path, part: str) -> LabelledExamples:
    images = _packed_or_not(folder / "mnist" / f"{part}-images-idx3-ubyte.gz")
    labels = _packed_or_not(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz")
    inputs, targets = read_idx(images, (28, 28)), read_idx(labels, ())
    if len(inputs) != len(targets):
        raise refuse(labels, f"{len(targets):,} labels for {len(inputs):,} images; fetch both files again")
    if len(targets) and targets.max() > 9:
        raise refuse(labels, f"label {targets.max()}; digits go from 0 to 9")
    return LabelledExamples(inputs[:, None], targets.astype(np.int64))


def _packed_or_not(path: Path) -> Path:
    unpacked = path.with_suffix("")
    return unpacked if unpacked.exists() and not path.exists() else path
