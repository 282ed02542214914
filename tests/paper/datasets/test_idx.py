from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.idx import load_mnist, read_idx
from tests.data.writers import idx_bytes, write_mnist
from tests.properties import tries

IMAGES = np.arange(3 * 2 * 2).reshape(3, 2, 2)


def written(path: Path, content: bytes, packed: bool = False) -> Path:
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path / "images", idx_bytes(IMAGES), packed)
    assert np.array_equal(read_idx(path, (2, 2)), IMAGES)


@tries(10)
@given(st.integers(0, len(idx_bytes(IMAGES)) - 1), st.booleans())
def test_every_truncation_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory, kept: int, packed: bool) -> None:
    path = written(tmp_path_factory.mktemp("idx") / "cut-images", idx_bytes(IMAGES)[:kept], packed)
    with pytest.raises(InvalidArgumentError, match="cut-images"):
        read_idx(path, (2, 2))


@tries(10)
@given(st.data())
def test_every_truncation_of_gzip_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = gzip.compress(idx_bytes(IMAGES))
    path = tmp_path_factory.mktemp("idx") / "cut-images.gz"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InvalidArgumentError, match=r"cut-images\.gz"):
        read_idx(path, (2, 2))


def test_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(idx_bytes(IMAGES)))
    whole[-6] ^= 0xFF  # within the checksum
    path = tmp_path / "images.gz"
    path.write_bytes(whole)
    with pytest.raises(InvalidArgumentError, match="corrupt gzip"):
        read_idx(path, (2, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes(IMAGES) + b"x", "and more follow"),
        (b"\x00\x00\x0d\x03" + idx_bytes(IMAGES)[4:], "it starts with '00000d03'"),
        (idx_bytes(IMAGES[0]), "it starts with"),
        (idx_bytes(IMAGES.reshape(3, 4, 1)), "items have shape (4, 1)"),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_idx(written(tmp_path / "images", content), (2, 2))
    assert message in str(caught.value)
    assert str(tmp_path / "images") in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_an_absurd_header_makes_no_room(tmp_path: Path, packed: bool) -> None:
    lie = bytes([0, 0, 8, 3]) + (2**32 - 1).to_bytes(4, "big") + (256).to_bytes(4, "big") * 2
    path = written(tmp_path / "images", lie + b"\0" * 100, packed)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="more than the file can hold"):
            read_idx(path, (256, 256))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_mnist_from_packed_and_unpacked_files(tmp_path: Path) -> None:
    write_mnist(tmp_path, per_class=2)
    packed = load_mnist(tmp_path)
    for path in list((tmp_path / "mnist").iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert load_mnist(tmp_path) == packed
    assert packed.input_shape == (1, 28, 28)
    assert packed.train.targets.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert packed.train.inputs[:, 0, 0, 0].tolist() == (np.repeat(np.arange(10), 2) * 20).tolist()


def test_labels_must_fit_the_images(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.arange(5))))
    with pytest.raises(InvalidArgumentError, match="5 labels for 30 images"):
        load_mnist(tmp_path)
    labels.write_bytes(gzip.compress(idx_bytes(np.full(30, 10))))
    with pytest.raises(InvalidArgumentError, match="label 10"):
        load_mnist(tmp_path)
