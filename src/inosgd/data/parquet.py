"""Parquet files that stay on disk: a batch reads the row groups that its rows lie in, and the columns it needs.

    examples = ParquetExamples.open(files, ("age", "dose", "ill"), transform=as_the_model_reads_it)
    trainer = Trainer(plan, owners, examples, losses, INO_SGD)

Parquet reads whole row groups. Rows are drawn from all over the file, so a batch of 1,000 out of 100 million meets
almost 1,000 row groups and reads them all: writing the file with small row groups, ``row_group_size=4096`` rather than
the usual million, is what makes a step fast (`checks/LARGE_DATA.md` has numbers). Below a thousand rows per group the
file's own table of contents becomes the largest thing in memory.

Which parts of a file are read tells which examples were drawn: see `inosgd.data.mapped`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from inosgd import _validate
from inosgd._arrays import IntArray, by_key
from inosgd._extras import needs
from inosgd.data.decoding import decode, open_parquet, plain_type
from inosgd.data.file_state import FileState
from inosgd.data.files import refuse
from inosgd.data.mapped import Transform
from inosgd.data.tables import UNREADABLE, check_header, one_line
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import Examples

with needs("data"):
    import pyarrow as pa
    import pyarrow.parquet

CACHE_BYTES = 1 << 27
"""How much of what was read is kept by default, in case the next batch meets it again."""


@dataclass(frozen=True, eq=False, repr=False)
class _File:
    """An open file, and where each of its row groups ends, counted over all files."""

    state: FileState
    reader: Any
    ends: IntArray

    def types(self, columns: Iterable[str]) -> list[Any]:
        """The type of each of ``columns``."""
        return [plain_type(self.reader.schema_arrow.field(name).type) for name in columns]

    def row_group(self, number: int, columns: Sequence[str]) -> Any:
        """The columns of one row group; refused if the file has changed, or holds other rows than it said."""
        self.state.check()
        try:
            found = decode(self.state.path, self.reader, columns, [number])
        except UNREADABLE as error:
            raise refuse(self.state.path, f"row group {number} cannot be read ({one_line(error)})") from None
        if found.num_rows != self.reader.metadata.row_group(number).num_rows:
            raise refuse(self.state.path, f"row group {number} has {found.num_rows} rows, not those it announces")
        return found


class _Kept:
    """Row groups that were read, up to a number of bytes; those used longest ago go first."""

    def __init__(self, most_bytes: int) -> None:
        _validate.whole(0, cache_bytes=most_bytes)
        self._most_bytes, self._bytes = most_bytes, 0
        self._row_groups: OrderedDict[int, Any] = OrderedDict()

    def get(self, number: int) -> Any:
        """The row group if it is here, else None."""
        if number in self._row_groups:
            self._row_groups.move_to_end(number)
        return self._row_groups.get(number)

    def add(self, number: int, rows: Any) -> None:
        """Keep a row group; one that is larger than everything that may be kept is not."""
        if rows.nbytes > self._most_bytes:
            return
        self._row_groups[number] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._most_bytes:
            _, oldest = self._row_groups.popitem(last=False)
            self._bytes -= oldest.nbytes


class ParquetRows:
    """Random access to the rows of Parquet files, one below the other. Sensitive: it holds data.

    Memory: the files' tables of contents, ``cache_bytes``, one row group and the rows that are asked for.

    Attributes:
        columns: What is read.
        rows_read: How many rows have been read from disk so far. Sensitive: it depends on what was drawn.
    """

    def __init__(self, files: Sequence[_File], columns: Sequence[str], cache_bytes: int) -> None:
        self.columns, self.rows_read = tuple(columns), 0
        self._files, self._kept = tuple(files), _Kept(cache_bytes)
        self._ends = np.concatenate([file.ends for file in files])
        self._file_ends = np.cumsum([len(file.ends) for file in files])

    @classmethod
    def open(cls, paths: Sequence[Path], wanted: Mapping[str, str], cache_bytes: int = CACHE_BYTES) -> Self:
        """The ``wanted`` columns of ``paths``; nothing but tables of contents is read.

        Args:
            paths: Parquet files with the same columns of the same types.
            wanted: Each column's name, and what asks for it, for messages.
            cache_bytes: How many bytes may be kept of what was read.
        """
        if not paths:
            raise InvalidArgumentError("paths: no file is named; give at least one Parquet file")
        files: list[_File] = []
        for path in paths:
            files.append(_opened(path, wanted, int(files[-1].ends[-1]) if files else 0))
            if files[-1].types(wanted) != files[0].types(wanted):
                raise refuse(path, f"its columns differ in type from those of {paths[0]}; write them alike")
        return cls(files, tuple(wanted), cache_bytes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def path(self) -> str:
        """The files, for messages."""
        return " + ".join(str(file.state.path) for file in self._files)

    @property
    def schema(self) -> Any:
        """The columns and their types."""
        return pa.schema(list(zip(self.columns, self._files[0].types(self.columns), strict=True)))

    def take(self, indices: IntArray) -> Any:
        """The rows at ``indices``, in that order, as a table of Arrow; each row group is read at most once."""
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self)):
            raise InvalidArgumentError(f"indices: from {indices.min()} to {indices.max()}; give 0 to {len(self) - 1}")
        groups = np.searchsorted(self._ends, indices, side="right")
        found = [(wanted, self._rows_of(group, indices[wanted])) for group, wanted in by_key(groups)]
        places = np.concatenate([wanted for wanted, _ in found]) if found else groups
        rows = pa.concat_tables([self.schema.empty_table(), *(part for _, part in found)])
        return rows.combine_chunks().take(np.argsort(places))

    def pieces(self) -> Iterator[tuple[int, Any]]:
        """All rows, one row group after the other, each with the number of its first row; nothing is kept."""
        for group, end in enumerate(self._ends.tolist()):
            rows = self._read(group)
            yield end - rows.num_rows, rows

    def _rows_of(self, group: int, indices: IntArray) -> Any:
        rows = self._kept.get(group)
        if rows is None:
            rows = self._read(group)
            self._kept.add(group, rows)
        return rows.take(indices - (self._ends[group] - rows.num_rows))

    def _read(self, group: int) -> Any:
        file = int(np.searchsorted(self._file_ends, group, side="right"))
        before = int(self._file_ends[file - 1]) if file else 0
        rows = self._files[file].row_group(group - before, self.columns)
        self.rows_read += rows.num_rows
        return rows


class ParquetExamples:
    """Examples as columns of numbers in Parquet files: an `inosgd.examples.ExampleStore`.

    Memory: see `ParquetRows`; with the number of examples only the tables of contents grow, by about 1.5 kilobytes for
    each row group and column of the files.

    Guarantee: a batch is the same as with the whole table in memory. A file that has been changed, replaced or removed
    since it was opened is refused before it is read.

    Refused when opened: columns that are missing, differ in type between files, or hold no numbers. Refused when they
    are taken: missing values, by their row group. NaN is a value; the engine counts an example with such a gradient as
    zero.
    """

    def __init__(self, rows: ParquetRows, columns: Any, transform: Transform | None = None) -> None:
        self.rows, self._columns, self._transform = rows, columns, transform
        for column in rows.schema:
            _numpy_type(rows.path, column)

    @classmethod
    def open(
        cls,
        paths: Path | Sequence[Path],
        columns: Any,
        *,
        transform: Transform | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> Self:
        """Examples from Parquet files.

        Args:
            paths: A file, or several with the same columns, one below the other.
            columns: A column, or a tuple, list or dictionary of them; a batch has the same shape. A column of lists of
                a fixed size is a tensor of two dimensions.
            transform: Turns a batch as stored into a batch as the model reads it, for example eight columns into one
                tensor. It must compute each example from that example alone, or the guarantee of training is void.
            cache_bytes: How many bytes may be kept of what was read.
        """
        files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
        wanted = dict.fromkeys(pytree.tree_leaves(columns), "columns")
        return cls(ParquetRows.open(files, wanted, cache_bytes), columns, transform)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: IntArray) -> Examples:
        """The rows at ``indices`` of every column, as tensors."""
        taken = self.rows.take(indices)
        found = {name: torch.from_numpy(_numbers(self.rows.path, taken, name, indices)) for name in self.rows.columns}
        batch = pytree.tree_map(found.__getitem__, self._columns)
        return batch if self._transform is None else self._transform(batch)


def _opened(path: Path, wanted: Mapping[str, str], before: int) -> _File:
    state = FileState.of(path)
    try:
        reader = open_parquet(path)
        check_header(path, reader.schema_arrow.names, wanted)
        contents = reader.metadata
        sizes = [contents.row_group(number).num_rows for number in range(contents.num_row_groups)]
    except UNREADABLE as error:
        raise refuse(path, f"cannot be read as Parquet ({one_line(error)}); write it again") from None
    if sum(sizes) == 0:
        raise refuse(path, "there are no rows in it; leave it out")
    if min(sizes) < 0 or sum(sizes) != contents.num_rows:
        raise refuse(path, "its row groups do not add up to its rows; write it again")
    return _File(state, reader, before + np.cumsum(np.array(sizes, dtype=np.int64)))


def _numpy_type(path: str, column: Any) -> Any:
    inner = column.type.value_type if pa.types.is_fixed_size_list(column.type) else column.type
    numbers = pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
    if not numbers:
        raise InvalidArgumentError(f"{path}: column {column.name!r} holds values of type {column.type}; give numbers")
    return inner.to_pandas_dtype()


def _numbers(path: str, taken: Any, name: str, indices: IntArray) -> npt.NDArray[Any]:
    """A column of a batch as an array that may be written to."""
    column = taken.column(name)
    kind = _numpy_type(path, taken.schema.field(name))
    _refuse_missing(path, name, column, indices)
    if not pa.types.is_fixed_size_list(column.type):
        return np.array(column.to_numpy(), dtype=kind)
    width = column.type.list_size
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    _refuse_missing(path, name, flat, np.repeat(indices, width))
    return np.array(flat.to_numpy(), dtype=kind).reshape(len(column), width)


def _refuse_missing(path: str, name: str, values: Any, indices: IntArray) -> None:
    if values.null_count:
        row = int(indices[np.argmax(np.asarray(values.is_null()))])
        raise InvalidArgumentError(
            f"{path}: column {name!r}, row {row + 1}: it is missing; fill it in, or leave it out"
        )
