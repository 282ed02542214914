"""Features: what a column of a table is, and how each of its cells becomes inputs of a model.

| kind        | a cell becomes                                                                            |
| ----------- | ----------------------------------------------------------------------------------------- |
| numeric     | one number from -1 to 1, by the declared range                                            |
| categorical | one number per category: 1 for its own, 0 for the others                                  |
| boolean     | -1 for false, 1 for true                                                                  |
| date        | one number from -1 to 1, by the declared range; sine and cosine of each declared cycle    |
| text        | symbols                                                                                   |

A missing value becomes what a declared value would, or, with an indicator, zeros. The indicator is one more input: 1
where the value is missing and 0 elsewhere.

Guarantee:
    `encode` computes each row from that row and from the feature. A feature that is declared is public, so encoding is
    part of the model and costs no privacy: adding, removing or changing a row changes no other row's inputs. A feature
    that was `fitted` depends on all training rows, which no budget accounts for. No statistic of the data, such as
    their mean, is offered for missing values.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.data.moments import CYCLES, last_moment, moment
from inosgd.data.scaling import Range
from inosgd.data.tables import Table, Texts, closest, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.study.problems import as_toml

INDICATOR = "indicator"
"""Instead of a value for missing ones: one more input, which says that the value is missing."""

TRUE, FALSE = ("true", "yes", "y", "t", "1", "1.0"), ("false", "no", "n", "f", "0", "0.0")
WORD = re.compile(r"\w+")

Inputs = npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class NumericFeature:
    """Numbers, scaled to -1 to 1; what lies outside the range is brought to its ends."""

    range: Range
    missing: float | str | None = None
    fitted: bool = False

    kind: ClassVar = "numeric"
    known: ClassVar[tuple[str, ...]] = ()
    size: ClassVar = 1

    @property
    def limits(self) -> str:
        """The declared range, for messages."""
        return f"[{self.range.low:g}, {self.range.high:g}]"

    @property
    def fill(self) -> FloatArray:
        """The value that stands for a missing one."""
        return np.array([self.missing], dtype=np.float64)

    def values(self, table: Table, name: str) -> FloatArray:
        """The column's numbers."""
        return table.numbers(name)

    def rows(self, values: FloatArray) -> npt.NDArray[np.float32]:
        """The inputs for ``values``."""
        return self.range.scaled(values)[:, None]

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {"range": [self.range.low, self.range.high], **_declared(missing=self.missing)}


@dataclass(frozen=True)
class CategoricalFeature:
    """Categories; a text that is none of them is refused. A category is never taken for a missing value."""

    categories: tuple[str, ...]
    missing: str | None = None
    fitted: bool = False

    kind: ClassVar = "categorical"

    @property
    def known(self) -> tuple[str, ...]:
        """Texts that do not stand for a missing value in this column."""
        return self.categories

    @property
    def size(self) -> int:
        """As many numbers as categories."""
        return len(self.categories)

    @property
    def fill(self) -> IntArray:
        """The category that stands for a missing one."""
        return np.array([self.categories.index(str(self.missing))])

    def values(self, table: Table, name: str) -> IntArray:
        """The position of each row's category."""
        codes = table.codes(name, self.categories, self.categories)
        if (codes < 0).any():
            known = closest(table.value(name, int(np.argmax(codes < 0))), self.categories)
            raise table.cells_error(name, codes < 0, f"is none of the column's categories; {known}")
        return codes

    def rows(self, values: IntArray) -> npt.NDArray[np.float32]:
        """The inputs for ``values``."""
        found = np.zeros((len(values), len(self.categories)), dtype=np.float32)
        found[np.arange(len(values)), values] = 1
        return found

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {"categories": list(self.categories), **_declared(missing=self.missing)}


@dataclass(frozen=True)
class BooleanFeature:
    """True or false, in any of the usual spellings."""

    missing: bool | str | None = None

    kind: ClassVar = "boolean"
    known: ClassVar[tuple[str, ...]] = ()
    size: ClassVar = 1
    fitted: ClassVar = False

    @property
    def fill(self) -> FloatArray:
        """The value that stands for a missing one."""
        return np.array([1.0 if self.missing else -1.0])

    def values(self, table: Table, name: str) -> FloatArray:
        """1 for true, -1 for false."""
        return np.where(truths(table, name, ", or declare the column's categories"), 1.0, -1.0)

    def rows(self, values: FloatArray) -> npt.NDArray[np.float32]:
        """The inputs for ``values``."""
        return values.astype(np.float32)[:, None]

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {"boolean": True, **_declared(missing=self.missing)}


@dataclass(frozen=True)
class DateFeature:
    """Dates, or dates with times, from ``first`` to ``last`` (see `inosgd.data.moments`), scaled like numbers.

    Each of ``cycles`` adds the sine and cosine of how much of the year, the week or the day has passed.
    """

    first: str
    last: str
    missing: str | None = None
    format: str | None = None
    cycles: tuple[str, ...] = ()

    kind: ClassVar = "date"
    known: ClassVar[tuple[str, ...]] = ()
    fitted: ClassVar = False

    @property
    def range(self) -> Range:
        """In seconds; the last day belongs to it."""
        return Range(moment(self.first), last_moment(self.last))

    @property
    def limits(self) -> str:
        """The declared range, for messages."""
        return f"[{self.first}, {self.last}]"

    @property
    def size(self) -> int:
        """The date itself, and two numbers for each cycle."""
        return 1 + 2 * len(self.cycles)

    @property
    def fill(self) -> FloatArray:
        """The date that stands for a missing one."""
        return np.array([moment(str(self.missing))])

    def values(self, table: Table, name: str) -> FloatArray:
        """Seconds since 1970."""
        return table.moments(name, self.format)

    def rows(self, values: FloatArray) -> npt.NDArray[np.float32]:
        """The inputs for ``values``."""
        angles = [2 * np.pi * CYCLES[cycle](values) for cycle in self.cycles]
        circles = [part(angle).astype(np.float32) for angle in angles for part in (np.sin, np.cos)]
        return np.stack([self.range.scaled(values), *circles], axis=1)

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {
            "date": [self.first, self.last],
            **_declared(missing=self.missing, format=self.format, cycles=list(self.cycles) or None),
        }


@dataclass(frozen=True)
class TextFeature:
    """Text as symbols: 0 is padding, the others are bytes + 1 or a public hash of words.

    It is cut after ``max_length`` symbols. A vocabulary learnt from the data would publish words that only one example
    has. A missing text is an empty one.
    """

    tokens: str
    max_length: int
    vocabulary_size: int

    kind: ClassVar = "text"
    known: ClassVar[tuple[str, ...]] = ()
    missing: ClassVar = None
    fitted: ClassVar = False

    @property
    def size(self) -> int:
        """How many symbols an example has, padding included."""
        return self.max_length

    def rows(self, texts: Texts) -> npt.NDArray[np.int64]:
        """Symbols, filled up with 0 behind."""
        symbols = np.zeros((len(texts), self.max_length), dtype=np.int64)
        for row, text in enumerate(texts):
            found = self._symbols(text)[: self.max_length]
            symbols[row, : len(found)] = found
        return symbols

    def _symbols(self, text: str) -> list[int]:
        if self.tokens == "bytes":
            return [1 + byte for byte in text.encode("utf-8")]
        return [
            1 + zlib.crc32(word.encode("utf-8")) % (self.vocabulary_size - 1) for word in WORD.findall(text.lower())
        ]

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {"text": self.tokens, "max_length": self.max_length, "vocabulary_size": self.vocabulary_size}


@dataclass(frozen=True)
class UnfittedFeature:
    """A feature whose range or categories are still to be read off the training data: unaccounted."""

    kind: str
    missing: float | str | None = None

    known: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """What declares it."""
        return {"range" if self.kind == "numeric" else "categories": "fitted", **_declared(missing=self.missing)}


Feature = NumericFeature | CategoricalFeature | BooleanFeature | DateFeature | TextFeature
Declared = Feature | UnfittedFeature
"""What a study file declares."""


def width(feature: Feature) -> int:
    """How many inputs a cell becomes, with its indicator."""
    return feature.size + (feature.missing == INDICATOR)


def encode(feature: Feature, table: Table, name: str, *, refuse_outside: bool = False) -> Inputs:
    """The inputs of each row: a function of that row alone, by what is declared.

    Raises:
        InvalidArgumentError: Naming file, column and row, if a value cannot be used, is missing and nothing is
            declared for that, or, with ``refuse_outside``, lies outside a declared range.
    """
    if isinstance(feature, TextFeature):
        return feature.rows(table.texts(name, empty=True))
    present = _present(feature, table, name)
    cells = table.only(present, name, complete=True)
    values = feature.values(cells, name)
    if refuse_outside and isinstance(feature, NumericFeature | DateFeature) and not feature.fitted:
        wrong = feature.range.outside(values)
        if wrong.any():
            raise cells.cells_error(name, wrong, outside_problem(feature.limits))
    rows = feature.rows(values)  # type: ignore[arg-type]
    if present.all() and feature.missing != INDICATOR:
        return rows
    found = np.zeros((len(table), width(feature)), dtype=np.float32)
    found[present, : feature.size] = rows
    if feature.missing == INDICATOR:
        found[:, -1] = ~present
    elif not present.all():
        found[~present] = feature.rows(feature.fill)  # type: ignore[arg-type]
    return found


def outside(feature: NumericFeature | DateFeature, table: Table, name: str) -> BoolArray:
    """Which rows lie outside the range; a missing value does not."""
    present = ~table.missing(name)
    found = np.zeros(len(table), dtype=np.bool_)
    found[present] = feature.range.outside(feature.values(table.only(present, name, complete=True), name))
    return found


def outside_problem(limits: str) -> str:
    """What is said of a value outside its range."""
    return (
        f"lies outside the declared range {limits}; correct it, widen the range by what is publicly known, or bring "
        'such values to its ends with data.outside_range = "clamp"'
    )


def fit(feature: UnfittedFeature, table: Table, name: str) -> Feature:
    """The feature with the range or categories of all rows, and of the value for missing ones. Unaccounted."""
    present = table.only(_present(feature, table, name), name, complete=True)
    if not len(present):
        raise InvalidArgumentError(
            f"{table.path}: column {name!r}: no row to train on has a value; leave the feature out, or declare it"
        )
    more = [] if feature.missing in (None, INDICATOR) else [feature.missing]
    if feature.kind == "numeric":
        values = np.append(present.numbers(name), np.array(more, dtype=np.float64))
        return NumericFeature(Range.fitted(values), feature.missing, fitted=True)
    categories = sorted({*present.texts(name), *map(str, more)})
    return CategoricalFeature(tuple(categories), None if feature.missing is None else str(feature.missing), fitted=True)


def truths(table: Table, name: str, other_fix: str = "") -> BoolArray:
    """Which rows of a column of true and false are true."""
    codes = table.codes(name, (*TRUE, *FALSE), lower=True)
    if (codes < 0).any():
        fix = f"write true or false, yes or no, 1 or 0{other_fix}"
        raise table.cells_error(name, codes < 0, f"is neither true nor false; {fix}")
    return codes < len(TRUE)


def _present(feature: Declared, table: Table, name: str) -> BoolArray:
    """Which rows have a value; refused where one has none and nothing is declared for that."""
    missing = table.missing(name, feature.known)
    if feature.missing is None and missing.any():
        example = {**feature.to_json(), "missing": INDICATOR}
        fix = (
            "fill it in, leave the row out, or declare what stands for a missing value, such as "
            f"data.features.{name} = {shortened(as_toml(example), 120)}"
        )
        raise table.missing_error(name, missing, fix)
    return ~missing


def _declared(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}
