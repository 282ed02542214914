from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.npz import names_in, read_npz
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.chest_xray import load_chest_xray
from tests.data.writers import write_chest_xray
from tests.properties import tries


def npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def packed(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_round_trip(tmp_path: Path, save) -> None:
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(12.0).reshape(3, 4), "y": np.asfortranarray(np.eye(3, dtype=np.float16)), "z": np.array(2)}
    save(path, **arrays)
    assert names_in(path) == ("x", "y", "z")
    for name, array in read_npz(path, "x", "y", "z").items():
        assert array.dtype == arrays[name].dtype
        assert np.array_equal(array, arrays[name])


class Bomb:
    exploded = False

    def __reduce__(self) -> tuple:
        return (setattr, (Bomb, "exploded", True))


def test_pickled_objects_are_refused_and_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez(path, images=np.array([Bomb()], dtype=object))
    with pytest.raises(InvalidArgumentError, match="holds object, not numbers"):
        read_npz(path, "images")
    path = packed(tmp_path / "plain.npz", pickle.dumps(Bomb()))
    with pytest.raises(InvalidArgumentError, match="no header"):
        read_npz(path, "images")
    assert not Bomb.exploded
    np.load(tmp_path / "bomb.npz", allow_pickle=True)["images"]  # negative control: elsewhere it goes off
    assert Bomb.exploded


@pytest.mark.parametrize("shape", [(2**40,), (2**20, 2**20, 2**20), (101,), (99,)])
def test_a_header_that_does_not_fit_makes_no_room(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = packed(tmp_path / "lie.npz", npy_header(shape) + b"\0" * 100)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match=r"lie\.npz: array 'images': its header of shape"):
            read_npz(path, "images")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_entry_that_claims_too_much_makes_no_room(tmp_path: Path) -> None:
    path = packed(tmp_path / "lie.npz", npy_header((2**31,)) + b"\0" * 100)
    content = path.read_bytes()
    size = (len(npy_header((2**31,))) + 100).to_bytes(4, "little")
    path.write_bytes(content.replace(size, (len(npy_header((2**31,))) + 2**31).to_bytes(4, "little")))
    with pytest.raises(InvalidArgumentError, match="more than the file can hold"):
        read_npz(path, "images")


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", other=np.zeros(1))
    with pytest.raises(InvalidArgumentError, match=r"no array 'images' in it; it holds other\.npy"):
        read_npz(tmp_path / "a.npz", "images")


@tries(15)
@given(st.data())
def test_no_truncation_or_flipped_byte_is_read_as_something_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    array = np.arange(500, dtype=np.uint16)
    np.savez_compressed(folder / "a.npz", images=array)
    content = bytearray((folder / "a.npz").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    (folder / "a.npz").write_bytes(content)
    try:
        read = read_npz(folder / "a.npz", "images")["images"]
    except InvalidArgumentError as refusal:
        message = str(refusal)
    else:  # a byte that means nothing, such as the time of the entry
        message = "a.npz" if np.array_equal(read, array) else "read as something else"
    assert "a.npz" in message


def test_chest_xrays(tmp_path: Path) -> None:
    write_chest_xray(tmp_path, per_class=2)
    data = load_chest_xray(tmp_path)
    assert data.input_shape == (1, 64, 64)
    assert data.train.inputs[:, 0, 0, 0].tolist() == data.train.targets.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 64, 64), dtype=np.float32), np.zeros(2, dtype=np.uint8), "expected uint8"),
        (np.zeros((2, 32, 64), dtype=np.uint8), np.zeros(2, dtype=np.uint8), "expected uint8 of shape (N, 64, 64)"),
        (np.zeros((2, 64, 64), dtype=np.uint8), np.zeros(3, dtype=np.uint8), "labels of shape (3,) for 2 images"),
        (np.zeros((2, 64, 64), dtype=np.uint8), np.zeros(2), "labels must be whole numbers"),
        (np.zeros((2, 64, 64), dtype=np.uint8), np.array([0, -1]), "labels must be whole numbers"),
        (np.zeros((2, 64, 64), dtype=np.uint8), np.array([0, 3]), "label 3"),
    ],
)
def test_unfit_chest_xrays_are_refused(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    write_chest_xray(tmp_path)
    np.savez(tmp_path / "chest_xray" / "test_images_64.npz", images=images, labels=labels)
    with pytest.raises(InvalidArgumentError) as caught:
        load_chest_xray(tmp_path)
    assert message in str(caught.value)
    assert "test_images_64.npz" in str(caught.value)
