"""Sources: what a study's files hold, whatever their kind, before it is split and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from inosgd._arrays import FloatArray, IntArray
from inosgd.datasets.arrays import Array, array_numbers, array_texts, read_arrays
from inosgd.datasets.image_folder import ImageFormat, inside, list_images, read_images, scaled_pixels
from inosgd.datasets.scaling import Range
from inosgd.datasets.tables import Table, Texts, read_table, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.studyfile.budgets import row_epsilons
from inosgd.studyfile.encoding import (
    ArrayEncoding,
    CategoricalColumn,
    Column,
    Encoding,
    ImageEncoding,
    NumericColumn,
    TableEncoding,
    TextColumn,
)
from inosgd.studyfile.features import CategoricalFeature, Feature, NumericFeature, TextFeature
from inosgd.studyfile.reading import StudyFile
from inosgd.studyfile.schema import ArrayData, ImageData, TableData

Progress = Callable[[Sequence[Path], str], Iterable[Path]]
"""Shows how far the reading of many files has come: the same files, one after the other."""


@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """What each row is and whose it is; ``targets_from`` and ``owners_from`` say where that was read, for messages."""

    targets: Texts
    targets_from: str
    owners: Texts | None
    owners_from: str
    epsilons: FloatArray | None


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
        """The inputs of all rows: a tensor, or `Pixels`."""


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

    def encode(self, encoding: TableEncoding) -> torch.Tensor:
        """One row of numbers or symbols per row."""
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


def open_source(study: StudyFile, *, held_out: bool = False, progress: Progress | None = None) -> Source:
    """The study's training data, or the data that it keeps apart as held out."""
    data = study.schema.data
    apart = (data.held_out.path or []) if held_out else None
    if isinstance(data, TableData):
        return _open_table(study, data, data.path if apart is None else apart)
    if isinstance(data, ImageData):
        index = data.held_out.index if held_out else data.index
        return _open_images(study, data, data.path if apart is None else apart[0], index, progress)
    return _open_arrays(study, data, data.path if apart is None else apart[0])


def open_source_at(study: StudyFile, path: Path) -> Source:
    """Data of the study's kind at ``path``, which is not in the study: what owners who join bring."""
    data, name = study.schema.data, str(path.absolute())
    if isinstance(data, TableData):
        return _open_table(study, data, [name])
    if isinstance(data, ArrayData):
        return _open_arrays(study, data, name)
    if data.index is not None:
        raise InvalidArgumentError(f"{path}: images that a table lists cannot join a run; train anew with all of them")
    return _open_images(study, data, name, None, None)


def label_error(source: Source, origin: str, value: object, row: int, problem: str) -> InvalidArgumentError:
    """The error for the label of one row, to be raised by the caller; ``row`` counts from 0."""
    return InvalidArgumentError(f"{source.path}: {origin}, row {row + 1}: {shortened(str(value))!r} {problem}")


def _open_table(study: StudyFile, data: TableData, names: Sequence[str]) -> TableSource:
    paths = [study.locate(name) for name in names]
    wanted = {name: f"data.features.{name}" for name in data.features}
    table = read_table(paths, wanted | _label_columns(data), data.delimiter)
    for name, feature in data.features.items():
        if isinstance(feature, NumericFeature) and data.outside_range == "refuse" and feature.low is not None:
            _refuse_outside(table, name, feature)
    return TableSource(str(table.path), _labels(data, table), table, data.features)


def _label_columns(data: TableData | ImageData) -> dict[str, str]:
    keys = {key: getattr(data, key) for key in ("target", "owner", "epsilon")}
    return {column: f"data.{key}" for key, column in keys.items() if column is not None}


def _labels(data: TableData | ImageData, table: Table) -> Labels:
    return Labels(
        table.texts(str(data.target)),
        f"column {data.target!r}",
        None if data.owner is None else table.texts(data.owner),
        f"column {data.owner!r}",
        None if data.epsilon is None else row_epsilons(table, data.epsilon),
    )


def _refuse_outside(table: Table, name: str, feature: NumericFeature) -> None:
    outside = Range(feature.low or 0.0, feature.high or 0.0).outside(table.numbers(name))
    if outside.any():
        problem = (
            f"lies outside the declared range [{feature.low:g}, {feature.high:g}]; correct it, widen the range by "
            'what is publicly known, or bring such values to its ends with data.outside_range = "clamp"'
        )
        raise table.cell_error(name, int(np.argmax(outside)), problem)


def _column(name: str, feature: Feature, table: Table, training: IntArray) -> Column:
    if isinstance(feature, TextFeature):
        return TextColumn(name, feature.tokens, feature.max_length, feature.vocabulary_size)
    if isinstance(feature, NumericFeature):
        if feature.low is not None and feature.high is not None:
            return NumericColumn(name, Range(feature.low, feature.high))
        return NumericColumn(name, Range.fitted(table.numbers(name)[training]), fitted=True)
    return _categorical(name, feature, table, training)


def _categorical(name: str, feature: CategoricalFeature, table: Table, training: IntArray) -> CategoricalColumn:
    if feature.categories is not None:
        return CategoricalColumn(name, feature.categories)
    return CategoricalColumn(name, tuple(sorted(set(table.texts(name)[training]))), fitted=True)


def _open_images(
    study: StudyFile, data: ImageData, name: str, index: str | None, progress: Progress | None
) -> ImageSource:
    folder = study.locate(name)
    if index is None:
        files = list_images(folder, str(data.layout))
        paths = [file.path for file in files]
        targets, owners = _objects([file.target for file in files]), _objects([file.owner for file in files])
        labels = Labels(targets, "class folders", owners, "owner folders", None)
    else:
        table = read_table([study.locate(index)], {data.file: "data.file"} | _label_columns(data))
        labels = _labels(data, table)
        paths = inside(folder, table.texts(data.file).tolist(), table.path)
    form = ImageFormat(data.size[0], data.size[1], data.channels, data.resize)
    shown = paths if progress is None else progress(paths, "reading images")
    pixels = Pixels(read_images(shown, len(paths), form))
    return ImageSource(str(folder), labels, form, pixels)


def _open_arrays(study: StudyFile, data: ArrayData, name: str) -> ArraySource:
    path = study.locate(name)
    keys = {key: getattr(data, key) for key in ("inputs", "target", "owner", "epsilon")}
    arrays = read_arrays(path, {array: f"data.{key}" for key, array in keys.items() if array is not None})
    inputs = array_numbers(path, data.inputs, arrays[data.inputs])
    if inputs.ndim < 2:
        raise InvalidArgumentError(f"{path}: array {data.inputs!r} has one number per example; give a second dimension")
    if data.range is not None and data.outside_range == "refuse":
        _refuse_outside_array(path, data.inputs, Range(*data.range), inputs)
    owners = None if data.owner is None else array_texts(path, data.owner, arrays[data.owner])
    epsilons = None if data.epsilon is None else _array_epsilons(path, data.epsilon, arrays[data.epsilon])
    targets = array_texts(path, data.target, arrays[data.target])
    labels = Labels(targets, f"array {data.target!r}", owners, f"array {data.owner!r}", epsilons)
    return ArraySource(str(path), labels, path, data, inputs)


def _refuse_outside_array(path: Path, name: str, declared: Range, inputs: Array) -> None:
    outside = declared.outside(inputs).reshape(len(inputs), -1).any(axis=1)
    if outside.any():
        raise InvalidArgumentError(
            f"{path}: array {name!r}, row {int(np.argmax(outside)) + 1}: it leaves the declared data.range "
            f"[{declared.low:g}, {declared.high:g}]; correct it, widen the range by what is publicly known, or bring "
            'such values to its ends with data.outside_range = "clamp"'
        )


def _array_epsilons(path: Path, name: str, array: Array) -> FloatArray:
    epsilons = array_numbers(path, name, array).astype(np.float64)
    if epsilons.ndim != 1 or not (epsilons > 0).all():
        row = int(np.argmin(epsilons > 0)) if epsilons.ndim == 1 else 0
        raise InvalidArgumentError(
            f"{path}: array {name!r}, row {row + 1}: give one epsilon greater than 0 per example"
        )
    return epsilons


def _objects(texts: Sequence[str]) -> Texts:
    found: Texts = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found
