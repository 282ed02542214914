"""Examples: taking a batch out of the data, whatever shape the data have.

The data are a tensor or array, a tuple, list or dictionary of them with one row per example, or a map-style
torch ``Dataset``. A batch has the same shape with fewer rows; an empty batch has none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from inosgd import _validate
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


Collate = Callable[[list[Any]], Examples]
"""From a list of examples to a batch: a tree of tensors with one row per example."""


class DatasetStore:
    """Examples read one by one from a map-style ``Dataset`` and collated.

    Examples of unequal lengths need padding. To one length for all of them, in the data set, is always right. A
    ``collate`` of one's own that pads to the longest of the batch is right only if the model ignores padding: otherwise
    an example's gradient depends on which others were drawn, and neither clipping nor the guarantee holds.

    With ``workers``, so many threads read the examples of a batch, for a data set that waits for disks or decodes
    images. The batch is the same, example by example and bit by bit: only who reads is divided up.
    """

    def __init__(self, dataset: Dataset[Any], collate: Collate = default_collate, *, workers: int = 0) -> None:
        _validate.whole(0, workers=workers)
        self._dataset, self._collate, self._workers = dataset, collate, workers
        self._count = len(dataset)  # type: ignore[arg-type]
        if self._count == 0:
            raise InvalidArgumentError("examples: the data set is empty; give at least one example")

    def __len__(self) -> int:
        return self._count

    def take(self, indices: IntArray) -> Examples:
        """The collated examples; an empty batch is the shape of the first example with no rows."""
        if len(indices) == 0:
            return pytree.tree_map(lambda tensor: tensor[:0], self._collate([self._dataset[0]]))
        examples = self._read(indices.tolist())
        try:
            return self._collate(examples)
        except Exception:
            _refuse_unequal_shapes(examples)
            raise

    def _read(self, indices: list[int]) -> list[Any]:
        """The examples in the order of ``indices``, whichever process or thread read them."""
        if not self._workers:
            return [self._dataset[index] for index in indices]
        with ThreadPoolExecutor(self._workers) as readers:  # as long as the batch: no thread outlives it
            return list(readers.map(self._dataset.__getitem__, indices))


Transform = Callable[[Examples], Examples]
"""From a batch to a batch with the same number of rows."""


class TransformedStore:
    """Examples that are changed when they are taken, a batch at once: scaled, cast, or embedded by a public network.

    Guarantee:
        Row n of a batch must depend on example n alone, and always in the same way. Otherwise adding one example
        changes what others contribute, and no threshold bounds that. This is tried on the first examples: a transform
        whose rows differ from one batch to another is refused. It cannot be tried for all batches: one that normalises
        by the batch, or that draws at random, is refused; one that does so only now and then is not found.

    | transform                        |                                          |
    | -------------------------------- | ---------------------------------------- |
    | x / 255, a frozen network        | taken                                    |
    | (x - x.mean(0)) / x.std(0)       | refused: rows depend on the batch        |
    | x + torch.randn_like(x)          | refused: not the same twice              |
    | an image turned at random        | refused; see `inosgd.augmentation`       |
    """

    def __init__(self, examples: Any, transform: Transform) -> None:
        self._store, self._transform = as_store(examples), transform
        refuse_mixing(lambda rows: transform(self._store.take(rows)), len(self._store), "transform")

    def __len__(self) -> int:
        return len(self._store)

    def take(self, indices: IntArray) -> Examples:
        """The transformed batch."""
        return self._transform(self._store.take(indices))


TRIED_ROWS = 4
SAME = 1e-5


def refuse_mixing(changed: Callable[[IntArray], Examples], count: int, argument: str) -> None:
    """Raise unless rows of a batch that an ``argument`` has changed are those of smaller batches, up to rounding."""
    rows = np.arange(min(TRIED_ROWS, count))
    whole = pytree.tree_leaves(changed(rows))
    for chosen in (rows, rows[::-1].copy(), rows[:1]):
        again = pytree.tree_leaves(changed(chosen))
        if len(again) != len(whole) or not all(map(partial(_same_rows, chosen), whole, again)):
            raise InvalidArgumentError(
                f"{argument}: a row of the changed batch depends on other rows, or is not the same twice, so that no "
                "threshold bounds what one example contributes; give a function of each example alone"
            )


def _same_rows(chosen: IntArray, whole: Any, again: Any) -> bool:
    if len(whole) <= chosen.max() or again.shape != (len(chosen), *whole.shape[1:]):
        return False
    wanted = whole[torch.from_numpy(chosen)]
    if not wanted.is_floating_point():
        return bool(torch.equal(wanted, again))
    return bool(torch.allclose(wanted, again, rtol=SAME, atol=SAME, equal_nan=True))


def as_store(examples: Any) -> ExampleStore:
    """The store for ``examples``: a tree of tensors, a ``Dataset``, or a store already.

    Raises:
        InvalidArgumentError: If examples cannot be taken by index: Poisson sampling draws each by a coin of its own.
    """
    if isinstance(examples, DataLoader | IterableDataset):
        kind, whole = type(examples).__name__, isinstance(examples, DataLoader)
        instead = "the data set that it reads, loader.dataset" if whole else "a map-style Dataset or tensors"
        raise InvalidArgumentError(
            f"examples: a {kind} decides itself which examples come next, which is not Poisson sampling, and no budget "
            f"would hold; give {instead}"
        )
    if isinstance(examples, TensorDataset):
        return TensorStore(examples.tensors)
    if isinstance(examples, Dataset):
        return DatasetStore(examples)
    if isinstance(examples, ExampleStore) and not isinstance(examples, torch.Tensor | np.ndarray):
        return examples
    return TensorStore(examples)


def _refuse_unequal_shapes(examples: list[Any]) -> None:
    """Raise if two examples differ in structure or shape; the message names no example, since drawn ones are secret."""
    leaves, structures = zip(*(pytree.tree_flatten(example) for example in examples), strict=True)
    if len(set(map(str, structures))) > 1:
        raise InvalidArgumentError(
            "examples: those of the data set differ in structure, such as keys that only some have; return the same "
            "tree of tensors for each"
        )
    for place, values in enumerate(zip(*leaves, strict=True)):
        shapes = sorted({tuple(np.shape(value)) for value in values if not isinstance(value, str)})
        if len(shapes) > 1:
            raise InvalidArgumentError(
                f"examples: tensor {place} of the data set's examples has shapes {shapes[0]} and {shapes[-1]} in one "
                "batch, which do not fit together; pad or cut all examples to one length in the data set (sequences: "
                "to a fixed length, with a symbol for padding that the model ignores), or give "
                "DatasetStore(dataset, collate=...)"
            )


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
