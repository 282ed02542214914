"""Tiny made-up data in the shape of the real ones, for trying programs out without any file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import IntArray
from inosgd.paper.datasets import cardiotocography, chest_xray, names
from inosgd.paper.datasets.assignments import Assignment
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100
from inosgd.paper.datasets.embeddings import FISH_AND_VEHICLES
from inosgd.paper.datasets.labelled import DataSet, Inputs, LabelledExamples

_DIGITS = tuple(str(digit) for digit in range(10))

SHAPES: dict[str, tuple[tuple[int, ...], type[np.generic], tuple[str, ...]]] = {
    "mnist": ((1, 28, 28), np.uint8, _DIGITS),
    "cifar-10": ((3, 32, 32), np.uint8, CIFAR_10),
    "cifar-100": ((3, 32, 32), np.uint8, CIFAR_100),
    "cardiotocography": ((21,), np.float32, cardiotocography.CLASSES),
    "names": ((names.LENGTH,), np.int64, names.LANGUAGES),
    "chest-xray": ((1, 64, 64), np.uint8, chest_xray.CLASSES),
    "chest-xray-embeddings": ((1280,), np.float32, chest_xray.CLASSES),
    "cifar-10-embeddings": ((1280,), np.float32, CIFAR_10),
    "fish-vehicles-embeddings": ((1280,), np.float32, FISH_AND_VEHICLES),
}
"""The shape and type of an input of each data set, and its classes."""


def synthetic(
    assignment: Assignment,
    data_set: str | None = None,
    *,
    train_per_class: int = 12,
    test_per_class: int = 4,
    seed: int = 0,
) -> DataSet:
    """Noise around one random centre per class: what any model learns, for each class that ``assignment`` needs.

    ``data_set`` is one of those that the assignment is for, the first if None.
    """
    name = assignment.data_sets[0] if data_set is None else data_set
    if name not in assignment.data_sets:
        raise _validate.fail("data_set", name, f"{assignment.name} is for {' or '.join(assignment.data_sets)}")
    _validate.whole(1, train_per_class=train_per_class, test_per_class=test_per_class)
    shape, dtype, classes = SHAPES[name]
    used = np.array([row for row, label in enumerate(classes) if label in assignment.classes])
    generator = np.random.default_rng(seed)
    centres = generator.uniform(-1, 1, size=(len(classes), *shape)).astype(np.float32)

    def examples(per_class: int) -> LabelledExamples:
        targets = generator.permutation(np.repeat(used, per_class))
        return LabelledExamples(_inputs(centres, targets, dtype, generator), targets)

    return DataSet(name, examples(train_per_class), examples(test_per_class), classes, scaling="made up")


def _inputs(
    centres: npt.NDArray[np.float32], targets: IntArray, dtype: type[np.generic], generator: np.random.Generator
) -> Inputs:
    """Noisy centres as features from -1 to 1, bytes, or lower-case letters."""
    noise = generator.normal(0, 0.2, size=(len(targets), *centres.shape[1:])).astype(np.float32)
    features: npt.NDArray[np.float32] = np.clip(centres[targets] + noise, -1, 1)
    if dtype == np.uint8:
        return np.asarray((features + 1) * 127.5, dtype=np.uint8)
    if dtype == np.int64:
        return np.asarray(ord("a") + (features + 1) * 12.5, dtype=np.int64)
    return features
