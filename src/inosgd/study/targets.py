"""Targets as files have them: classes, labels or numbers, checked by row as they are read.

| kind of task   | in a table                                     | in an array                          |
| -------------- | ---------------------------------------------- | ------------------------------------ |
| classification | a column of names or whole numbers             | the same, one per example            |
| multi-label    | columns of true and false, yes and no, 1 and 0 | 0 and 1, or true and false           |
| regression     | columns of numbers                             | numbers                              |

For labels and numbers an array may have several columns; they are called after it, and numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from inosgd._arrays import BoolArray, FloatArray
from inosgd.data.arrays import Array, array_numbers, array_texts
from inosgd.data.scaling import Range
from inosgd.data.tables import Table, is_binary, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.study.features import outside_problem, truths
from inosgd.study.labels import Names, Numbers, gathered, label_texts, refuse_missing_label
from inosgd.study.schema import ArrayData, ImageData, StudySchema, TableData

Pieces = Iterable[tuple[int, Array]]
"""An array, piece by piece, each with the number of its first example."""

FOR_NUMBERS = 'to predict numbers, set task.kind = "regression" and task.range'
_NO_CLASSES = f"store names and classes as text or whole numbers, or, {FOR_NUMBERS}"


def origin(what: str, data: TableData | ImageData | ArrayData) -> str:
    """Where targets were read, for messages; ``what`` is a column or an array."""
    names = data.target or []
    return f"{what}{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def table_targets(study: StudySchema, data: TableData | ImageData, tables: Iterable[Table]) -> Names | Numbers:
    """The targets in tables that come one after the other."""
    columns = data.target or []
    if study.task.kind == "classification":
        return gathered(_class_texts(data, table, columns[0]) for table in tables)
    limits = declared_ranges(study, columns)
    read = _labels_in if study.task.kind == "multi-label" else _numbers_in
    values = [
        np.stack([read(data, table, column, each) for column, each in zip(columns, limits, strict=True)], axis=1)
        for table in tables
    ]
    return Numbers(np.concatenate(values), tuple(columns))


def array_targets(study: StudySchema, data: ArrayData, path: Path, arrays: Mapping[str, Pieces]) -> Names | Numbers:
    """The targets in arrays, which need not be in memory as a whole."""
    if study.task.kind == "classification":
        name = data.target[0]
        return gathered(_class_array(path, name, piece, start) for start, piece in arrays[name])
    parts = {name: np.concatenate([_matrix(path, name, *piece) for piece in arrays[name]]) for name in data.target}
    names = [label for name, part in parts.items() for label in _numbered(name, part.shape[1])]
    values, limits = np.concatenate(list(parts.values()), axis=1), declared_ranges(study, names)
    for column, (name, each) in enumerate(zip(names, limits, strict=True)):
        if study.task.kind == "multi-label":
            wrong, problem = ~np.isin(values[:, column], (0, 1)), "is neither 0 nor 1; give 1 for yes and 0 for no"
        else:
            wrong, problem = _outside(data, each, values[:, column])
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InvalidArgumentError(f"{path}: array {name!r}, row {row + 1}: '{values[row, column]:g}' {problem}")
    return Numbers(values, tuple(names))


def declared_ranges(study: StudySchema, names: Sequence[str]) -> list[Range | None]:
    """The declared range of each target; None for those that have none."""
    given = study.task.range
    if given is None:
        return [None] * len(names)
    if len(given) not in (1, len(names)):
        raise InvalidArgumentError(
            f"task.range: {len(given)} ranges for {len(names)} targets, {shortened(', '.join(map(repr, names)))}; give "
            "one range for all, or one for each"
        )
    return [Range(*given[min(place, len(given) - 1)]) for place in range(len(names))]


def _class_texts(data: TableData | ImageData, table: Table, column: str) -> np.ndarray:
    values = table.columns.column(column)
    kind = values.type
    if pa.types.is_floating(kind) and not is_binary(values):
        raise InvalidArgumentError(f"{table.path}: column {column!r} holds values of type {kind}; {_NO_CLASSES}")
    return label_texts(data, table, column, data.classes or ())


def _class_array(path: Path, name: str, piece: Array, start: int) -> np.ndarray:
    if np.issubdtype(piece.dtype, np.floating):
        raise InvalidArgumentError(f"{path}: array {name!r} holds values of type {piece.dtype}; {_NO_CLASSES}")
    return array_texts(path, name, piece, start)


def _labels_in(data: TableData | ImageData, table: Table, column: str, limits: Range | None) -> FloatArray:
    refuse_missing_label(data, table, column)
    return truths(table, column).astype(np.float64)


def _numbers_in(data: TableData | ImageData, table: Table, column: str, limits: Range | None) -> FloatArray:
    refuse_missing_label(data, table, column)
    values = table.numbers(column)
    wrong, problem = _outside(data, limits, values)
    if wrong.any():
        raise table.cells_error(column, wrong, problem)
    return values


def _outside(
    data: TableData | ImageData | ArrayData, limits: Range | None, values: FloatArray
) -> tuple[BoolArray, str]:
    """Which values are refused, and why; those of a range that is fitted never are."""
    if limits is None or data.outside_range == "clamp":
        return np.zeros(len(values), dtype=np.bool_), ""
    return limits.outside(values), outside_problem(f"[{limits.low:g}, {limits.high:g}]")


def _matrix(path: Path, name: str, start: int, piece: Array) -> FloatArray:
    if piece.ndim > 2:
        raise InvalidArgumentError(
            f"{path}: array {name!r} has shape {piece.shape}; give one number per example, or one row of numbers"
        )
    numbers = piece.astype(np.uint8) if piece.dtype == np.bool_ else piece
    found: FloatArray = array_numbers(path, name, numbers, start).astype(np.float64)
    return found.reshape(len(piece), -1)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {number}" for number in range(1, count + 1)]
