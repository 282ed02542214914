"""Labelled examples, and data sets made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import ArrayValue, IntArray, frozen_integers
from inosgd.errors import InvalidArgumentError
from inosgd.study.study import PUBLIC_RANGES

Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int64]

EACH_ON_ITS_OWN = "each example on its own"
OTHER_DATA = "statistics of other, public data"


@dataclass(frozen=True, eq=False, repr=False)
class LabelledExamples(ArrayValue):
    """Inputs with one row per example, and the class number of each.

    Images stay bytes (uint8, channels first) until `model_inputs` takes them out: a quarter of the memory. Features
    are float32, characters int64. Both arrays are read-only.
    """

    inputs: Inputs
    targets: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _read_only(self.inputs))
        object.__setattr__(self, "targets", frozen_integers(self.targets))
        if self.inputs.dtype not in (np.uint8, np.float32, np.int64):
            raise _validate.fail("inputs.dtype", str(self.inputs.dtype), "give uint8, float32 or int64")
        if self.targets.ndim != 1:
            raise _validate.fail("targets.shape", self.targets.shape, "give one class number per example")
        _validate.same_length(inputs=self.inputs, targets=self.targets)

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class DataSet(ArrayValue):
    """Training and test examples of the same classes.

    Attributes:
        name: What the data set is called.
        train: Examples to train on. Sensitive.
        test: Held-out examples.
        classes: The name of each class; a target is a row of it.
        scaling: How inputs came to be of order one. With `PUBLIC_RANGES`, `EACH_ON_ITS_OWN` and `OTHER_DATA` an input
            depends on no training example but itself, which costs no privacy. `FITTED_SCALING` means that statistics
            of the training examples went into every input: whatever is trained on them has a privacy loss that no
            ledger holds, and cards and reports say so.
    """

    name: str
    train: LabelledExamples
    test: LabelledExamples
    classes: tuple[str, ...]
    scaling: str = PUBLIC_RANGES

    def __post_init__(self) -> None:
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InvalidArgumentError(
                f"{self.name}: training inputs have shape {self.train.inputs.shape[1:]} and test inputs "
                f"{self.test.inputs.shape[1:]}; give inputs of one shape"
            )
        for part, examples in (("train", self.train), ("test", self.test)):
            if len(examples) and not 0 <= examples.targets.min() <= examples.targets.max() < len(self.classes):
                raise InvalidArgumentError(
                    f"{self.name}: {part} has targets from {examples.targets.min()} to {examples.targets.max()}; "
                    f"there are {len(self.classes)} classes, numbered from 0"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.train.inputs.shape[1:]


def model_inputs(examples: LabelledExamples, rows: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
    """A fresh array of the inputs at ``rows`` (all of them if None) as models take them.

    Bytes become float32 from -1 to 1; features and characters are as they are.

    >>> model_inputs(LabelledExamples(np.array([[0, 51], [255, 255]], dtype=np.uint8), np.array([0, 1])), [0])
    array([[-1. , -0.6]], dtype=float32)
    """
    chosen = examples.inputs if rows is None else examples.inputs[np.asarray(rows, dtype=np.int64)]
    return scale_pixels(chosen) if chosen.dtype == np.uint8 else np.array(chosen)


def scale_pixels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Bytes 0 to 255 as float32 from -1 to 1. The range of a pixel is public: nothing is learnt from the data."""
    scaled = pixels.astype(np.float32)
    scaled /= np.float32(127.5)
    scaled -= np.float32(1)
    return scaled


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view
