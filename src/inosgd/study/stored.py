"""Sources that stay on disk: ``kind = "npy"``, and Parquet tables with ``on_disk = true``.

Everything is looked at once, piece by piece, before training begins: what is refused of a table or an array in memory
is refused here too, by its row. After that, only labels are in memory, and every batch is read and encoded anew. A file
that changes meanwhile is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree

from inosgd._arrays import FloatArray, IntArray, RowArray, by_key
from inosgd.data.arrays import Array, array_numbers, array_texts, check_lengths, find_array
from inosgd.data.mapped import MappedArray
from inosgd.data.npy import NUMBERS_AND_TEXTS
from inosgd.data.parquet import ParquetRows
from inosgd.data.scaling import Range
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError
from inosgd.study.budgets import row_epsilons
from inosgd.study.encoding import ArrayEncoding, TableEncoding
from inosgd.study.labels import Labels, Names, gathered, label_texts
from inosgd.study.schema import ArrayData, StudySchema, TableData, label_names, notation_of, used_columns
from inosgd.study.sources import array_epsilons, no_row_left, refuse_outside_array, rows_with_values
from inosgd.study.targets import array_targets, origin, table_targets

ROWS_AT_ONCE = 1 << 16


class Reader(Protocol):
    """Encoded inputs by row of a file."""

    def __len__(self) -> int:
        """How many rows there are."""

    def read(self, rows: IntArray) -> Any:
        """The inputs of ``rows``: a tensor, or a dictionary of them."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredInputs:
    """Inputs that are read and encoded when they are taken: of files one behind the other, some rows. Sensitive."""

    readers: tuple[Reader, ...]
    rows: RowArray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        wanted = self.rows[key.numpy() if isinstance(key, torch.Tensor) else key].astype(np.int64)
        ends = np.cumsum([len(reader) for reader in self.readers])
        parts = list(by_key(np.searchsorted(ends, wanted, side="right")))
        if not parts:
            return self.readers[0].read(wanted)
        before = np.append(0, ends)
        read = [self.readers[number].read(wanted[places] - before[number]) for number, places in parts]
        back = torch.from_numpy(np.argsort(np.concatenate([places for _, places in parts])))
        return pytree.tree_map(lambda *pieces: torch.cat(pieces)[back], *read)

    def only(self, rows: torch.Tensor) -> StoredInputs:
        """Some of the inputs, still on disk."""
        return StoredInputs(self.readers, self.rows[rows.numpy()])

    def followed_by(self, other: StoredInputs) -> StoredInputs:
        """These inputs, then those of ``other``."""
        before = sum(len(reader) for reader in self.readers)
        return StoredInputs((*self.readers, *other.readers), np.append(self.rows, other.rows.astype(np.int64) + before))


def all_of(reader: Reader) -> StoredInputs:
    """All rows of ``reader``; row numbers take four bytes where that is enough."""
    return StoredInputs((reader,), np.arange(len(reader), dtype=_row_type(len(reader))))


def _row_type(count: int) -> Any:
    return np.uint32 if count < 2**32 else np.int64


@dataclass(frozen=True, eq=False, repr=False)
class _EncodedTable:
    rows: ParquetRows
    encoding: TableEncoding

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: IntArray) -> Any:
        """Read and encoded."""
        return self.encoding.encode(Table(Path(self.rows.path), self.rows.take(rows), rows))[:]


@dataclass(frozen=True, eq=False, repr=False)
class _EncodedArray:
    inputs: MappedArray
    encoding: ArrayEncoding

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, rows: IntArray) -> torch.Tensor:
        """Read and encoded."""
        return self.encoding.encode(self.inputs.state.path, self.inputs.take(rows))


@dataclass(frozen=True, eq=False, repr=False)
class StoredTableSource:
    """Rows of Parquet files."""

    path: str
    labels: Labels
    rows: ParquetRows
    declared: TableEncoding

    def encoding(self, training: IntArray) -> TableEncoding:
        """The declared one: nothing is fitted to data on disk."""
        return self.declared

    def encode(self, encoding: TableEncoding) -> StoredInputs:
        """Nothing yet: rows are encoded when they are taken."""
        inputs = all_of(_EncodedTable(self.rows, encoding))
        return inputs if self.labels.rows is None else StoredInputs(inputs.readers, self.labels.rows)


@dataclass(frozen=True, eq=False, repr=False)
class StoredArraySource:
    """Arrays of ``.npy`` files in one folder."""

    path: str
    labels: Labels
    inputs: MappedArray
    declared: ArrayEncoding

    def encoding(self, training: IntArray) -> ArrayEncoding:
        """The declared one: nothing is fitted to data on disk."""
        return self.declared

    def encode(self, encoding: ArrayEncoding) -> StoredInputs:
        """Nothing yet: rows are encoded when they are taken."""
        if self.declared.shape != encoding.shape:
            encoding.encode(self.inputs.state.path, self.inputs.piece(0, 1))
        return all_of(_EncodedArray(self.inputs, encoding))


def open_stored_table(study: StudySchema, data: TableData, paths: list[Path]) -> StoredTableSource:
    """The rows of ``paths``, all of them checked."""
    rows = ParquetRows.open(paths, {name: f"data.features.{name}" for name in data.features})
    encoding = TableEncoding(data.features, notation_of(data))
    stay: list[RowArray] = []
    for table in _tables(paths, data, *data.features):
        encoding.encode(table, refuse_outside=data.outside_range == "refuse")
        stay += [table.positions.astype(_row_type(len(rows)))] if data.drop_missing else []
    if data.drop_missing and not any(map(len, stay)):
        raise no_row_left(data, rows.path)
    labels = Labels(
        table_targets(study, data, _tables(paths, data, *data.target)),
        origin("column", data),
        None if data.owner is None else _table_names(paths, data, data.owner),
        f"column {data.owner!r}",
        None if data.epsilon is None else _table_epsilons(paths, data, data.epsilon),
        np.concatenate(stay) if data.drop_missing else None,
        None if data.unit is None else _table_names(paths, data, data.unit),
        f"column {data.unit!r}",
    )
    return StoredTableSource(rows.path, labels, rows, encoding)


def open_stored_arrays(study: StudySchema, data: ArrayData, folder: Path) -> StoredArraySource:
    """The arrays in ``folder``, all of them checked."""
    wanted = {data.inputs: "data.inputs"} | label_names(data)
    arrays = {name: MappedArray.open(find_array(folder, name, key), NUMBERS_AND_TEXTS) for name, key in wanted.items()}
    check_lengths(folder, {name: len(array) for name, array in arrays.items()})
    inputs = arrays[data.inputs]
    if inputs.array.ndim < 2:
        raise InvalidArgumentError(
            f"{folder}: array {data.inputs!r} has one number per example; give a second dimension"
        )
    encoding = ArrayEncoding(
        data.inputs,
        tuple(inputs.array.shape[1:]),
        None if data.range is None else Range(*data.range),
        data.vocabulary_size,
    )
    for start, piece in _pieces(inputs):
        refuse_outside_array(data, folder, array_numbers(folder, data.inputs, piece, start), start)
        encoding.encode(folder, piece, start)
    labels = Labels(
        array_targets(study, data, folder, {name: _pieces(arrays[name]) for name in data.target}),
        origin("array", data),
        _array_owners(folder, data, arrays),
        f"array {data.owner!r}",
        _array_epsilons(folder, data, arrays),
        None,
        _array_units(folder, data, arrays),
        f"array {data.unit!r}",
    )
    return StoredArraySource(str(folder), labels, inputs, encoding)


def _tables(paths: list[Path], data: TableData, *columns: str) -> Iterator[Table]:
    """Some columns, piece by piece, without the rows that are left out."""
    wanted = {name: key for name, key in used_columns(data).items() if name in (*columns, *data.drop_missing)}
    rows = ParquetRows.open(paths, wanted, 0)
    for start, piece in rows.pieces():
        yield rows_with_values(data, Table(Path(rows.path), piece, np.arange(start, start + piece.num_rows)))


def _table_names(paths: list[Path], data: TableData, column: str) -> Names:
    return gathered(label_texts(data, table, column) for table in _tables(paths, data, column))


def _table_epsilons(paths: list[Path], data: TableData, column: str) -> FloatArray:
    return np.concatenate([row_epsilons(table, column) for table in _tables(paths, data, column)])


def _pieces(array: MappedArray) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(array), ROWS_AT_ONCE):
        yield start, array.piece(start, start + ROWS_AT_ONCE)


def _array_owners(folder: Path, data: ArrayData, arrays: dict[str, MappedArray]) -> Names | None:
    if data.owner is None:
        return None
    name = data.owner
    return gathered(array_texts(folder, name, piece, start) for start, piece in _pieces(arrays[name]))


def _array_units(folder: Path, data: ArrayData, arrays: dict[str, MappedArray]) -> Names | None:
    if data.unit is None:
        return None
    name = data.unit
    return gathered(array_texts(folder, name, piece, start) for start, piece in _pieces(arrays[name]))


def _array_epsilons(folder: Path, data: ArrayData, arrays: dict[str, MappedArray]) -> FloatArray | None:
    if data.epsilon is None:
        return None
    name = data.epsilon
    return np.concatenate([array_epsilons(folder, name, piece, start) for start, piece in _pieces(arrays[name])])
