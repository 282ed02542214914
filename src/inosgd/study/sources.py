"""Sources: what a study's files hold, whatever their kind, before it is split and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from inosgd._arrays import FloatArray, IntArray
from inosgd.data.arrays import Array, array_numbers, array_texts, read_arrays
from inosgd.data.image_folder import ImageFormat, inside, list_images, read_images, scaled_pixels
from inosgd.data.scaling import Range
from inosgd.data.tables import Table, Texts, column_names, read_table, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.study.budgets import row_epsilons
from inosgd.study.encoding import ArrayEncoding, Encoding, ImageEncoding, TableEncoding
from inosgd.study.features import UnfittedFeature, fit
from inosgd.study.inputs import NamedInputs
from inosgd.study.labels import Labels, label_texts, named
from inosgd.study.reading import StudyFile
from inosgd.study.schema import ArrayData, ImageData, StudySchema, TableData, label_names, notation_of, used_columns
from inosgd.study.targets import array_targets, origin, table_targets

Progress = Callable[[Sequence[Path], str], Iterable[Path]]
"""Shows how far the reading of many files has come: the same files, one after the other."""


class Source(Protocol):
    """Rows with labels, not yet encoded. Sensitive."""

    @property
    def path(self) -> str:
        """The file or folder, for messages."""

    @property
    def labels(self) -> Labels:
        """What each row is and whose it is."""

    def encoding(self, training: IntArray) -> Encoding:
        """The declared encoding; what is not declared is fitted to the ``training`` rows."""

    def encode(self, encoding: Any) -> Any:
        """The inputs of all rows: a tensor, or what is turned into one when it is taken."""


@dataclass(frozen=True, eq=False, repr=False)
class Pixels:
    """Images held as bytes and scaled to -1 to 1 when they are taken: a quarter of the memory."""

    pixels: torch.Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: Any) -> torch.Tensor:
        return scaled_pixels(self.pixels[rows])

    def only(self, rows: torch.Tensor) -> Pixels:
        """Some of the images, still as bytes."""
        return Pixels(self.pixels[rows])

    def followed_by(self, other: Pixels) -> Pixels:
        """These images, then those of ``other``."""
        return Pixels(torch.cat([self.pixels, other.pixels]))


@dataclass(frozen=True, eq=False, repr=False)
class TableSource:
    """Rows of a table."""

    path: str
    labels: Labels
    table: Table
    data: TableData

    def encoding(self, training: IntArray) -> TableEncoding:
        """Declared ranges and categories; those left open are fitted to the ``training`` rows."""
        chosen = np.zeros(len(self.table), dtype=np.bool_)
        chosen[training] = True
        columns = {
            name: fit(feature, self.table.only(chosen, name), name) if isinstance(feature, UnfittedFeature) else feature
            for name, feature in self.data.features.items()
        }
        return TableEncoding(columns, self.table.notation)

    def encode(self, encoding: TableEncoding) -> torch.Tensor | NamedInputs:
        """One row of numbers or symbols per row, or of both."""
        return encoding.encode(self.table, refuse_outside=self.data.outside_range == "refuse")


@dataclass(frozen=True, eq=False, repr=False)
class ImageSource:
    """Images, read into memory as bytes."""

    path: str
    labels: Labels
    form: ImageFormat
    pixels: Pixels

    def encoding(self, training: IntArray) -> ImageEncoding:
        """Nothing is fitted: the format is declared."""
        return ImageEncoding(self.form)

    def encode(self, encoding: ImageEncoding) -> Pixels:
        """The pixels."""
        return self.pixels


@dataclass(frozen=True, eq=False, repr=False)
class ArraySource:
    """Arrays of an ``.npz`` file."""

    path: str
    labels: Labels
    file: Path
    data: ArrayData
    inputs: Array

    def encoding(self, training: IntArray) -> ArrayEncoding:
        """The declared range; one left open is fitted to the ``training`` rows."""
        shape = tuple(self.inputs.shape[1:])
        if self.data.vocabulary_size is not None:
            return ArrayEncoding(self.data.inputs, shape, symbols=self.data.vocabulary_size)
        if self.data.range is not None:
            return ArrayEncoding(self.data.inputs, shape, Range(*self.data.range))
        return ArrayEncoding(self.data.inputs, shape, Range.fitted(self.inputs[training]), fitted=True)

    def encode(self, encoding: ArrayEncoding) -> torch.Tensor:
        """The scaled array."""
        return encoding.encode(self.file, self.inputs)


def label_error(source: Source, origin: str, value: object, row: int, problem: str) -> InvalidArgumentError:
    """The error for the label of one row, to be raised by the caller; ``row`` counts from 0."""
    place = source.labels.position(row) + 1
    return InvalidArgumentError(f"{source.path}: {origin}, row {place}: {shortened(str(value))!r} {problem}")


def open_table(study: StudyFile, data: TableData, names: Sequence[str]) -> TableSource:
    """A table, read into memory."""
    paths = [study.locate(name) for name in names]
    table = rows_with_values(data, read_table(paths, used_columns(data), data.delimiter))
    if not len(table):
        raise no_row_left(data, str(table.path))
    return TableSource(str(table.path), _labels(study.schema, data, table), table, data)


def unused_columns(study: StudyFile) -> list[str]:
    """Columns of the study's tables that it neither uses nor ignores by name; of files that are still there."""
    data = study.schema.data
    if not isinstance(data, TableData):
        return []
    paths = [path for path in map(study.locate, data.path) if path.is_file()]
    present = dict.fromkeys(name for path in paths for name in column_names(path, data.delimiter))
    return [name for name in present if name not in (*used_columns(data), *data.ignore)]


def rows_with_values(data: TableData, table: Table) -> Table:
    """The table in the study's notation, without rows that lack a value in a column of ``data.drop_missing``.

    Guarantee: whether a row stays depends on that row and on the study file alone. The others keep their numbers.
    """
    read = replace(table, notation=notation_of(data))
    stay = np.ones(len(read), dtype=np.bool_)
    for column in data.drop_missing:
        stay &= ~read.missing(column, _names_in(data, column))
    return read.only(stay)


def no_row_left(data: TableData, path: str) -> InvalidArgumentError:
    """The error for a table without a row that can be used, to be raised by the caller."""
    shown = ", ".join(map(repr, data.drop_missing))
    return InvalidArgumentError(
        f"{path}: every row lacks a value in one of data.drop_missing, {shown}; correct the columns or data.missing"
    )


def _names_in(data: TableData, column: str) -> Sequence[str]:
    """Texts that are declared as names in the column, and therefore not missing."""
    if column in data.target:
        return data.classes or ()
    return data.features[column].known if column in data.features else ()


def _labels(study: StudySchema, data: TableData | ImageData, table: Table) -> Labels:
    return Labels(
        table_targets(study, data, [table]),
        origin("column", data),
        None if data.owner is None else named(label_texts(data, table, data.owner)),
        f"column {data.owner!r}",
        None if data.epsilon is None else row_epsilons(table, data.epsilon),
        table.rows,
        None if data.unit is None else named(label_texts(data, table, data.unit)),
        f"column {data.unit!r}",
    )


def open_images(
    study: StudyFile, data: ImageData, name: str, index: str | None, progress: Progress | None
) -> ImageSource:
    """Images, read into memory."""
    folder = study.locate(name)
    if index is None:
        files = list_images(folder, str(data.layout))
        paths = [file.path for file in files]
        targets, owners = (_objects([getattr(file, key) for file in files]) for key in ("target", "owner"))
        labels = Labels(named(targets), "class folders", named(owners), "owner folders", None)
    else:
        table = read_table([study.locate(index)], {data.file: "data.file"} | label_names(data))
        labels = _labels(study.schema, data, table)
        paths = inside(folder, table.texts(data.file).tolist(), table.path)
    form = ImageFormat(data.size[0], data.size[1], data.channels, data.resize)
    shown = paths if progress is None else progress(paths, "reading images")
    pixels = Pixels(read_images(shown, len(paths), form))
    return ImageSource(str(folder), labels, form, pixels)


def open_arrays(study: StudyFile, data: ArrayData, name: str) -> ArraySource:
    """Arrays, read into memory."""
    path = study.locate(name)
    arrays = read_arrays(path, {data.inputs: "data.inputs"} | label_names(data))
    inputs = array_numbers(path, data.inputs, arrays[data.inputs])
    if inputs.ndim < 2:
        raise InvalidArgumentError(f"{path}: array {data.inputs!r} has one number per example; give a second dimension")
    refuse_outside_array(data, path, inputs)
    owners = None if data.owner is None else named(array_texts(path, data.owner, arrays[data.owner]))
    epsilons = None if data.epsilon is None else array_epsilons(path, data.epsilon, arrays[data.epsilon])
    targets = array_targets(study.schema, data, path, {name: [(0, arrays[name])] for name in data.target})
    units = None if data.unit is None else named(array_texts(path, data.unit, arrays[data.unit]))
    labels = Labels(
        targets, origin("array", data), owners, f"array {data.owner!r}", epsilons, None, units, f"array {data.unit!r}"
    )
    return ArraySource(str(path), labels, path, data, inputs)


def refuse_outside_array(data: ArrayData, path: Path, inputs: Array, first: int = 0) -> None:
    """Raise if a value lies outside the declared range; a piece of an array begins with example ``first``."""
    if data.range is None or data.outside_range == "clamp":
        return
    declared = Range(*data.range)
    outside = declared.outside(inputs).reshape(len(inputs), -1).any(axis=1)
    if outside.any():
        raise InvalidArgumentError(
            f"{path}: array {data.inputs!r}, row {first + int(np.argmax(outside)) + 1}: it leaves the declared "
            f"data.range [{declared.low:g}, {declared.high:g}]; correct it, widen the range by what is publicly known, "
            'or bring such values to its ends with data.outside_range = "clamp"'
        )


def array_epsilons(path: Path, name: str, array: Array, first: int = 0) -> FloatArray:
    """A flat array of budgets, each greater than 0; a piece of one begins with example ``first``."""
    epsilons = array_numbers(path, name, array, first).astype(np.float64)
    if epsilons.ndim != 1 or not (epsilons > 0).all():
        row = int(np.argmin(epsilons > 0)) if epsilons.ndim == 1 else 0
        raise InvalidArgumentError(
            f"{path}: array {name!r}, row {first + row + 1}: give one epsilon greater than 0 per example"
        )
    return epsilons


def _objects(texts: Sequence[str]) -> Texts:
    found: Texts = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found
