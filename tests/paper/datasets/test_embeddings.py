from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import load
from inosgd.paper.datasets.cifar_classes import CIFAR_100
from inosgd.paper.datasets.embeddings import FISH_AND_VEHICLES, FISH_VEHICLES_FILES, load_npz
from inosgd.paper.datasets.labelled import EACH_ON_ITS_OWN, OTHER_DATA
from inosgd.study.study import FITTED_SCALING, PUBLIC_RANGES
from tests.data.writers import features_of, write_embeddings

LABELS = np.repeat(np.arange(3), 20)


def pair(folder: Path, features: np.ndarray, labels: np.ndarray = LABELS) -> tuple[Path, Path]:
    np.savez(folder / "train.npz", features=features, labels=labels)
    np.savez(folder / "test.npz", features=features_of(LABELS), labels=LABELS)
    return folder / "train.npz", folder / "test.npz"


def scaled(folder: Path, features: np.ndarray, scaling: str) -> np.ndarray:
    train, test = pair(folder, features)
    np.savez(folder / "public.npz", features=features_of(LABELS) * 2 + 1)
    reference = folder / "public.npz" if scaling == OTHER_DATA else None
    data = load_npz(train, test, scaling=scaling, reference=reference)
    assert data.scaling == scaling
    assert data.classes == ("0", "1", "2")
    return data.train.inputs


def unchanged_by_a_neighbour(folder: Path, scaling: str) -> bool:
    """Whether the first example's input stays the same when the last example is another."""
    features = features_of(LABELS)
    other = features.copy()
    other[-1] = 50
    return np.array_equal(scaled(folder, features, scaling)[0], scaled(folder, other, scaling)[0])


@pytest.mark.parametrize("scaling", [EACH_ON_ITS_OWN, OTHER_DATA, PUBLIC_RANGES])
def test_an_input_depends_on_no_other_example(tmp_path: Path, scaling: str) -> None:
    assert unchanged_by_a_neighbour(tmp_path, scaling)


def test_negative_control_a_fitted_input_depends_on_the_others(tmp_path: Path) -> None:
    assert not unchanged_by_a_neighbour(tmp_path, FITTED_SCALING)


def test_fitted_features_have_standard_deviation_one_over_root_width(tmp_path: Path) -> None:
    features = features_of(LABELS)
    features[:, 0] = 3  # a constant feature says nothing
    inputs = scaled(tmp_path, features, FITTED_SCALING)
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(axis=0), [0, *[8**-0.5] * 7], atol=1e-6)


def test_each_on_its_own_gives_unit_vectors(tmp_path: Path) -> None:
    features = features_of(LABELS)
    features[0] = 2
    norms = np.linalg.norm(scaled(tmp_path, features, EACH_ON_ITS_OWN), axis=1)
    np.testing.assert_allclose(norms, [0, *[1] * 59], atol=1e-6)


def test_the_scaling_must_be_known_and_its_reference_fit(tmp_path: Path) -> None:
    train, test = pair(tmp_path, features_of(LABELS))
    with pytest.raises(InvalidArgumentError, match="scaling='min-max': give one of"):
        load_npz(train, test, scaling="min-max")
    with pytest.raises(InvalidArgumentError, match="reference=None: give a file of public features"):
        load_npz(train, test, scaling=OTHER_DATA)
    with pytest.raises(InvalidArgumentError, match="and only then"):
        load_npz(train, test, scaling=FITTED_SCALING, reference=train)
    np.savez(tmp_path / "narrow.npz", features=features_of(LABELS, width=4))
    with pytest.raises(InvalidArgumentError, match=r"narrow\.npz: features of shape \(60, 4\), expected \(N, 8\)"):
        load_npz(train, test, scaling=OTHER_DATA, reference=tmp_path / "narrow.npz")


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((2, 3, 4)), [0, 1], "expected floats of shape (N, D)"),
        (np.zeros((2, 3), dtype=np.int64), [0, 1], "expected floats of shape (N, D)"),
        (np.zeros((0, 3)), [], "expected floats of shape (N, D)"),
        (np.array([[0.0], [np.nan]]), [0, 1], "features of row 1 are not finite"),
        (np.zeros((2, 3)), [0, 1, 2], "labels of shape (3,) for 2 rows of features"),
    ],
)
def test_unfit_features_are_refused(tmp_path: Path, features: np.ndarray, labels: list, message: str) -> None:
    train, test = pair(tmp_path, features, np.array(labels, dtype=np.int64))
    with pytest.raises(InvalidArgumentError) as caught:
        load_npz(train, test)
    assert message in str(caught.value)
    assert "train.npz" in str(caught.value)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    train, test = pair(tmp_path, features_of(LABELS))
    with pytest.raises(InvalidArgumentError, match="labels go up to 2; there are 2 classes"):
        load_npz(train, test, classes=("a", "b"))


def test_fish_and_vehicles_are_renumbered_and_strangers_refused(tmp_path: Path) -> None:
    write_embeddings(tmp_path, per_class=2)
    data = load("fish-vehicles-embeddings", tmp_path)
    assert data.classes == FISH_AND_VEHICLES
    assert data.scaling == OTHER_DATA
    assert np.bincount(data.train.targets).tolist() == [2] * 10
    fine = np.array([CIFAR_100.index("shark"), CIFAR_100.index("apple")])
    np.savez(tmp_path / FISH_VEHICLES_FILES[1], features=features_of(fine), fine=fine)
    with pytest.raises(InvalidArgumentError, match="it holds 'apple', which is neither fish nor vehicle"):
        load("fish-vehicles-embeddings", tmp_path)


def test_labels_of_embedded_cifar_100_are_read_under_either_name(tmp_path: Path) -> None:
    write_embeddings(tmp_path)
    before = load("fish-vehicles-embeddings", tmp_path)
    for file in FISH_VEHICLES_FILES:
        with np.load(tmp_path / file) as arrays:
            content = {"features": arrays["features"], "labels": arrays["fine"]}
        np.savez(tmp_path / file, **content)
    assert load("fish-vehicles-embeddings", tmp_path) == before
