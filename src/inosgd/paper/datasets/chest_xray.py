"""Chest X-rays of children (Kermany et al. 2018): normal, bacterial and viral pneumonia.

Read from ``chest_xray/train_images_64.npz`` and ``test_images_64.npz``: ``images``, bytes of shape (N, 64, 64), and
``labels`` 0, 1 and 2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inosgd.data.files import refuse
from inosgd.data.npz import check_labels, read_npz
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples

CLASSES = ("normal", "bacterial pneumonia", "viral pneumonia")


def load_chest_xray(folder: Path) -> DataSet:
    """Grey images as bytes of shape (1, 64, 64)."""
    return DataSet(
        name="chest-xray",
        train=_read(folder / "chest_xray" / "train_images_64.npz"),
        test=_read(folder / "chest_xray" / "test_images_64.npz"),
        classes=CLASSES,
    )


def _read(path: Path) -> LabelledExamples:
    arrays = read_npz(path, "images", "labels")
    images = arrays["images"]
    if images.dtype != np.uint8 or images.shape[1:] != (64, 64):
        raise refuse(path, f"images are {images.dtype} of shape {images.shape}; expected uint8 of shape (N, 64, 64)")
    targets = check_labels(path, arrays["labels"], len(images), "images")
    if len(targets) and targets.max() >= len(CLASSES):
        raise refuse(path, f"label {targets.max()}; expected 0 (normal), 1 (bacterial) or 2 (viral)")
    return LabelledExamples(images[:, None], targets)
