"""Tables: CSV, TSV and Parquet files, read strictly.

Every cell of a text file is read as text and turned into a number only where a number is asked for, so nothing is
guessed from the first rows. What cannot be used is refused by file, column and row. Rows are counted from 1 below the
header.
"""

from __future__ import annotations

import codecs
import csv
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from inosgd._arrays import FloatArray
from inosgd.data.decoding import decode, open_parquet
from inosgd.errors import InvalidArgumentError

Texts = npt.NDArray[np.object_]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises on files that are no Parquet, or whose names are no text."""

MOST_NAMES = 12
"""How many column names a message lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Some columns of a file, all equally long. Sensitive: it holds the data themselves.

    A piece of a longer table begins with row ``first``, counted from 0.
    """

    path: Path
    columns: Any
    first: int = 0

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def numbers(self, column: str) -> FloatArray:
        """The column as finite numbers."""
        values = _plain(self.columns.column(column))
        if pa.types.is_string(values.type):
            values = pc.utf8_trim_whitespace(values)
            self._refuse(column, pc.equal(values, ""), "is empty; fill it in, or leave the row out")
            values = self._parsed(column, values)
        elif pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise InvalidArgumentError(
                f"{self.path}: column {column!r} holds values of type {values.type}; give numbers, or declare it as "
                "categories"
            )
        self._refuse(column, values.is_null(), "is missing; fill it in, or leave the row out")
        numbers: FloatArray = values.cast(pa.float64(), safe=False).to_numpy()
        self._refuse(column, ~np.isfinite(numbers), "is not a finite number; fill it in, or leave the row out")
        return numbers

    def texts(self, column: str, *, empty: bool = False) -> Texts:
        """The column as trimmed text; whole numbers count as text, an empty cell only with ``empty``."""
        values = _plain(self.columns.column(column))
        if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
            values = values.cast(pa.string())
        elif not pa.types.is_string(values.type):
            raise InvalidArgumentError(
                f"{self.path}: column {column!r} holds values of type {values.type}; store names, classes and "
                "categories as text or whole numbers"
            )
        self._refuse(column, values.is_null(), "is missing; fill it in, or leave the row out")
        values = pc.utf8_trim_whitespace(values)
        if not empty:
            self._refuse(column, pc.equal(values, ""), "is empty; fill it in, or leave the row out")
        texts: Texts = values.to_numpy(zero_copy_only=False).astype(object)
        return texts

    def value(self, column: str, row: int) -> str:
        """What stands in a cell, for messages; ``row`` counts from 0."""
        return shortened(str(self.columns.column(column)[row].as_py()))

    def _parsed(self, column: str, values: Any) -> Any:
        try:
            return values.cast(pa.float64())
        except pa.ArrowInvalid:
            row = next(row for row, text in enumerate(values.to_pylist()) if not _is_number(text))
            raise self.cell_error(column, row, "is not a number; correct it, or declare the column's categories") from (
                None
            )

    def _refuse(self, column: str, wrong: Any, problem: str) -> None:
        flags = np.asarray(wrong)
        if flags.any():
            raise self.cell_error(column, int(np.argmax(flags)), problem)

    def cell_error(self, column: str, row: int, problem: str) -> InvalidArgumentError:
        """The error for one cell, to be raised by the caller; ``row`` counts from 0, within this piece."""
        return InvalidArgumentError(
            f"{self.path}: column {column!r}, row {self.first + row + 1}: {self.value(column, row)!r} {problem}"
        )


def read_table(paths: Sequence[Path], wanted: Mapping[str, str], delimiter: str | None = None) -> Table:
    """The ``wanted`` columns of one table, or of several with the same columns, one below the other.

    Args:
        paths: Files ending in .csv, .tsv or .parquet.
        wanted: Each column's name, and what asks for it, for messages.
        delimiter: What separates the cells of a text file; by default a comma, in .tsv a tab.
    """
    tables = [_read_one(path, wanted, delimiter) for path in paths]
    if len(tables) == 1:
        return tables[0]
    try:
        joined = pa.concat_tables([table.columns for table in tables], promote_options="permissive")
    except pa.ArrowInvalid as error:
        shown = ", ".join(str(path) for path in paths)
        raise InvalidArgumentError(f"{shown}: their columns differ in type ({error}); write them alike") from None
    return Table(Path(" + ".join(str(path) for path in paths)), joined)


def column_names(path: Path, delimiter: str | None = None) -> list[str]:
    """The names of a table's columns."""
    _check_file(path)
    if path.suffix.lower() == ".parquet":
        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except UNREADABLE as error:
            raise _unreadable(path, error) from None
    return _header(path, delimiter or DELIMITERS[path.suffix.lower()])


def shortened(text: str, length: int = 60) -> str:
    """``text``, cut to what a message can hold."""
    return text if len(text) <= length else text[: length - 3] + "..."


def closest(name: str, names: Sequence[str]) -> str:
    """A hint at the name that was probably meant, or the list of all."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f"choose one of {', '.join(map(repr, names[:MOST_NAMES]))}{more}"


def _read_one(path: Path, wanted: Mapping[str, str], delimiter: str | None) -> Table:
    _check_file(path)
    if path.suffix.lower() == ".parquet":
        table = _read_parquet(path, wanted)
    else:
        table = _read_text(path, wanted, delimiter or DELIMITERS[path.suffix.lower()])
    if table.num_rows == 0:
        raise InvalidArgumentError(f"{path}: there are no rows below the header; add some")
    return Table(path, table)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: there is no such file; correct the path")
    if path.suffix.lower() not in (".parquet", *DELIMITERS):
        raise InvalidArgumentError(f"{path}: tables are files ending in .csv, .tsv or .parquet; convert it")
    if path.stat().st_size == 0:
        raise InvalidArgumentError(f"{path}: the file is empty; give a table with a header and rows")


def _read_parquet(path: Path, wanted: Mapping[str, str]) -> Any:
    try:
        file = open_parquet(path)
        check_header(path, file.schema_arrow.names, wanted)
        return decode(path, file, list(wanted))
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: cannot be read as Parquet ({one_line(error)}); write it again")


def _read_text(path: Path, wanted: Mapping[str, str], delimiter: str) -> Any:
    _refuse_other_encodings(path)  # the parser tells a row that is both uneven and not text to nobody
    header = _header(path, delimiter)
    check_header(path, header, wanted, delimiter)
    uneven: list[Any] = []

    def keep_first(row: Any) -> str:
        uneven.append(row)
        return "skip"

    try:
        table = pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=header, skip_rows_after_names=1),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep_first
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()), include_columns=list(wanted), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error).upper():
            raise _encoding_error(path) from None
        raise InvalidArgumentError(f"{path}: cannot be read as a table ({one_line(error)}); correct it") from None
    _refuse_open_quote(path, delimiter)
    if uneven:
        row = uneven[0]
        where = f"row {row.number - 1}" if row.number else "a row"
        raise InvalidArgumentError(
            f"{path}: {where} has {row.actual_columns} cells and the header {row.expected_columns}; correct the row, "
            "and quote cells that contain the delimiter"
        )
    return table


def _refuse_other_encodings(path: Path) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _encoding_error(path) from None


def _refuse_open_quote(path: Path, delimiter: str) -> None:
    """A quote that is opened and never closed would swallow all rows after it, without an error from the reader."""
    with path.open("rb") as file:
        if sum(piece.count(b'"') for piece in iter(lambda: file.read(1 << 20), b"")) % 2 == 0:
            return
    row = 0
    with path.open(encoding="utf-8-sig", newline="") as text:
        try:
            for row, _ in enumerate(csv.reader(text, delimiter=delimiter, strict=True), start=1):  # noqa: B007
                pass
        except csv.Error:
            raise InvalidArgumentError(
                f"{path}: row {row}: a cell opens a quote and does not close it; close it, or double quotes in cells"
            ) from None


def _header(path: Path, delimiter: str) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file, delimiter=delimiter), [])
    except UnicodeDecodeError:
        raise _encoding_error(path) from None
    except csv.Error as error:
        raise InvalidArgumentError(f"{path}: its header cannot be read ({error}); correct the first line") from None
    return [name.strip() for name in names]


def check_header(path: Path, header: Sequence[str], wanted: Mapping[str, str], delimiter: str = ",") -> None:
    """Raise unless every ``wanted`` column is there, and only once."""
    if not any(header):
        raise InvalidArgumentError(f"{path}: its first line is empty; write the names of the columns there")
    repeated = sorted({name for name in header if list(header).count(name) > 1 and name in wanted})
    if repeated:
        raise InvalidArgumentError(f"{path}: two columns are called {repeated[0]!r}; rename one of them")
    missing = [name for name in wanted if name not in header]
    if not missing:
        return
    named = " and ".join(f"{name!r} ({wanted[name]})" for name in missing[:3])
    others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    problem = f"{path}: there is no column {named}{others}"
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|,"):
        raise InvalidArgumentError(
            f"{problem}; the header is one cell, {shortened(header[0])!r}: set data.delimiter to what separates its "
            f"cells, now {delimiter!r}"
        )
    raise InvalidArgumentError(f"{problem}; {closest(missing[0], list(header))}")


def _encoding_error(path: Path) -> InvalidArgumentError:
    """Names the first line that is not UTF-8."""
    with path.open("rb") as file:
        line = next((number for number, content in enumerate(file, start=1) if not _is_utf8(content)), 1)
    return InvalidArgumentError(f"{path}: line {line} is not UTF-8 text; save the file in the encoding UTF-8")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _plain(values: Any) -> Any:
    """The column without a dictionary, and text as plain text."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values


def _is_number(text: str) -> bool:
    """Whether Arrow reads ``text`` as a number; stricter than Python, which allows 1_000."""
    try:
        pa.scalar(text).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def one_line(error: Exception) -> str:
    """What a library has to say, cut to what a message can hold."""
    return shortened(str(error).splitlines()[0] if str(error) else type(error).__name__, 160)
