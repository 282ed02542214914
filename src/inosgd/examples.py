"""Examples: taking a batch out of the data, whatever shape the data have.

The data are a tensor or array, a tuple, list or dictionary of them with one row per example, or a map-style
torch ``Dataset``. A batch has the same shape with fewer rows; an empty batch has none.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset, default_collate

from inosgd._arrays import IntArray
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import Examples, count_examples


@runtime_checkable
class ExampleStore(Protocol):
    """Random access to examples by index."""

    def __len__(self) -> int:
        """The number of examples."""

    def take(self, indices: IntArray) -> Examples:
        """The batch of the examples at ``indices``, in that order."""


class TensorStore:
    """Examples held as a tree of tensors."""

    def __init__(self, tensors: Examples) -> None:
        self._tensors = pytree.tree_map(_as_tensor, tensors)
        self._count = count_examples(self._tensors)

    def __len__(self) -> int:
        return self._count

    def take(self, indices: IntArray) -> Examples:
        """The rows at ``indices`` of every tensor."""
        rows = torch.from_numpy(indices)
        return pytree.tree_map(lambda tensor: tensor[rows.to(tensor.device)], self._tensors)


class DatasetStore:
    """Examples read one by one from a map-style ``Dataset`` and collated."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        self._count = len(dataset)  # type: ignore[arg-type]
        if self._count == 0:
            raise InvalidArgumentError("examples: the data set is empty; give at least one example")

    def __len__(self) -> int:
        return self._count

    def take(self, indices: IntArray) -> Examples:
        """The collated examples; an empty batch is the shape of the first example with no rows."""
        if len(indices) == 0:
            return pytree.tree_map(lambda tensor: tensor[:0], default_collate([self._dataset[0]]))
        return default_collate([self._dataset[index] for index in indices.tolist()])


def as_store(examples: Any) -> ExampleStore:
    """The store for ``examples``: a tree of tensors, a ``Dataset``, or a store already."""
    if isinstance(examples, TensorDataset):
        return TensorStore(examples.tensors)
    if isinstance(examples, Dataset):
        return DatasetStore(examples)
    if isinstance(examples, ExampleStore) and not isinstance(examples, torch.Tensor | np.ndarray):
        return examples
    return TensorStore(examples)


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
