"""Batches out of data of any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from inosgd.errors import InvalidArgumentError
from inosgd.examples import DatasetStore, TensorStore, as_store

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
