"""Sources: what a study's files hold, whatever their kind, before it is split and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from inosgd._arrays import FloatArray, IntArray
from inosgd.data.arrays import Array, array_numbers, array_texts, read_arrays
from inosgd.data.image_folder import ImageFormat, inside, list_images, read_images, scaled_pixels
from inosgd.data.scaling import Range
from inosgd.data.tables import Table, Texts, read_table, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.study.budgets import row_epsilons
from inosgd.study.encoding import (
    ArrayEncoding,
    CategoricalColumn,
    Column,
    Encoding,
    ImageEncoding,
    NumericColumn,
    TableEncoding,
    TextColumn,
)
from inosgd.study.features import CategoricalFeature, Feature, NumericFeature, TextFeature
from inosgd.study.inputs import NamedInputs
from inosgd.study.labels import Labels, named
from inosgd.study.reading import StudyFile
from inosgd.study.schema import ArrayData, ImageData, TableData

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
    features: dict[str, Feature]

    def encoding(self, training: IntArray) -> TableEncoding:
        """Declared ranges and categories; those left open are fitted to the ``training`` rows."""
        return TableEncoding(tuple(_column(name, kind, self.table, training) for name, kind in self.features.items()))

    def encode(self, encoding: TableEncoding) -> torch.Tensor | NamedInputs:
        """One row of numbers or symbols per row, or of both."""
        return encoding.encode(self.table)


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
    return InvalidArgumentError(f"{source.path}: {origin}, row {row + 1}: {shortened(str(value))!r} {problem}")


def open_table(study: StudyFile, data: TableData, names: Sequence[str]) -> TableSource:
    """A table, read into memory."""
    paths = [study.locate(name) for name in names]
    wanted = {name: f"data.features.{name}" for name in data.features}
    table = read_table(paths, wanted | _label_columns(data), data.delimiter)
    refuse_outside(data, table)
    return TableSource(str(table.path), _labels(data, table), table, data.features)


def _label_columns(data: TableData | ImageData) -> dict[str, str]:
    keys = {key: getattr(data, key) for key in ("target", "owner", "epsilon")}
    return {column: f"data.{key}" for key, column in keys.items() if column is not None}


def _labels(data: TableData | ImageData, table: Table) -> Labels:
    return Labels(
        named(table.texts(str(data.target))),
        f"column {data.target!r}",
        None if data.owner is None else named(table.texts(data.owner)),
        f"column {data.owner!r}",
        None if data.epsilon is None else row_epsilons(table, data.epsilon),
    )


def refuse_outside(data: TableData, table: Table) -> None:
    """Raise if a number lies outside its declared range, unless such numbers are to be brought to its ends."""
    for name, feature in data.features.items():
        if data.outside_range == "clamp" or not isinstance(feature, NumericFeature) or feature.low is None:
            continue
        outside = Range(feature.low, feature.high or 0.0).outside(table.numbers(name))
        if outside.any():
            problem = (
                f"lies outside the declared range [{feature.low:g}, {feature.high:g}]; correct it, widen the range by "
                'what is publicly known, or bring such values to its ends with data.outside_range = "clamp"'
            )
            raise table.cell_error(name, int(np.argmax(outside)), problem)


def declared_column(name: str, feature: Feature) -> Column | None:
    """The column if the study declares all about it; None if something is to be fitted."""
    if isinstance(feature, TextFeature):
        return TextColumn(name, feature.tokens, feature.max_length, feature.vocabulary_size)
    if isinstance(feature, CategoricalFeature):
        return None if feature.categories is None else CategoricalColumn(name, feature.categories)
    if feature.low is None or feature.high is None:
        return None
    return NumericColumn(name, Range(feature.low, feature.high))


def _column(name: str, feature: Feature, table: Table, training: IntArray) -> Column:
    declared = declared_column(name, feature)
    if declared is not None:
        return declared
    if isinstance(feature, NumericFeature):
        return NumericColumn(name, Range.fitted(table.numbers(name)[training]), fitted=True)
    return CategoricalColumn(name, tuple(sorted(set(table.texts(name)[training]))), fitted=True)


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
        table = read_table([study.locate(index)], {data.file: "data.file"} | _label_columns(data))
        labels = _labels(data, table)
        paths = inside(folder, table.texts(data.file).tolist(), table.path)
    form = ImageFormat(data.size[0], data.size[1], data.channels, data.resize)
    shown = paths if progress is None else progress(paths, "reading images")
    pixels = Pixels(read_images(shown, len(paths), form))
    return ImageSource(str(folder), labels, form, pixels)


def open_arrays(study: StudyFile, data: ArrayData, name: str) -> ArraySource:
    """Arrays, read into memory."""
    path = study.locate(name)
    keys = {key: getattr(data, key) for key in ("inputs", "target", "owner", "epsilon")}
    arrays = read_arrays(path, {array: f"data.{key}" for key, array in keys.items() if array is not None})
    inputs = array_numbers(path, data.inputs, arrays[data.inputs])
    if inputs.ndim < 2:
        raise InvalidArgumentError(f"{path}: array {data.inputs!r} has one number per example; give a second dimension")
    refuse_outside_array(data, path, inputs)
    owners = None if data.owner is None else named(array_texts(path, data.owner, arrays[data.owner]))
    epsilons = None if data.epsilon is None else array_epsilons(path, data.epsilon, arrays[data.epsilon])
    targets = named(array_texts(path, data.target, arrays[data.target]))
    labels = Labels(targets, f"array {data.target!r}", owners, f"array {data.owner!r}", epsilons)
    return ArraySource(str(path), labels, path, data, inputs)


def refuse_outside_array(data: ArrayData, path: Path, inputs: Array, first: int = 0) -> None:
    """The same for an array, or a piece of one that begins with example ``first``."""
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
