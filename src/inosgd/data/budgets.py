"""Budgets from a CSV file with the columns ``owner,epsilon,delta,size``."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.errors import InvalidArgumentError
from inosgd.owners import OwnerTable

REQUIRED = ("owner", "epsilon", "size")


def read_owner_table(path: Path, default_delta: float) -> OwnerTable:
    """The owners in ``path``; ``delta`` may be left out as a column or in a row and is then ``default_delta``.

    The first line says what separates cells: a comma, a semicolon, a tab or a bar.

    Raises:
        InvalidArgumentError: Naming the file, the line, the column and the value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"owners={str(path)!r}: cannot be read as UTF-8 text ({error})") from None
    lines = text.splitlines()
    marks = Counter(mark for mark in (lines[0] if lines else "") if mark in ",;\t|").most_common(1)
    reader = csv.DictReader(lines, delimiter=marks[0][0] if marks else ",")
    missing = [column for column in REQUIRED if column not in _header(path, reader)]
    if missing:
        raise InvalidArgumentError(
            f"{path}: no column {missing[0]!r}; the first line must name the columns owner,epsilon,delta,size"
        )
    rows = _rows(path, reader)
    if not rows:
        raise InvalidArgumentError(f"{path}: no owner; add a line for each below the column names")
    numbered = list(enumerate(rows, start=2))
    return OwnerTable(
        tuple(_text(path, line, row, "owner") for line, row in numbered),
        _numbers(path, numbered, "epsilon", None),
        _numbers(path, numbered, "delta", default_delta),
        np.array([_whole(path, line, row, "size") for line, row in numbered]),
    )


Row = dict[str, str | None]


def _header(path: Path, reader: csv.DictReader[str]) -> list[str]:
    try:
        return list(reader.fieldnames or [])
    except csv.Error as error:
        raise InvalidArgumentError(f"{path}: its first line cannot be read ({error}); correct it") from None


def _rows(path: Path, reader: csv.DictReader[str]) -> list[Row]:
    try:
        return list(reader)
    except csv.Error as error:
        raise InvalidArgumentError(f"{path}, line {reader.line_num}: cannot be read ({error}); correct it") from None


def _text(path: Path, line: int, row: Row, column: str) -> str:
    value = (row.get(column) or "").strip()
    if not value:
        raise InvalidArgumentError(f"{path}, line {line}: column {column!r} is empty; fill it in")
    return value


def _numbers(path: Path, lines: Iterable[tuple[int, Row]], column: str, default: float | None) -> FloatArray:
    return np.array([_number(path, line, row, column, default) for line, row in lines])


def _number(path: Path, line: int, row: Row, column: str, default: float | None) -> float:
    if default is not None and not (row.get(column) or "").strip():
        return default
    value = _text(path, line, row, column)
    try:
        number = float(value)
    except ValueError:
        raise InvalidArgumentError(f"{path}, line {line}: {column}={value!r} is not a number") from None
    if not number > 0:
        raise InvalidArgumentError(f"{path}, line {line}: {column}={value!r}: give a number greater than 0")
    return number


def _whole(path: Path, line: int, row: Row, column: str) -> int:
    value = _text(path, line, row, column)
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise InvalidArgumentError(f"{path}, line {line}: {column}={value!r}: give a whole number of at least 0")
    return int(value)
