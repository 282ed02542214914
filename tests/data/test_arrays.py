"""``.npz`` files are read without executing anything; names and numbers are checked."""

from __future__ import annotations

import numpy as np
import pytest

from inosgd.data.arrays import array_numbers, array_texts, read_arrays
from inosgd.errors import InvalidArgumentError


def test_only_what_is_wanted_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((3, 2)), other=np.array([object()]))
    assert read_arrays(tmp_path / "a.npz", {"x": "inputs"})["x"].shape == (3, 2)


def test_python_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "a.npz", x=np.array([Trap()], dtype=object))
    with pytest.raises(InvalidArgumentError, match="without Python objects"):
        read_arrays(tmp_path / "a.npz", {"x": "inputs"})
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(("array", "words"), [(np.float64(3), "single value"), (np.zeros((0, 2)), "empty")])
def test_arrays_without_examples(tmp_path, array, words):
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(InvalidArgumentError, match=words):
        read_arrays(tmp_path / "a.npz", {"x": "inputs"})


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (np.array([3, 1]), ["3", "1"]),
        (np.array(["a ", "ü"]), ["a", "ü"]),
        (np.array([b"a", "ü".encode()]), ["a", "ü"]),
        (np.array([2**63 + 1, 1], dtype=np.uint64), ["9223372036854775809", "1"]),
    ],
)
def test_names(tmp_path, array, texts):
    assert array_texts(tmp_path, "x", array).tolist() == texts


def test_a_row_that_is_not_finite_is_named(tmp_path):
    values = np.ones((4, 2, 2))
    assert array_numbers(tmp_path, "x", values) is values
    values[2, 1, 0] = np.inf
    with pytest.raises(InvalidArgumentError, match="row 3"):
        array_numbers(tmp_path, "x", values)
    with pytest.raises(InvalidArgumentError, match="row 2: it is empty"):
        array_texts(tmp_path, "x", np.array(["a", " "]))
