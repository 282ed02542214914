"""Encodings: how the rows, images or arrays of a user become the tensors of a model.

An encoding is decided before training, is saved with the model and applied to new data by ``inosgd predict``. It looks
at one example at a time. It is public: with declared ranges and categories it holds nothing of the data; what was
fitted to the training data is marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inosgd._arrays import BoolArray
from inosgd.data.arrays import Array
from inosgd.data.image_folder import ImageFormat
from inosgd.data.notation import PLAIN, Notation
from inosgd.data.scaling import Range
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError
from inosgd.study.declarations import parse_feature
from inosgd.study.features import (
    CategoricalFeature,
    DateFeature,
    Feature,
    NumericFeature,
    TextFeature,
    UnfittedFeature,
    encode,
    outside,
    width,
)
from inosgd.study.inputs import NamedInputs, Shape

NUMBERS = "numbers"
"""What the columns that are no text are called where text is beside them."""


@dataclass(frozen=True)
class TableEncoding:
    """The columns of a table side by side; or one column of text; or text beside other columns, by name.

    In the last case the model reads a dictionary: `NUMBERS` holds all columns that are no text, side by side, and every
    column of text is there under its own name.
    """

    columns: dict[str, Feature]
    notation: Notation

    @property
    def mixed(self) -> bool:
        """Whether a column of text is not alone."""
        return len(self.columns) > 1 and any(isinstance(each, TextFeature) for each in self.columns.values())

    @property
    def parts(self) -> dict[str, list[str]]:
        """Which columns are read together."""
        texts = [name for name, feature in self.columns.items() if isinstance(feature, TextFeature)]
        numbers = [name for name in self.columns if name not in texts]
        return ({NUMBERS: numbers} if numbers else {}) | {name: [name] for name in texts}

    @property
    def shape(self) -> Shape:
        """The shape of one example, or of each of its parts."""
        shapes: dict[str, tuple[int, ...]] = {
            part: (sum(width(self.columns[name]) for name in names),) for part, names in self.parts.items()
        }
        return shapes if self.mixed else next(iter(shapes.values()))

    @property
    def symbols(self) -> int | None:
        """How many symbols there are, if examples are text alone."""
        first = next(iter(self.columns.values()))
        return first.vocabulary_size if isinstance(first, TextFeature) and not self.mixed else None

    @property
    def fitted(self) -> bool:
        """Whether a range or categories were read off the training data."""
        return any(feature.fitted for feature in self.columns.values())

    def encode(self, table: Table, *, refuse_outside: bool = False) -> torch.Tensor | NamedInputs:
        """One row of numbers, or of symbols, per row of the table; or of both."""
        read = replace(table, notation=self.notation)
        tensors = {
            part: torch.from_numpy(
                np.concatenate(
                    [encode(self.columns[name], read, name, refuse_outside=refuse_outside) for name in names], axis=1
                )
            )
            for part, names in self.parts.items()
        }
        return NamedInputs(tensors) if self.mixed else next(iter(tensors.values()))

    def outside(self, table: Table) -> dict[str, BoolArray]:
        """For each column with a range which rows lie outside it."""
        read = replace(table, notation=self.notation)
        return {
            name: outside(feature, read, name)
            for name, feature in self.columns.items()
            if isinstance(feature, NumericFeature | DateFeature)
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values; `encoding_from_json` is the inverse."""
        columns = [
            {"name": name, "kind": feature.kind, "fitted": feature.fitted, **feature.to_json()}
            for name, feature in self.columns.items()
        ]
        return {"kind": "table", "columns": columns, "notation": self.notation.to_json()}


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
        return _table_encoding(fields)
    if fields["kind"] == "images":
        return image_encoding(fields["size"], fields["channels"], fields["resize"])
    limits = None if fields["range"] is None else Range(*fields["range"])
    return ArrayEncoding(fields["inputs"], tuple(fields["shape"]), limits, fields["symbols"], fields["fitted"])


def scaled_columns(ranges: Mapping[str, Range], values: Array) -> tuple[Array, TableEncoding]:
    """Columns of numbers, scaled by their ranges, and the encoding that does the same to a table."""
    inputs = np.stack([each.scaled(column) for column, each in zip(values.T, ranges.values(), strict=True)], axis=1)
    return inputs, TableEncoding({name: NumericFeature(each) for name, each in ranges.items()}, PLAIN)


def image_encoding(size: Sequence[int], channels: int, resize: bool) -> ImageEncoding:
    """The encoding of images of ``size`` (rows, columns)."""
    return ImageEncoding(ImageFormat(size[0], size[1], channels, resize))


def _table_encoding(fields: Mapping[str, Any]) -> TableEncoding:
    columns = {str(column["name"]): _feature(column) for column in fields["columns"]}
    if not columns:
        raise InvalidArgumentError("columns=[]: a table is read from at least one")
    notation = fields["notation"]
    return TableEncoding(columns, Notation(**{**notation, "missing": tuple(notation["missing"])}))


def _feature(fields: Mapping[str, Any]) -> Feature:
    declared = {key: value for key, value in fields.items() if key not in ("name", "kind", "fitted")}
    feature = parse_feature(declared)
    if isinstance(feature, UnfittedFeature):
        raise InvalidArgumentError(f"{declared!r}: a saved feature has a range or categories")
    if fields["fitted"] and isinstance(feature, NumericFeature | CategoricalFeature):
        return replace(feature, fitted=True)
    return feature
