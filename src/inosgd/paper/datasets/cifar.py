"""CIFAR-10 and CIFAR-100 in the publisher's binary version.

A record is one label byte (CIFAR-10) or two (CIFAR-100: superclass, class), then 32 x 32 red, green and blue bytes.
A file is any whole number of records, so a part of the data is as good as all of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd.data.files import read_bytes, refuse
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples

_PIXELS = 3 * 32 * 32


def load_cifar_10(folder: Path) -> DataSet:
    """CIFAR-10: bytes of shape (3, 32, 32). The training batches that are there, 1 to 5, one after the other."""
    batches = [folder / "cifar-10-batches-bin" / f"data_batch_{number}.bin" for number in range(1, 6)]
    present = [path for path in batches if path.exists()] or batches[:1]
    parts = [_examples(path, CIFAR_10, label_bytes=1) for path in present]
    train = LabelledExamples(
        np.concatenate([part.inputs for part in parts]), np.concatenate([part.targets for part in parts])
    )
    test = _examples(folder / "cifar-10-batches-bin" / "test_batch.bin", CIFAR_10, label_bytes=1)
    return DataSet("cifar-10", train, test, CIFAR_10)


def load_cifar_100(folder: Path) -> DataSet:
    """CIFAR-100 with its 100 classes: bytes of shape (3, 32, 32)."""
    train = _examples(folder / "cifar-100-binary" / "train.bin", CIFAR_100, label_bytes=2)
    test = _examples(folder / "cifar-100-binary" / "test.bin", CIFAR_100, label_bytes=2)
    return DataSet("cifar-100", train, test, CIFAR_100)


def read_records(path: Path, label_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The labels, one column per label byte, and the images of a binary file."""
    record = label_bytes + _PIXELS
    content = read_bytes(path)
    if not content or len(content) % record:
        raise refuse(path, f"{len(content):,} bytes are no whole number of records of {record:,}; fetch the file again")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, :label_bytes], records[:, label_bytes:].reshape(-1, 3, 32, 32)


def _examples(path: Path, classes: tuple[str, ...], label_bytes: int) -> LabelledExamples:
    labels, images = read_records(path, label_bytes)
    targets = labels[:, -1].astype(np.int64)
    if targets.max() >= len(classes):
        record = int(np.argmax(targets >= len(classes)))
        raise refuse(path, f"record {record} has label {targets[record]}; there are {len(classes)} classes")
    return LabelledExamples(images, targets)
