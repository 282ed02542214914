"""Embeddings: features of a pretrained network, from .npz files with ``features`` (N, D) and ``labels`` (N,).

Scaling is a choice with a price:

| `scaling`         | an input becomes                                                        | costs privacy    |
| ---               | ---                                                                     | ---              |
| `EACH_ON_ITS_OWN` | itself, less its own mean, divided by its own norm: a unit vector        | no               |
| `OTHER_DATA`      | each feature less its mean over other, public examples, divided by its  | no               |
|                   | standard deviation there and by sqrt(D)                                 |                  |
| `FITTED_SCALING`  | the same with means and deviations of the training examples themselves  | yes, unaccounted |
| `PUBLIC_RANGES`   | itself                                                                  | no               |

CIFAR-10 is standardised by fish and vehicles, and these by CIFAR-10. Measured with linear heads on both (IDP-SGD,
INO-SGD and a fair plan, 3 seeds, 7 learning rates), overall accuracy under either of the first two rows was within 2.1
points of the third. Chest X-rays are unlike either, so each is scaled on its own: at the best of four learning rates
IDP-SGD lost 2.8 points of balanced accuracy against `FITTED_SCALING` (73.9 and 76.7%, 2 seeds).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd.data.files import refuse
from inosgd.data.npz import check_labels, names_in, read_npz
from inosgd.paper.datasets import chest_xray
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100, FISH, VEHICLES
from inosgd.paper.datasets.labelled import EACH_ON_ITS_OWN, OTHER_DATA, DataSet, LabelledExamples
from inosgd.study.study import FITTED_SCALING, PUBLIC_RANGES

Features = npt.NDArray[np.float32]

FISH_AND_VEHICLES = tuple(name for name in CIFAR_100 if name in FISH or name in VEHICLES)


CIFAR_10_FILES = (
    "embeddings/cifar10_train_efficientnet_lite1.npz",
    "embeddings/cifar10_test_efficientnet_lite1.npz",
)
FISH_VEHICLES_FILES = (
    "embeddings/cifar100fv_train_efficientnet_lite1.npz",
    "embeddings/cifar100fv_test_efficientnet_lite1.npz",
)
CHEST_XRAY_FILES = ("chest_xray/train_efficientnet_lite1.npz", "chest_xray/test_efficientnet_lite1.npz")


def load_cifar_10_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for CIFAR-10, standardised by fish and vehicles."""
    train, test = (folder / file for file in CIFAR_10_FILES)
    reference = folder / FISH_VEHICLES_FILES[0]
    return load_npz(train, test, name="cifar-10-embeddings", classes=CIFAR_10, scaling=OTHER_DATA, reference=reference)


def load_chest_xray_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for chest X-rays, each scaled on its own."""
    train, test = (folder / file for file in CHEST_XRAY_FILES)
    return load_npz(train, test, name="chest-xray-embeddings", classes=chest_xray.CLASSES)


def load_fish_vehicles_embeddings(folder: Path) -> DataSet:
    """1,280 features of a pretrained EfficientNet-Lite1 for the fish and vehicles of CIFAR-100, ten classes.

    Standardised by CIFAR-10. The labels, ``fine`` or ``labels``, are class numbers of CIFAR-100.
    """
    train, test = (folder / file for file in FISH_VEHICLES_FILES)
    whole = load_npz(
        train,
        test,
        name="fish-vehicles-embeddings",
        classes=CIFAR_100,
        labels="fine" if "fine" in names_in(train) else "labels",
        scaling=OTHER_DATA,
        reference=folder / CIFAR_10_FILES[0],
    )
    parts = [_ten_classes(path, examples) for path, examples in ((train, whole.train), (test, whole.test))]
    return DataSet(whole.name, parts[0], parts[1], FISH_AND_VEHICLES, whole.scaling)


def _ten_classes(path: Path, examples: LabelledExamples) -> LabelledExamples:
    number_of = np.full(len(CIFAR_100), -1)
    number_of[[CIFAR_100.index(name) for name in FISH_AND_VEHICLES]] = np.arange(len(FISH_AND_VEHICLES))
    targets = number_of[examples.targets]
    if (targets < 0).any():
        stranger = CIFAR_100[examples.targets[int(np.argmin(targets))]]
        raise refuse(path, f"it holds {stranger!r}, which is neither fish nor vehicle")
    return LabelledExamples(examples.inputs, targets)


def load_npz(
    train: Path,
    test: Path,
    *,
    name: str = "embeddings",
    classes: tuple[str, ...] | None = None,
    labels: str = "labels",
    scaling: str = EACH_ON_ITS_OWN,
    reference: Path | None = None,
) -> DataSet:
    """A data set from two .npz files of embeddings.

    Args:
        train: Features and labels to train on.
        test: Features and labels held out.
        name: What to call the data set.
        classes: Names of the classes; if None, the numbers from 0 to the largest label.
        labels: The name of the array of labels.
        scaling: A row of the table above.
        reference: A file of public features, for `OTHER_DATA` only.
    """
    (seen, targets), (held_out, held_out_targets) = _read(train, labels), _read(test, labels)
    if classes is None:
        classes = tuple(str(number) for number in range(int(max(targets.max(), held_out_targets.max())) + 1))
    elif max(targets.max(), held_out_targets.max()) >= len(classes):
        worse = train if targets.max() >= len(classes) else test
        raise refuse(
            worse,
            f"labels go up to {max(targets.max(), held_out_targets.max())}; "
            f"there are {len(classes)} classes, numbered from 0",
        )
    scale = _scale(scaling, seen, reference)
    return DataSet(
        name=name,
        train=LabelledExamples(scale(seen), targets),
        test=LabelledExamples(scale(held_out), held_out_targets),
        classes=classes,
        scaling=scaling,
    )


def _scale(scaling: str, train: Features, reference: Path | None) -> Callable[[Features], Features]:
    if (scaling == OTHER_DATA) != (reference is not None):
        raise _validate.fail(
            "reference", reference, f"give a file of public features with {OTHER_DATA!r}, and only then"
        )
    if reference is not None:
        (features,) = read_npz(reference, "features").values()
        if features.shape[1:] != train.shape[1:]:
            raise refuse(reference, f"features of shape {features.shape}, expected (N, {train.shape[1]})")
        return standardise_by(features)
    if scaling not in _SCALINGS:
        raise _validate.fail("scaling", scaling, f"give one of: {', '.join(map(repr, (*_SCALINGS, OTHER_DATA)))}")
    return _SCALINGS[scaling](train)


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


def standardise_by(others: npt.NDArray[np.floating]) -> Callable[[Features], Features]:
    """Standardisation by the statistics of ``others``, then division by sqrt(D), so that norms are about one."""
    centre = others.mean(axis=0, dtype=np.float64).astype(np.float32)
    spread = others.std(axis=0, dtype=np.float64).astype(np.float32)
    spread[spread == 0] = 1
    return lambda features: (features - centre) / (spread * np.float32(np.sqrt(others.shape[1])))


_SCALINGS: dict[str, Callable[[Features], Callable[[Features], Features]]] = {
    EACH_ON_ITS_OWN: lambda _: scale_each,
    FITTED_SCALING: standardise_by,
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
