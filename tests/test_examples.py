"""Batches out of data of any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from inosgd.errors import InvalidArgumentError
from inosgd.examples import TensorStore, as_store

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
