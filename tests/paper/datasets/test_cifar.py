from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.cifar import load_cifar_10, load_cifar_100, read_records
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100, FISH, VEHICLES
from tests.data.writers import cifar_bytes, write_cifar


def test_batches_are_joined_and_the_fine_label_is_the_class(tmp_path: Path) -> None:
    write_cifar(tmp_path, per_class=2)
    ten, hundred = load_cifar_10(tmp_path), load_cifar_100(tmp_path)
    assert (len(ten.train), len(ten.test)) == (40, 20)
    assert ten.input_shape == hundred.input_shape == (3, 32, 32)
    assert np.bincount(ten.train.targets).tolist() == [4] * 10
    assert np.bincount(hundred.train.targets).tolist() == [2] * 100


def test_planes_are_red_green_blue(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(bytes([7]) + b"\x01" * 1024 + b"\x02" * 1024 + b"\x03" * 1024)
    labels, images = read_records(path, label_bytes=1)
    assert labels.tolist() == [[7]]
    assert images.reshape(3, -1).min(axis=1).tolist() == images.reshape(3, -1).max(axis=1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("length", [0, 1, 3072, 3074])
def test_no_whole_number_of_records_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(b"\0" * length)
    with pytest.raises(InvalidArgumentError, match=r"cut\.bin: .*no whole number of records of 3,073"):
        read_records(path, label_bytes=1)


def test_unknown_labels_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").write_bytes(cifar_bytes(np.array([3, 10])))
    with pytest.raises(InvalidArgumentError, match=r"data_batch_2\.bin: record 1 has label 10; there are 10 classes"):
        load_cifar_10(tmp_path)


def test_class_names_are_distinct_and_alphabetical() -> None:
    assert len(set(CIFAR_10)) == 10
    assert len(set(CIFAR_100)) == 100
    assert sorted(CIFAR_100) == list(CIFAR_100)
    assert set(FISH + VEHICLES) < set(CIFAR_100)
