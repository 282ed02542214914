"""Arrays that stay on disk: a batch reads its own rows and nothing else.

    examples = MappedExamples.open((folder / "inputs.npy", folder / "targets.npy"))
    trainer = Trainer(plan, owners, examples, losses, INO_SGD)

Which parts of a file are read tells which examples were drawn. That is as sensitive as the examples: keep the files
where no other party can watch them being read, on a disk of one's own rather than on shared network storage.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from inosgd._arrays import IntArray, pieces
from inosgd.data.file_state import FileState
from inosgd.data.files import refuse
from inosgd.data.npy import NUMBERS, read_header
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import Examples

ROWS_AT_ONCE = 16
"""One row can bring two megabytes of its file into memory with it; after so many they are given back."""

Transform = Callable[[Examples], Examples]
"""From a batch as it is stored to a batch as the model reads it, each example computed from that example alone."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedArray:
    """An array of a ``.npy`` file, one row per example, mapped into memory. Sensitive: it is the data.

    Refused when it is opened: no array of numbers, rows that are not stored one behind the other, a header that does
    not fit the file. Before every read: a file that is not the one that was opened. The values are not looked at until
    they are taken, and NaN is a value; the engine counts an example with such a gradient as zero.
    """

    state: FileState
    array: npt.NDArray[Any]
    mapping: mmap.mmap

    @classmethod
    def open(cls, path: Path, kinds: str = NUMBERS) -> Self:
        """The array in ``path``; nothing but its header is read."""
        state = FileState.of(path)
        try:
            with path.open("rb") as file:
                header = read_header(path, "the array", file, state.size, kinds)
                if header.by_columns and len(header.shape) > 1:
                    raise refuse(path, "it is stored column by column; write numpy.ascontiguousarray of it")
                if not header.shape or 0 in header.shape:
                    raise refuse(
                        path, f"it has the shape {header.shape}; give at least one row with at least one number"
                    )
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise refuse(path, f"cannot be read ({error.strerror or error})") from None
        if hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)  # reading ahead would read what was not drawn
        flat = np.frombuffer(mapping, header.dtype, offset=header.start)
        return cls(state, flat.reshape(header.shape), mapping)

    def __len__(self) -> int:
        return len(self.array)

    def take(self, indices: IntArray) -> npt.NDArray[Any]:
        """A copy of the rows at ``indices``, in the byte order of this machine."""
        self.state.check()
        rows = np.empty((len(indices), *self.array.shape[1:]), self.array.dtype.newbyteorder("="))
        for start, wanted in pieces(indices, ROWS_AT_ONCE):
            rows[start : start + len(wanted)] = self.array[wanted]
            self.forget()
        return rows

    def piece(self, start: int, stop: int) -> npt.NDArray[Any]:
        """A copy of the rows from ``start`` up to ``stop``, or up to the end."""
        self.state.check()
        rows = self.array[start:stop].astype(self.array.dtype.newbyteorder("="), copy=True)
        self.forget()
        return rows

    def forget(self) -> None:
        """Give back the pages that were touched, which would count as this process's memory; nothing is lost."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)


class MappedExamples:
    """Examples as a tree of mapped arrays: an `inosgd.examples.ExampleStore`.

    Memory: one batch, and the pages around `ROWS_AT_ONCE` rows, however many examples there are.

    Guarantee: `take` reads the rows at its indices alone, so a batch is the same as with all arrays in memory. A file
    that has been changed, replaced or removed since it was opened is refused before it is read. (A file that is cut
    short *while* a batch is read ends the process, as for every mapped file; nothing has been released of that step.)
    """

    def __init__(self, arrays: Any, transform: Transform | None = None) -> None:
        self._arrays, self._transform = arrays, transform
        opened: list[MappedArray] = pytree.tree_leaves(arrays)
        if not opened:
            raise InvalidArgumentError("paths: no file is named; give the path of at least one .npy file")
        for each in opened:
            _check_type(each)
        lengths = {len(each) for each in opened}
        if len(lengths) > 1:
            shown = ", ".join(f"{each.state.path} has {len(each):,}" for each in opened)
            raise InvalidArgumentError(f"paths: {shown} rows; give every array one row per example")
        self._count = lengths.pop()

    @classmethod
    def open(cls, paths: Any, *, transform: Transform | None = None) -> Self:
        """Examples from ``.npy`` files.

        Args:
            paths: A path, or a tuple, list or dictionary of them; a batch has the same shape.
            transform: Turns a batch as stored into a batch as the model reads it, for example bytes into floats. It
                must compute each example from that example alone, or the guarantee of training is void.
        """
        return cls(pytree.tree_map(lambda path: MappedArray.open(Path(path)), paths), transform)

    def __len__(self) -> int:
        return self._count

    def take(self, indices: IntArray) -> Examples:
        """The rows at ``indices`` of every array, as tensors."""
        batch = pytree.tree_map(lambda each: torch.from_numpy(each.take(indices)), self._arrays)
        return batch if self._transform is None else self._transform(batch)


def _check_type(mapped: MappedArray) -> None:
    dtype = mapped.array.dtype.newbyteorder("=")
    try:
        torch.from_numpy(np.zeros(0, dtype))
    except TypeError:
        raise refuse(
            mapped.state.path, f"it holds {dtype}, which torch does not have; write it in another type"
        ) from None
