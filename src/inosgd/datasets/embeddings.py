"""Embeddings: features of a pretrained network, from .npz files with ``features`` (N, D) and ``labels`` (N,).

Scaling is a choice with a price:

| `scaling`        | an input becomes                                                      | costs privacy |
| ---              | ---                                                                   | ---           |
| `EACH_ON_ITS_OWN`| itself, less its own mean, divided by its own norm: a unit vector      | no            |
| `FITTED`         | each feature less its mean over the training examples, divided by its | yes, and      |
|                  | standard deviation there and by sqrt(D)                               | unaccounted   |
| `PUBLIC_RANGES`  | itself                                                                | no            |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd.datasets import chest_xray
from inosgd.datasets.cifar_classes import CIFAR_10, CIFAR_100, FISH, VEHICLES
from inosgd.datasets.files import refuse
from inosgd.datasets.labelled import EACH_ON_ITS_OWN, FITTED, PUBLIC_RANGES, DataSet, LabelledExamples
from inosgd.datasets.npz import check_labels, read_npz

Features = npt.NDArray[np.float32]

FISH_AND_VEHICLES = tuple(name for name in CIFAR_100 if name in FISH or name in VEHICLES)


def load_cifar_10_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for CIFAR-10."""
    train, test = _pair(folder / "embeddings", "cifar10_{}_efficientnet_lite1.npz")
    return load_npz(train, test, name="cifar-10-embeddings", classes=CIFAR_10)


def load_chest_xray_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for chest X-rays."""
    train, test = _pair(folder / "chest_xray", "{}_efficientnet_lite1.npz")
    return load_npz(train, test, name="chest-xray-embeddings", classes=chest_xray.CLASSES)


def load_fish_vehicles_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for the fish and vehicles of CIFAR-100; ten classes."""
    train, test = _pair(folder / "embeddings", "cifar100fv_{}_efficientnet_lite1.npz")
    whole = load_npz(train, test, name="fish-vehicles-embeddings", classes=CIFAR_100, labels="fine")
    number_of = np.full(len(CIFAR_100), -1)
    number_of[[CIFAR_100.index(name) for name in FISH_AND_VEHICLES]] = np.arange(len(FISH_AND_VEHICLES))
    parts = []
    for path, examples in ((train, whole.train), (test, whole.test)):
        targets = number_of[examples.targets]
        if (targets < 0).any():
            stranger = CIFAR_100[examples.targets[int(np.argmin(targets))]]
            raise refuse(path, f"it holds {stranger!r}, which is neither fish nor vehicle")
        parts.append(LabelledExamples(examples.inputs, targets))
    return DataSet(whole.name, parts[0], parts[1], FISH_AND_VEHICLES, whole.scaling)


def load_npz(
    train: Path,
    test: Path,
    *,
    name: str = "embeddings",
    classes: tuple[str, ...] | None = None,
    labels: str = "labels",
    scaling: str = FITTED,
) -> DataSet:
    """A data set from two .npz files of embeddings.

    Args:
        train: Features and labels to train on.
        test: Features and labels held out.
        name: What to call the data set.
        classes: Names of the classes; if None, the numbers from 0 to the largest label in ``train``.
        labels: The name of the array of labels.
        scaling: A row of the table above.
    """
    if scaling not in _SCALINGS:
        raise _validate.fail("scaling", scaling, f"give one of: {', '.join(repr(known) for known in _SCALINGS)}")
    (seen, targets), (held_out, held_out_targets) = _read(train, labels), _read(test, labels)
    if classes is None:
        classes = tuple(str(number) for number in range(int(targets.max()) + 1))
    scale = _SCALINGS[scaling](seen)
    return DataSet(
        name=name,
        train=LabelledExamples(scale(seen), targets),
        test=LabelledExamples(scale(held_out), held_out_targets),
        classes=classes,
        scaling=scaling,
    )


def scale_each(features: Features) -> Features:
    """Every row less its mean, divided by its norm; a constant row becomes 0.

    >>> scale_each(np.array([[1, 3], [2, 2]], dtype=np.float32)).round(3)
    array([[-0.707,  0.707],
           [ 0.   ,  0.   ]], dtype=float32)
    """
    centred: Features = features - features.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    norms[norms == 0] = 1
    scaled: Features = (centred / norms).astype(np.float32)
    return scaled


def _fit_standardisation(train: Features) -> Callable[[Features], Features]:
    centre = train.mean(axis=0, dtype=np.float64).astype(np.float32)
    spread = train.std(axis=0, dtype=np.float64).astype(np.float32)
    spread[spread == 0] = 1
    return lambda features: (features - centre) / (spread * np.float32(np.sqrt(train.shape[1])))


_SCALINGS: dict[str, Callable[[Features], Callable[[Features], Features]]] = {
    EACH_ON_ITS_OWN: lambda _: scale_each,
    FITTED: _fit_standardisation,
    PUBLIC_RANGES: lambda _: np.array,
}


def _read(path: Path, labels: str) -> tuple[Features, npt.NDArray[np.int64]]:
    arrays = read_npz(path, "features", labels)
    features = arrays["features"]
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise refuse(path, f"features are {features.dtype} of shape {features.shape}; expected floats of shape (N, D)")
    if not np.isfinite(features).all():
        raise refuse(path, f"features of row {int(np.argmin(np.isfinite(features).all(axis=1)))} are not finite")
    return features.astype(np.float32), check_labels(path, arrays[labels], len(features), "rows of features")


def _pair(folder: Path, pattern: str) -> tuple[Path, Path]:
    return folder / pattern.format("train"), folder / pattern.format("test")
