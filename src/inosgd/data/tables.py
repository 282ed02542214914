"""Tables: CSV, TSV and Parquet files, read strictly.

Every cell of a text file is read as text and turned into a number only where a number is asked for, so nothing is
guessed from the first rows. What cannot be used is refused by file, column and row. Rows are counted from 1 below the
header.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd._extras import needs
from inosgd.data.decoding import decode, open_parquet
from inosgd.data.moments import is_stored_moment, moment, stored_moments
from inosgd.data.notation import PLAIN, Notation
from inosgd.errors import CellsError, InvalidArgumentError

with needs("data"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.parquet

Texts = npt.NDArray[np.object_]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SEPARATORS = (",", ";", "\t", "|")
"""What a header may be separated by."""

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises on files that are no Parquet, or whose names are no text."""

MOST_ROWS = 5
"""How many rows with the same problem a message lists."""

MOST_NAMES = 12
"""How many column names a message lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Some columns of a file, all equally long. Sensitive: it holds the data themselves.

    Attributes:
        path: The file, for messages.
        columns: A table of Arrow.
        rows: Where in the file each row stands, counted from 0; None if these are all rows from the first on.
        notation: How cells are written.
        complete: Whether every cell is known to hold a value, so that this need not be looked for again.
    """

    path: Path
    columns: Any
    rows: IntArray | None = None
    notation: Notation = PLAIN
    complete: bool = False

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def positions(self) -> IntArray:
        """Where in the file each row stands, counted from 0."""
        return np.arange(len(self)) if self.rows is None else self.rows

    def only(self, rows: BoolArray, *columns: str, complete: bool = False) -> Table:
        """Some of the rows, which keep their numbers in messages; of all columns, or of some."""
        chosen = self.columns.select(columns) if columns else self.columns
        if rows.all():
            return replace(self, columns=chosen, complete=complete)
        return replace(self, columns=chosen.filter(pa.array(rows)), rows=self.positions[rows], complete=complete)

    def missing(self, column: str, known: Collection[str] = ()) -> BoolArray:
        """Which cells hold no value: null, NaN, or a text that is empty or stands for that, and not among ``known``.

        Guarantee: whether a cell is missing depends on this cell, on the notation and on ``known`` alone.
        """
        values = _plain(self.columns.column(column))
        missing: BoolArray = np.asarray(values.is_null(nan_is_null=True))
        if pa.types.is_string(values.type):
            texts = [text for text in ("", *self.notation.missing) if text not in known]
            value_set = pa.array(texts, pa.string())
            missing = missing | np.asarray(pc.is_in(pc.utf8_trim_whitespace(values), value_set=value_set))
        return missing

    def numbers(self, column: str) -> FloatArray:
        """The column as finite numbers."""
        self.refuse_missing(column)
        values = _plain(self.columns.column(column))
        if pa.types.is_string(values.type):
            values = self._parsed(column, pc.utf8_trim_whitespace(values))
        elif pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise self._type_error(column, values.type, "give numbers, or declare it as categories or dates")
        numbers: FloatArray = values.cast(pa.float64(), safe=False).to_numpy()
        self._refuse(column, ~np.isfinite(numbers), "is not a finite number; fill it in, or leave the row out")
        return numbers

    def texts(self, column: str, known: Collection[str] = (), *, empty: bool = False) -> Texts:
        """The column as trimmed text; whole numbers count as text, a missing value only with ``empty``, as "".

        Floats count as whole numbers if all of them are 0 or 1: programs write yes and no so.

        With ``empty`` every text stands for itself; otherwise those that stand for a missing value are refused, unless
        they are among ``known``.
        """
        texts: Texts = self._texts(column, known, empty=empty).to_numpy(zero_copy_only=False).astype(object)
        return texts

    def codes(self, column: str, names: Sequence[str], known: Collection[str] = (), *, lower: bool = False) -> IntArray:
        """The position of each text among ``names``, -1 where it is none of them; see `texts`."""
        texts = self._texts(column, known)
        found = pc.index_in(pc.utf8_lower(texts) if lower else texts, value_set=pa.array(names, pa.string()))
        codes: IntArray = found.fill_null(-1).to_numpy().astype(np.int64)
        return codes

    def _texts(self, column: str, known: Collection[str], *, empty: bool = False) -> Any:
        if not empty:
            self.refuse_missing(column, known)
        values = _plain(self.columns.column(column))
        if is_binary(values):
            values = values.cast(pa.int64())
        if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
            values = values.cast(pa.string())
        elif not pa.types.is_string(values.type):
            fix = "store names, classes and categories as text or whole numbers"
            raise self._type_error(column, values.type, fix)
        return pc.utf8_trim_whitespace(values.fill_null(""))

    def moments(self, column: str, form: str | None = None) -> FloatArray:
        """The column as seconds since 1970; texts are in ISO 8601, or in ``form`` (see `inosgd.data.moments`)."""
        self.refuse_missing(column)
        values = _plain(self.columns.column(column))
        if is_stored_moment(values.type):
            return stored_moments(values)
        if not (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
            raise self._type_error(column, values.type, "store dates as timestamps, dates or text")
        texts = self.texts(column)
        found = {text: _moment_or_nan(text, form) for text in set(texts)}
        seconds = np.fromiter((found[text] for text in texts), dtype=np.float64, count=len(texts))
        wanted = "a date of ISO 8601, such as 2024-05-31" if form is None else f"a date written as {form!r}"
        fix = "correct it, or declare how the column's dates are written with format"
        self._refuse(column, np.isnan(seconds), f"is not {wanted}; {fix}")
        return seconds

    def value(self, column: str, row: int) -> str:
        """What stands in a cell, for messages; ``row`` counts from 0, within this table."""
        return shortened(str(self.columns.column(column)[row].as_py()))

    def refuse_missing(
        self, column: str, known: Collection[str] = (), fix: str = "fill it in, or leave the row out"
    ) -> None:
        """Raise for the first cell of the column without a value."""
        if self.complete:
            return
        missing = self.missing(column, known)
        if missing.any():
            raise self.missing_error(column, missing, fix)

    def missing_error(self, column: str, missing: BoolArray, fix: str) -> InvalidArgumentError:
        """The error for cells without a value, to be raised by the caller."""
        state = "is missing" if self.value(column, int(np.argmax(missing))).strip() else "is empty"
        return self.cells_error(column, missing, f"{state}; {fix}")

    def _parsed(self, column: str, texts: Any) -> Any:
        values = self.notation.plain(texts)
        try:
            return values.cast(pa.float64())
        except pa.ArrowInvalid:
            bad = [text for text in values.unique().to_pylist() if not _is_number(text)]
            wrong = np.asarray(pc.is_in(values, value_set=pa.array(bad, pa.string())))
            problem = self.notation.problem(texts[int(np.argmax(wrong))].as_py())
            raise self.cells_error(column, wrong, problem) from None

    def _refuse(self, column: str, wrong: Any, problem: str) -> None:
        flags = np.asarray(wrong)
        if flags.any():
            raise self.cells_error(column, flags, problem)

    def _type_error(self, column: str, kind: Any, fix: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.path}: column {column!r} holds values of type {kind}; {fix}")

    def cells_error(self, column: str, wrong: BoolArray, problem: str) -> CellsError:
        """The error for all cells that are ``wrong``, of which it shows the first, to be raised by the caller."""
        rows = np.flatnonzero(wrong)
        places = self.positions[rows].tolist()
        more = ""
        if len(rows) > 1:
            shown = ", ".join(str(place + 1) for place in places[:MOST_ROWS])
            more = f" ({len(rows):,} such cells, in rows {shown}{', ...' * (len(rows) > MOST_ROWS)})"
        message = (
            f"{self.path}: column {column!r}, row {places[0] + 1}: {self.value(column, int(rows[0]))!r} {problem}{more}"
        )
        return CellsError(message, column=column, rows=places, problem=problem)

    def cell_error(self, column: str, row: int, problem: str) -> CellsError:
        """The error for one cell, to be raised by the caller; ``row`` counts from 0, within this table."""
        return self.cells_error(column, np.arange(len(self)) == row, problem)


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
    check_file(path)
    if path.suffix.lower() == ".parquet":
        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except UNREADABLE as error:
            raise _unreadable(path, error) from None
    return header_of(path, delimiter or DELIMITERS[path.suffix.lower()])


def delimiter_of(path: Path) -> str | None:
    """What separates the cells of a text file by its header; None if it is what the ending of the file says."""
    if path.suffix.lower() not in DELIMITERS or len(column_names(path)) > 1:
        return None
    counts = {mark: len(column_names(path, mark)) for mark in SEPARATORS}
    best = max(SEPARATORS, key=lambda mark: counts[mark])
    return best if counts[best] > 1 else None


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
    check_file(path)
    if path.suffix.lower() == ".parquet":
        table = _read_parquet(path, wanted)
    else:
        table = _read_text(path, wanted, delimiter or DELIMITERS[path.suffix.lower()])
    if table.num_rows == 0:
        raise InvalidArgumentError(f"{path}: there are no rows below the header; add some")
    return Table(path, table)


def check_file(path: Path, *others: str) -> None:
    """Raise unless there is a table at ``path``, by its name; ``others`` are endings that are allowed too."""
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: there is no such file; correct the path")
    if path.suffix.lower() not in (".parquet", *DELIMITERS, *others):
        named = ", ".join((".csv", ".tsv", *others))
        raise InvalidArgumentError(f"{path}: tables are files ending in {named} or .parquet; convert it")
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
    refuse_other_encodings(path)  # the parser does not report a row that is both uneven and not text
    header = header_of(path, delimiter)
    check_header(path, header, wanted, delimiter)
    uneven: list[Any] = []
    try:
        table = pyarrow.csv.read_csv(path, **csv_options(header, list(wanted), delimiter, uneven))
    except pa.ArrowInvalid as error:
        raise unreadable_text(path, error) from None
    refuse_open_quote(path, delimiter)
    if uneven:
        row = uneven[0]
        where = f"row {row.number - 1}" if row.number else "a row"
        more = f" ({len(uneven):,} such rows)" if len(uneven) > 1 else ""
        raise InvalidArgumentError(f"{path}: {where} {uneven_problem(row)}{more}")
    return table


def unreadable_text(path: Path, error: Exception) -> InvalidArgumentError:
    """The error for a text file that Arrow cannot read, to be raised by the caller."""
    if "UTF8" in str(error).upper():
        return _encoding_error(path)
    return InvalidArgumentError(f"{path}: cannot be read as a table ({one_line(error)}); correct it")


def uneven_problem(row: Any) -> str:
    """What is said of a row with another number of cells than the header."""
    return (
        f"has {row.actual_columns} cells and the header {row.expected_columns}; correct the row, and quote cells that "
        "contain the delimiter"
    )


def csv_options(
    header: Sequence[str], columns: Sequence[str], delimiter: str, uneven: list[Any], block_size: int | None = None
) -> dict[str, Any]:
    """How Arrow is to read the ``columns`` of a text file: all as text; rows of another length go into ``uneven``."""

    def leave_out(row: Any) -> str:
        uneven.append(row)
        return "skip"

    return {
        "read_options": pyarrow.csv.ReadOptions(
            use_threads=False, column_names=header, skip_rows_after_names=1, block_size=block_size
        ),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=leave_out
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
        ),
    }


def refuse_other_encodings(path: Path) -> None:
    """Raise unless all of the file is UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _encoding_error(path) from None


def refuse_open_quote(path: Path, delimiter: str) -> None:
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


def header_of(path: Path, delimiter: str) -> list[str]:
    """The names in the first line of a text file."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidArgumentError(
            f"delimiter={delimiter!r}: give one character, which is no quote and no end of a line"
        )
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
    named = ", ".join(f"{name!r} ({wanted[name]})" for name in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    problem = f"{path}: there is no column {named}{more}"
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|,"):
        raise InvalidArgumentError(
            f"{problem}; the header is one cell, {shortened(header[0])!r}: set data.delimiter to what separates its "
            f"cells, now {delimiter!r}"
        )
    others = [name for name in header if wanted.get(name) != wanted[missing[0]]]  # the same use has the rest already
    hint = closest(missing[0], others or list(header)).replace("choose one of", "add it, or correct its name to one of")
    raise InvalidArgumentError(f"{problem}; {hint}")


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
    """The column without a dictionary, and text as plain text; a column of nothing is empty text."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    text = pa.types.is_large_string(values.type) or pa.types.is_null(values.type)
    return values.cast(pa.string()) if text else values


def is_binary(values: Any) -> bool:
    """Whether a column of Arrow holds floats that are all 0 or 1."""
    return pa.types.is_floating(values.type) and bool(np.isin(values.drop_null().to_numpy(), (0, 1)).all())


def _is_number(text: str) -> bool:
    """Whether Arrow reads ``text`` as a number; stricter than Python, which allows 1_000."""
    try:
        pa.scalar(text).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _moment_or_nan(text: str, form: str | None) -> float:
    try:
        return moment(text, form)
    except (ValueError, OverflowError):
        return math.nan


def one_line(error: Exception) -> str:
    """What a library has to say, cut to what a message can hold."""
    return shortened(str(error).splitlines()[0] if str(error) else type(error).__name__, 160)
