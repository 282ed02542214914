"""Encodings: how the rows, images or arrays of a user become the tensors of a model.

An encoding is decided before training, is saved with the model and applied to new data by ``inosgd predict``. It looks
at one example at a time. It is public: with declared ranges and categories it holds nothing of the data; what was
fitted to the training data is marked as such.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inosgd._arrays import BoolArray
from inosgd.data.arrays import Array
from inosgd.data.image_folder import ImageFormat
from inosgd.data.scaling import Range
from inosgd.data.tables import Table, Texts, closest
from inosgd.errors import InvalidArgumentError
from inosgd.study.inputs import NamedInputs, Shape

WORD = re.compile(r"\w+")
MOST_SYMBOLS = 100_000
NUMBERS = "numbers"
"""What the columns that are no text are called where text is beside them."""


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, scaled to -1 to 1."""

    name: str
    range: Range
    fitted: bool = False

    width = 1

    def encode(self, table: Table) -> npt.NDArray[np.float32]:
        """One number per row; what lies outside the range is brought to its ends."""
        return self.range.scaled(table.numbers(self.name))[:, None]

    def outside(self, table: Table) -> BoolArray:
        """Which rows lie outside the range."""
        return self.range.outside(table.numbers(self.name))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name, "kind": "numeric", "low": self.range.low, "high": self.range.high, "fitted": self.fitted
        }  # fmt: skip


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories, one number each: 1 for the row's own and 0 for the others."""

    name: str
    categories: tuple[str, ...]
    fitted: bool = False

    @property
    def width(self) -> int:
        """As many numbers as categories."""
        return len(self.categories)

    def encode(self, table: Table) -> npt.NDArray[np.float32]:
        """One-hot rows; a category that is not known is refused by its row."""
        codes = codes_of(table.texts(self.name), self.categories)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            known = closest(table.value(self.name, row), self.categories)
            raise table.cell_error(self.name, row, f"is none of the column's categories; {known}")
        return np.eye(len(self.categories), dtype=np.float32)[codes]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name, "kind": "categorical", "categories": list(self.categories), "fitted": self.fitted
        }  # fmt: skip


@dataclass(frozen=True)
class TextColumn:
    """A column of text as symbols: 0 is padding, the others are bytes + 1 or a public hash of words."""

    name: str
    tokens: str
    max_length: int
    vocabulary_size: int

    fitted = False

    @property
    def width(self) -> int:
        """How many symbols an example has, padding included."""
        return self.max_length

    def encode(self, table: Table) -> npt.NDArray[np.int64]:
        """Symbols, cut after ``max_length`` and filled up with 0 behind."""
        symbols = np.zeros((len(table), self.max_length), dtype=np.int64)
        for row, text in enumerate(table.texts(self.name, empty=True)):
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
        """Plain values."""
        return {
            "name": self.name, "kind": "text", "tokens": self.tokens, "max_length": self.max_length,
            "vocabulary_size": self.vocabulary_size,
        }  # fmt: skip


Column = NumericColumn | CategoricalColumn | TextColumn


@dataclass(frozen=True)
class TableEncoding:
    """The columns of a table side by side; or one column of text; or text beside other columns, by name.

    In the last case the model reads a dictionary: `NUMBERS` holds all columns that are no text, side by side, and every
    column of text is there under its own name.
    """

    columns: tuple[Column, ...]

    @property
    def mixed(self) -> bool:
        """Whether a column of text is not alone."""
        return len(self.columns) > 1 and any(isinstance(column, TextColumn) for column in self.columns)

    @property
    def parts(self) -> dict[str, tuple[Column, ...]]:
        """Which columns are read together."""
        numbers = tuple(column for column in self.columns if not isinstance(column, TextColumn))
        texts = {column.name: (column,) for column in self.columns if isinstance(column, TextColumn)}
        return {NUMBERS: numbers, **texts} if numbers else dict(texts)

    @property
    def shape(self) -> Shape:
        """The shape of one example, or of each of its parts."""
        shapes: dict[str, tuple[int, ...]] = {
            name: (sum(column.width for column in part),) for name, part in self.parts.items()
        }
        return shapes if self.mixed else next(iter(shapes.values()))

    @property
    def symbols(self) -> int | None:
        """How many symbols there are, if examples are text alone."""
        first = self.columns[0]
        return first.vocabulary_size if isinstance(first, TextColumn) and not self.mixed else None

    @property
    def fitted(self) -> bool:
        """Whether a range or categories were read off the training data."""
        return any(column.fitted for column in self.columns)

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [column.name for column in self.columns]

    def encode(self, table: Table) -> torch.Tensor | NamedInputs:
        """One row of numbers, or of symbols, per row of the table; or of both."""
        tensors = {
            name: torch.from_numpy(np.concatenate([column.encode(table) for column in part], axis=1))
            for name, part in self.parts.items()
        }
        return NamedInputs(tensors) if self.mixed else next(iter(tensors.values()))

    def outside(self, table: Table) -> dict[str, BoolArray]:
        """For each numeric column which rows lie outside its range."""
        return {column.name: column.outside(table) for column in self.columns if isinstance(column, NumericColumn)}

    def to_json(self) -> dict[str, Any]:
        """Plain values; `encoding_from_json` is the inverse."""
        return {"kind": "table", "columns": [column.to_json() for column in self.columns]}


@dataclass(frozen=True)
class ImageEncoding:
    """Images of a declared format; the range of a byte is public."""

    form: ImageFormat

    fitted = False
    symbols = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, rows, columns."""
        return (self.form.channels, self.form.height, self.form.width)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        form = self.form
        return {
            "kind": "images", "size": [form.height, form.width], "channels": form.channels, "resize": form.resize
        }  # fmt: skip


@dataclass(frozen=True)
class ArrayEncoding:
    """An array of numbers with one range for all, or of symbols from 0 to ``symbols`` - 1."""

    name: str
    shape: tuple[int, ...]
    range: Range | None = None
    symbols: int | None = None
    fitted: bool = False

    def encode(self, path: Path, array: Array, first: int = 0) -> torch.Tensor:
        """Numbers scaled to -1 to 1, or symbols as they are; a piece of an array begins with example ``first``."""
        if array.shape[1:] != self.shape:
            raise InvalidArgumentError(
                f"{path}: array {self.name!r} has examples of shape {array.shape[1:]}, not {self.shape}; reshape it"
            )
        if self.range is not None:
            return torch.from_numpy(self.range.scaled(array))
        wrong = (array < 0) | (array >= (self.symbols or 0))
        if not np.issubdtype(array.dtype, np.integer) or wrong.any():
            row = first + int(np.argmax(wrong.reshape(len(array), -1).any(axis=1)))
            raise InvalidArgumentError(
                f"{path}: array {self.name!r}, row {row + 1}: symbols are whole numbers from 0, the padding, to "
                f"{(self.symbols or 0) - 1}; correct them, or data.vocabulary_size"
            )
        return torch.from_numpy(array.astype(np.int64))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        limits = None if self.range is None else [self.range.low, self.range.high]
        return {
            "kind": "npz", "inputs": self.name, "shape": list(self.shape), "range": limits, "symbols": self.symbols,
            "fitted": self.fitted,
        }  # fmt: skip


Encoding = TableEncoding | ImageEncoding | ArrayEncoding


def encoding_from_json(fields: Mapping[str, Any]) -> Encoding:
    """The inverse of an encoding's ``to_json``."""
    if fields["kind"] == "table":
        columns = tuple(_column(column) for column in fields["columns"])
        if not columns:
            raise InvalidArgumentError("columns=[]: a table is read from at least one")
        return TableEncoding(columns)
    if fields["kind"] == "images":
        return image_encoding(fields["size"], fields["channels"], fields["resize"])
    limits = None if fields["range"] is None else Range(*fields["range"])
    return ArrayEncoding(fields["inputs"], tuple(fields["shape"]), limits, fields["symbols"], fields["fitted"])


def image_encoding(size: Sequence[int], channels: int, resize: bool) -> ImageEncoding:
    """The encoding of images of ``size`` (rows, columns)."""
    return ImageEncoding(ImageFormat(size[0], size[1], channels, resize))


def codes_of(texts: Texts, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """The position of each text among ``names``; -1 where it is none of them."""
    position = {name: index for index, name in enumerate(names)}
    return np.fromiter((position.get(text, -1) for text in texts), dtype=np.int64, count=len(texts))


def _column(fields: Mapping[str, Any]) -> Column:
    name = str(fields["name"])
    if fields["kind"] == "numeric":
        return NumericColumn(name, Range(float(fields["low"]), float(fields["high"])), bool(fields["fitted"]))
    if fields["kind"] == "categorical":
        return CategoricalColumn(name, tuple(str(each) for each in fields["categories"]), bool(fields["fitted"]))
    length = int(fields["max_length"])
    if not 1 <= length <= MOST_SYMBOLS:
        raise InvalidArgumentError(f"max_length={length}: give a whole number from 1 to {MOST_SYMBOLS:,}")
    return TextColumn(name, str(fields["tokens"]), length, int(fields["vocabulary_size"]))
