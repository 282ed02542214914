"""``inosgd embed`` from the outside, with a small network in the place of timm's."""

from __future__ import annotations

import stat
import sys

import numpy as np
import pytest
from PIL import Image

from inosgd.paper.datasets import load_npz
from tests.data.test_networks import FakeTimm
from tests.data.writers import write_cardiotocography, write_chest_xray, write_cifar


@pytest.fixture(autouse=True)
def _timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", FakeTimm())


TINY = ("--model", "tiny", "--random-weights")


@pytest.fixture
def photographs(tmp_path):
    for row, name in enumerate(("cat/a.png", "cat/deep/b.png", "dog/c.jpg")):
        path = tmp_path / "photographs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9 + row, 7), (row * 80, 10, 200)).save(path)
    return tmp_path / "photographs"


def test_a_folder_of_classes_becomes_a_file_to_train_on(inosgd, photographs, tmp_path):
    outcome = inosgd("embed", photographs, *TINY, "--out", "f.npz")
    assert outcome.code == 0, outcome.err
    assert "3 images, 5 features each, 2 classes" in outcome.out
    assert "these features mean nothing" in outcome.err
    with np.load(tmp_path / "f.npz", allow_pickle=False) as arrays:
        assert arrays["labels"].tolist() == [0, 0, 1]
        assert arrays["classes"].tolist() == ["cat", "dog"]
    data = load_npz(tmp_path / "f.npz", tmp_path / "f.npz")
    assert data.train.inputs.shape == (3, 5)
    assert stat.S_IMODE((tmp_path / "f.npz").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.npz", "photographs"]


def test_features_do_not_depend_on_the_batch(inosgd, photographs, tmp_path):
    for batch in (1, 3):
        assert inosgd("embed", photographs, *TINY, "--out", f"{batch}.npz", "--batch", batch).code == 0
    with np.load(tmp_path / "1.npz") as one, np.load(tmp_path / "3.npz") as three:
        np.testing.assert_allclose(one["features"], three["features"], atol=1e-6)
        assert len(np.unique(one["features"], axis=0)) == 3


def test_the_images_of_a_data_set(inosgd, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    write_cifar(folder)
    write_chest_xray(folder)
    assert inosgd("embed", "cifar-10", *TINY, "--out", "a.npz", "--data", folder).code == 0
    monkeypatch.setenv("INOSGD_DATA", str(folder))
    assert inosgd("embed", "chest-xray", *TINY, "--out", "b.npz", "--part", "test", "--size", 12).code == 0
    with np.load("a.npz") as cifar, np.load("b.npz") as chest:
        assert np.bincount(cifar["labels"]).tolist() == [4] * 10
        assert cifar["classes"][0] == "airplane"
        assert chest["features"].shape == (12, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", *TINY), "images='nowhere': there is no such folder; give one, or a data set of: mnist"),
        (("photographs", *TINY, "--part", "all"), "part='all': give train or test"),
        (("photographs", *TINY, "--batch", "0"), "batch=0"),
        (("photographs", *TINY, "--size", "0"), "size=0"),
        (("photographs", "--model", "huge"), "model='huge'"),
        (("photographs/cat", *TINY), "images lie in a folder for each class"),
        (("mnist", *TINY, "--data", "absent"), "there is no such folder"),
        (("cardiotocography", *TINY, "--data", "data"), "this data set has no images"),
    ],
)
def test_requests_that_cannot_be_met(inosgd, photographs, tmp_path, arguments, message):
    (tmp_path / "data").mkdir()
    write_cardiotocography(tmp_path / "data")
    outcome = inosgd("embed", *arguments, "--out", "f.npz")
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    assert not (tmp_path / "f.npz").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [("there.npz", "already exists"), ("f.npy", "ends in .npz"), ("absent/f.npz", "there is no folder")],
)
def test_where_nothing_can_be_written(inosgd, photographs, tmp_path, out, message):
    (tmp_path / "there.npz").write_bytes(b"kept")
    outcome = inosgd("embed", photographs, *TINY, "--out", out)
    assert outcome.code == 2
    assert message in outcome.err
    assert (tmp_path / "there.npz").read_bytes() == b"kept"


def test_a_broken_image_leaves_no_file(inosgd, photographs, tmp_path):
    (photographs / "dog" / "d.png").write_bytes(b"no image")
    outcome = inosgd("embed", photographs, *TINY, "--out", "f.npz")
    assert outcome.code == 2
    assert "d.png" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["photographs"]


def test_without_timm_the_extra_is_named(inosgd, photographs, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    outcome = inosgd("embed", photographs, *TINY, "--out", "f.npz")
    assert outcome.code == 2
    assert "inosgd[embed]" in outcome.err
