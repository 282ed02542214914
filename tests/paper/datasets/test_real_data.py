"""The publishers' files, where INOSGD_DATA names a folder with them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inosgd.data.files import MissingDataError
from inosgd.paper.datasets import ASSIGNMENTS, DataSet, assign, load, model_inputs

pytestmark = pytest.mark.data


@cache
def real(name: str) -> DataSet:
    folder = os.environ.get("INOSGD_DATA")
    if not folder:
        pytest.skip("INOSGD_DATA is not set")
    try:
        return load(name, Path(folder))
    except MissingDataError as error:
        pytest.skip(str(error))


def counts(data: DataSet) -> tuple[list[int], list[int]]:
    return np.bincount(data.train.targets).tolist(), np.bincount(data.test.targets).tolist()


def test_mnist() -> None:
    data = real("mnist")
    assert counts(data) == (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    )
    assert data.input_shape == (1, 28, 28)
    assert assign(ASSIGNMENTS["MN"], data, 0).owners.table.sizes.tolist() == [30596, 29404]
    some = model_inputs(data.train, np.arange(100))
    assert (some.min(), some.max()) == (-1, 1)


def test_cifar_10() -> None:
    data = real("cifar-10")
    train, test = counts(data)
    assert len(set(train)) == len(set(test)) == 1
    assert len(train) == 10
    assert data.input_shape == (3, 32, 32)
    assert 100 < data.train.inputs.mean() < 140


def test_cifar_100() -> None:
    data = real("cifar-100")
    present = np.bincount(data.train.targets, minlength=100)
    assert set(present.tolist()) <= {0, 500}
    assert assign(ASSIGNMENTS["CF"], data, 0).owners.table.sizes.tolist() == [2500, 2500]


def test_cardiotocography() -> None:
    data = real("cardiotocography")
    assert len(data.train) + len(data.test) == 2126
    assert np.add(*counts(data)).tolist() == [1655, 295, 176]
    assert data.input_shape == (21,)
    inside = np.abs(data.train.inputs) < 1
    assert (inside.any(axis=0)).all(), "every range is wide enough for some recordings"
    assert (np.abs(data.train.inputs).max(axis=0) > 0.2).all(), "and narrow enough to tell them apart"


def test_names() -> None:
    data = real("names")
    totals = np.add(*counts(data))
    assert totals.sum() == 20074
    assert totals.max() == totals[data.classes.index("Russian")] == 9408
    assert data.input_shape == (18,)


def test_chest_xray() -> None:
    data = real("chest-xray")
    assert counts(data)[0] == [1341, 1341, 1341]
    assert len(data.test) == 624
    assert data.input_shape == (1, 64, 64)
    assert assign(ASSIGNMENTS["PN"], data, 0).owners.table.sizes.tolist() == [1341, 2682]


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("chest-xray-embeddings", "chest-xray"),
        ("cifar-10-embeddings", "cifar-10"),
        ("fish-vehicles-embeddings", "cifar-100"),
    ],
)
def test_embeddings_are_those_of_the_images(name: str, like: str) -> None:
    data, images = real(name), real(like)
    assert data.input_shape == (1280,)
    for part, whole in ((data.train, images.train), (data.test, images.test)):
        assert [data.classes[row] for row in part.targets] == [images.classes[row] for row in whole.targets]
    norms = np.linalg.norm(data.train.inputs, axis=1)
    assert 0.8 < norms.mean() < 1.3
