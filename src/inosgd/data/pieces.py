"""Tables piece by piece, for files larger than memory: CSV, TSV, Parquet and JSON lines.

Memory does not grow with the number of rows. It holds a block of a text file, `LINES` lines of JSON, or one row group
of a Parquet file, as its writer cut it. Rows that are no rows of the table are named with a reason, and the others are
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from inosgd._extras import needs
from inosgd.data.parquet import ParquetRows
from inosgd.data.tables import (
    DELIMITERS,
    Table,
    check_file,
    check_header,
    csv_options,
    header_of,
    refuse_open_quote,
    refuse_other_encodings,
    uneven_problem,
    unreadable_text,
)
from inosgd.errors import InvalidArgumentError

with needs("data"):
    import pyarrow as pa
    import pyarrow.csv

JSON_LINES = (".jsonl", ".ndjson")
BLOCK = 1 << 22
"""Bytes of a text file that are parsed at once; no row may be longer."""

LINES = 1 << 14
ROWS = 1 << 16
LONGEST_LINE = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class Piece:
    """Some rows of a file, one after the other. Sensitive.

    Attributes:
        table: Those that can be read, with their places in the file.
        kept: The values of the columns that are only copied, for each row of ``table``.
        refused: Why each other row cannot be read, by its place in the file, counted from 0.
        done: The share of the file that has been read.
    """

    table: Table
    kept: dict[str, list[Any]]
    refused: dict[int, str]
    done: float


def table_pieces(
    path: Path, wanted: Mapping[str, str], keep: Sequence[str] = (), delimiter: str | None = None
) -> Iterator[Piece]:
    """The rows of a table in their order.

    Args:
        path: A file ending in .csv, .tsv, .parquet, .jsonl or .ndjson.
        wanted: Each column that is read, and what asks for it, for messages.
        keep: Columns that are copied as they are; of text files as text.
        delimiter: What separates the cells of a text file; by default a comma, in .tsv a tab.

    Raises:
        InvalidArgumentError: If a column is missing, or the file as a whole cannot be read.
    """
    check_file(path, *JSON_LINES)
    columns = {**dict.fromkeys(keep, "it is to be kept"), **wanted}
    ending = path.suffix.lower()
    if ending in JSON_LINES:
        pieces = _line_pieces(path, columns, list(wanted), keep)
    elif ending == ".parquet":
        pieces = _parquet_pieces(path, columns, keep)
    else:
        pieces = _text_pieces(path, columns, keep, delimiter or DELIMITERS[ending])
    empty = True
    for piece in pieces:
        empty = empty and not len(piece.table) and not piece.refused
        yield piece
    if empty:
        raise InvalidArgumentError(f"{path}: there are no rows in it; add some")


def _text_pieces(path: Path, columns: Mapping[str, str], keep: Sequence[str], delimiter: str) -> Iterator[Piece]:
    refuse_other_encodings(path)
    header = header_of(path, delimiter)
    check_header(path, header, columns, delimiter)
    refuse_open_quote(path, delimiter)
    size, start = path.stat().st_size, 0
    uneven: list[Any] = []
    with path.open("rb") as file:
        try:
            reader = pyarrow.csv.open_csv(file, **csv_options(header, list(columns), delimiter, uneven, BLOCK))
            for batch in reader:
                refused, rows = _places(start, batch.num_rows, uneven)
                start += batch.num_rows + len(refused)
                yield _piece(path, batch, rows, keep, refused, file.tell() / size)
        except pa.ArrowInvalid as error:
            raise unreadable_text(path, error) from None
    rest = {row.number - 1 - 1: uneven_problem(row) for row in uneven}
    if rest:
        nothing = pa.table({name: pa.array([], pa.string()) for name in columns})
        yield _piece(path, nothing, np.zeros(0, dtype=np.int64), keep, rest, 1.0)


def _places(start: int, count: int, uneven: list[Any]) -> tuple[dict[int, str], Any]:
    """Rows without a place among the next ``count`` good ones, with reasons, and the places of the good ones.

    Arrow numbers rows from 1 with the header. What it has left out behind these rows stays in ``uneven``.
    """
    refused: dict[int, str] = {}
    while uneven and uneven[0].number - 2 < start + count + len(refused):
        row = uneven.pop(0)
        refused[row.number - 2] = uneven_problem(row)
    all_rows = np.arange(start, start + count + len(refused))
    return refused, all_rows[~np.isin(all_rows, list(refused))] if refused else all_rows


def _parquet_pieces(path: Path, columns: Mapping[str, str], keep: Sequence[str]) -> Iterator[Piece]:
    rows = ParquetRows.open([path], columns, 0)
    for start, group in rows.pieces():
        for first in range(0, group.num_rows, ROWS):
            part = group.slice(first, ROWS)
            places = np.arange(start + first, start + first + part.num_rows)
            yield _piece(path, part, places, keep, {}, (places[-1] + 1) / len(rows))


def _piece(path: Path, part: Any, rows: Any, keep: Sequence[str], refused: dict[int, str], done: float) -> Piece:
    columns = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    kept = {name: columns.column(name).to_pylist() for name in keep}
    return Piece(Table(path, columns, rows), kept, refused, min(done, 1.0))


def _line_pieces(path: Path, columns: Mapping[str, str], wanted: Sequence[str], keep: Sequence[str]) -> Iterator[Piece]:
    """Lines are counted as rows, also empty ones, which are left out; a key that is absent is a missing value.

    A key that none of the first lines has is taken for a misspelt one and refused, and so is a file without any object
    in them.
    """
    size, start = path.stat().st_size, 0
    with path.open("rb") as file:
        lines = _lines(path, file)
        while chunk := list(islice(lines, LINES)):
            refused: dict[int, str] = {}
            found: dict[int, dict[str, Any]] = {}
            for place, line in enumerate(chunk, start):
                if line.strip():
                    _read_line(line, place, wanted, found, refused)
            if refused and not found and start == 0:
                first = min(refused)
                raise InvalidArgumentError(f"{path}: line {first + 1} {refused[first]}")
            if found and start == 0:
                check_header(path, list({key: None for row in found.values() for key in row}), columns)
            start += len(chunk)
            texts = {name: [_cell(row.get(name)) for row in found.values()] for name in wanted}
            table = pa.table({name: pa.array(cells, pa.string()) for name, cells in texts.items()})
            kept = {name: [row.get(name) for row in found.values()] for name in keep}
            yield Piece(Table(path, table, np.array(list(found), dtype=np.int64)), kept, refused, file.tell() / size)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
        if len(line) == LONGEST_LINE:
            raise InvalidArgumentError(
                f"{path}: line {number} has {LONGEST_LINE:,} bytes or more; write one object to a line"
            )
        yield line


def _read_line(
    line: bytes, place: int, wanted: Sequence[str], found: dict[int, dict[str, Any]], refused: dict[int, str]
) -> None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        refused[place] = "is not JSON; write one object to a line"
        return
    if not isinstance(row, dict):
        refused[place] = "is no JSON object; write {...} with the columns as keys"
        return
    nested = [name for name in wanted if isinstance(row.get(name), dict | list)]
    if nested:
        refused[place] = f"{nested[0]}: holds a list or an object; give a single value"
    else:
        found[place] = row


def _cell(value: Any) -> str | None:
    """A value as the cell of a text file would have it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
