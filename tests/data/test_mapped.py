"""Arrays that stay on disk: batches as from memory, and nothing but their rows is touched."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd import SeededSource, Trainer, TrainingState
from inosgd.data.mapped import MappedArray, MappedExamples
from inosgd.errors import InvalidArgumentError
from inosgd.examples import ExampleStore, TensorStore, as_store
from inosgd.training import fit
from tests import tiny


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    arrays = {"inputs": rng.integers(0, 256, (50, 3), dtype=np.uint8), "targets": rng.integers(0, 2, 50)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}, arrays


@given(st.lists(st.integers(0, 49), max_size=60))
def test_batches_are_those_of_memory(stored, rows):
    paths, arrays = stored
    batch = MappedExamples.open(paths).take(np.array(rows, dtype=np.int64))
    torch.testing.assert_close(batch, TensorStore(arrays).take(np.array(rows, dtype=np.int64)), rtol=0, atol=0)


def test_it_is_a_store_of_any_shape(stored):
    paths, arrays = stored
    store = MappedExamples.open((paths["inputs"], [str(paths["targets"])]))
    assert isinstance(store, ExampleStore)
    assert as_store(store) is store
    assert len(store) == 50
    inputs, (targets,) = store.take(np.array([4]))
    assert inputs.tolist() == arrays["inputs"][[4]].tolist()
    assert targets.tolist() == arrays["targets"][[4]].tolist()
    halves = MappedExamples.open(paths["inputs"], transform=lambda batch: batch.float() / 2)
    assert halves.take(np.array([7])).tolist() == (arrays["inputs"][[7]] / 2).tolist()


def test_pieces_and_other_byte_orders(tmp_path):
    np.save(tmp_path / "big.npy", np.arange(10, dtype=">f4"))
    mapped = MappedArray.open(tmp_path / "big.npy")
    assert mapped.piece(8, 20).tolist() == [8, 9]
    assert mapped.piece(8, 20).dtype.isnative
    assert MappedExamples.open(tmp_path / "big.npy").take(np.array([3])).tolist() == [3]


def test_a_training_is_the_same_to_the_bit(tmp_path):
    inputs, targets = tiny.examples(40)
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    np.save(tmp_path / "targets.npy", targets.numpy())
    mapped = MappedExamples.open((tmp_path / "inputs.npy", tmp_path / "targets.npy"))
    states = []
    for examples in (mapped, (inputs, targets)):
        trainer, model, optimizer = tiny.parts(tiny.PLAN)
        trainer = Trainer(tiny.PLAN, trainer.owners, examples, tiny.LOSSES, trainer.method)
        states.append(fit(trainer, TrainingState.start(trainer, model, optimizer, SeededSource(0)), steps=4))
    assert tiny.bits(states[0].model) == tiny.bits(states[1].model)


def replace(path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: replace(path, path.read_bytes()),
        lambda path: path.unlink(),
        lambda path: os.truncate(path, path.stat().st_size - 4),
        lambda path: os.utime(path, ns=(0, 12345)),
    ],
    ids=["replaced", "removed", "cut short", "written to"],
)
def test_a_file_that_changes_under_the_training_is_refused(tmp_path, change):
    path = tmp_path / "inputs.npy"
    np.save(path, np.zeros((6, 2), dtype=np.float32))
    examples = MappedExamples.open(path)
    examples.take(np.array([0, 5]))
    change(path)
    with pytest.raises(InvalidArgumentError, match=r"inputs.npy: it was changed, replaced or removed while"):
        examples.take(np.array([0]))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["a", "b"]), "holds <U1, not numbers"),
        (np.zeros((4, 2), order="F"), "stored column by column"),
        (np.zeros((0, 2)), r"shape \(0, 2\); give at least one row"),
        (np.array(3.0), r"shape \(\)"),
        (np.zeros(3, dtype=np.longdouble), "which torch does not have"),
        (np.zeros(3, dtype=[("a", np.int64)]), "not numbers"),
        (np.array([1j]), "holds complex128, not numbers"),
    ],
    ids=["text", "by columns", "empty", "one value", "long double", "structured", "complex"],
)
def test_arrays_that_cannot_be_examples_are_refused(tmp_path, array, words):
    np.save(tmp_path / "array.npy", array)
    with pytest.raises(InvalidArgumentError, match=words):
        MappedExamples.open(tmp_path / "array.npy")


def test_spoiled_files_and_unequal_lengths_are_refused(tmp_path):
    np.save(tmp_path / "long.npy", np.zeros(9))
    np.save(tmp_path / "short.npy", np.zeros(8))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "long.npy").read_bytes()[:-1])
    (tmp_path / "other.npy").write_bytes(b"text")
    with pytest.raises(InvalidArgumentError, match=r"long.npy has 9, .*short.npy has 8 rows"):
        MappedExamples.open((tmp_path / "long.npy", tmp_path / "short.npy"))
    with pytest.raises(InvalidArgumentError, match="needs 200 bytes, it has 199"):
        MappedExamples.open(tmp_path / "cut.npy")
    with pytest.raises(InvalidArgumentError, match="no header that can be read"):
        MappedExamples.open(tmp_path / "other.npy")
    with pytest.raises(InvalidArgumentError, match="there is no such file"):
        MappedExamples.open(tmp_path / "none.npy")
    with pytest.raises(InvalidArgumentError, match=r"at least one \.npy file"):
        MappedExamples.open([])
