"""Batches out of data of any shape."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from inosgd import SeededSource, TrainingState, fit
from inosgd.errors import InvalidArgumentError
from inosgd.examples import DatasetStore, TensorStore, TransformedStore, as_store
from tests import tiny

ROWS = torch.arange(12).reshape(6, 2)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        (ROWS, ROWS[[4, 1]]),
        (ROWS.numpy(), ROWS[[4, 1]]),
        ((ROWS, np.arange(6)), (ROWS[[4, 1]], torch.tensor([4, 1]))),
        ({"x": ROWS}, {"x": ROWS[[4, 1]]}),
        ([ROWS, (ROWS,)], [ROWS[[4, 1]], (ROWS[[4, 1]],)]),
    ],
    ids=["tensor", "array", "tuple", "dictionary", "nested"],
)
def test_trees_of_tensors_and_arrays(data, batch):
    store = as_store(data)
    assert len(store) == 6
    torch.testing.assert_close(store.take(np.array([4, 1])), batch)


def test_a_store_is_taken_as_it_is():
    store = TensorStore(ROWS)
    assert as_store(store) is store


class Lines(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        return {"x": ROWS[index].float(), "y": index}


def test_datasets_also_empty_batches():
    store = as_store(Lines(6))
    batch = store.take(np.array([2, 5]))
    assert batch["x"].tolist() == [[4, 5], [10, 11]]
    assert batch["y"].tolist() == [2, 5]
    assert store.take(np.zeros(0, dtype=np.int64))["x"].shape == (0, 2)


def test_an_empty_dataset_and_uneven_tensors_are_refused():
    with pytest.raises(InvalidArgumentError, match="data set is empty"):
        as_store(Lines(0))
    with pytest.raises(InvalidArgumentError, match=r"first dimensions \[5, 6\]"):
        as_store((ROWS, ROWS[:5]))


class Sentences(Dataset):
    """Sequences of two, three, ... symbols, with a label each."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int):
        return {"symbols": torch.arange(index + 2), "label": index}


def test_examples_of_unequal_lengths_are_refused_by_their_shapes():
    store = as_store(Sentences())
    assert store.take(np.array([3]))["symbols"].tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(InvalidArgumentError, match=r"shapes \(2,\) and \(5,\) in one batch.*pad or cut all") as caught:
        store.take(np.array([0, 3, 1]))
    assert isinstance(caught.value.__context__, RuntimeError)  # what torch had to say is kept


def test_a_collate_of_ones_own_may_pad():
    def padded(examples):
        symbols = nn.utils.rnn.pad_sequence([each["symbols"] for each in examples], batch_first=True)
        return {"symbols": symbols, "label": torch.tensor([each["label"] for each in examples])}

    store = as_store(DatasetStore(Sentences(), collate=padded))
    assert store.take(np.array([1, 0]))["symbols"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert store.take(np.zeros(0, dtype=np.int64))["symbols"].shape == (0, 2)


def test_other_errors_of_a_data_set_are_its_own():
    class Uneven(Lines):
        def __getitem__(self, index):
            return {"x": index} if index else {"y": index}

    with pytest.raises(InvalidArgumentError, match="differ in structure"):
        as_store(Uneven(6)).take(np.array([0, 1]))

    def broken(examples):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        DatasetStore(Lines(6), collate=broken).take(np.array([0, 1]))


class Endless(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize(
    ("examples", "instead"),
    [(DataLoader(TensorDataset(ROWS)), "loader.dataset"), (Endless(), "a map-style Dataset or tensors")],
)
def test_what_draws_its_own_batches_is_refused(examples, instead):
    with pytest.raises(
        InvalidArgumentError, match=f"examples: a {type(examples).__name__} decides .* give .*{instead}"
    ):
        as_store(examples)


class Slow(Lines):
    """Reads late examples first, so that workers finish out of order."""

    def __getitem__(self, index: int) -> dict:
        time.sleep(0.002 * (6 - index))
        return super().__getitem__(index)


def test_workers_read_the_same_batch_bit_by_bit_and_leave_no_thread():
    before = threading.active_count()
    indices = np.array([5, 0, 3, 1])
    alone, shared = DatasetStore(Slow(6)), DatasetStore(Slow(6), workers=3)
    for name, value in alone.take(indices).items():
        assert torch.equal(shared.take(indices)[name], value)
    assert shared.take(np.zeros(0, dtype=np.int64))["x"].shape == (0, 2)
    assert threading.active_count() == before
    with pytest.raises(InvalidArgumentError, match="workers=-1"):
        DatasetStore(Slow(6), workers=-1)


def test_an_error_in_a_worker_is_the_data_sets_own():
    class Broken(Lines):
        def __getitem__(self, index: int) -> dict:
            raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        DatasetStore(Broken(6), workers=2).take(np.array([0, 1]))


def test_a_training_with_workers_is_the_same_training():
    def trained(store) -> bytes:
        trainer, model, optimizer = tiny.parts(tiny.PLAN)
        trainer = dataclasses.replace(trainer, examples=store)
        fit(trainer, TrainingState.start(trainer, model, optimizer, SeededSource(0)), steps=4)
        return tiny.bits(model)

    dataset = Pairs()
    assert trained(DatasetStore(dataset)) == trained(DatasetStore(dataset, workers=2))
    doubled = TransformedStore(DatasetStore(dataset), lambda batch: (2 * batch[0], batch[1]))
    assert trained(doubled) != trained(DatasetStore(dataset))  # the control: other inputs, another model


class Pairs(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple:
        inputs, targets = tiny.examples(40)
        return inputs[index], targets[index]


def test_a_transform_of_each_example_is_applied_to_batches():
    store = TransformedStore(ROWS.float(), lambda batch: batch / 2)
    assert len(store) == 6
    assert store.take(np.array([1, 2])).tolist() == [[1.0, 1.5], [2.0, 2.5]]
    assert as_store(store) is store


@pytest.mark.parametrize(
    "transform",
    [
        lambda batch: (batch - batch.mean(0)) / batch.std(0, correction=0).clamp(1e-3),
        lambda batch: batch + torch.randn_like(batch),
        lambda batch: batch.flip(0),
        lambda batch: batch.cumsum(0),
        lambda batch: batch[:1],
    ],
    ids=["normalised by the batch", "random", "moved", "summed", "fewer rows"],
)
def test_a_transform_that_mixes_examples_is_refused(transform):
    """What one example contributes would depend on the others, which no threshold bounds."""
    with torch.random.fork_rng(), pytest.raises(InvalidArgumentError, match="depends on other rows"):
        TransformedStore(ROWS.float(), transform)
