"""How much memory a batch takes, found out on a few of its examples."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from inosgd._arrays import FloatArray
from inosgd.gradients.engine import Examples, count_examples
from inosgd.gradients.recording import record_pass
from inosgd.gradients.task import Task

_PROBES = (2, 4)
"""On how many examples memory is measured."""

_WORKSPACE = 1.25
"""What kernels take for themselves, which no operation returns and so cannot be counted."""

Need = tuple[FloatArray, FloatArray]
"""For every moment of a pass, the bytes alive at no example, and the bytes that every example adds."""

_probed: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Need]] = WeakKeyDictionary()
"""For every model alive, what a pass needs in each state it was probed in."""


def examples_that_fit(task: Task, examples: Examples, limit: int) -> int:
    """How many examples of this kind may pass at once within ``limit`` bytes; at least one, whatever the limit.

    At every moment of a pass the bytes that are alive are a straight line in the number of examples, and the pass
    needs the highest of these lines. The estimate errs on the large side: buffers whose size does not grow with a
    batch are still growing in the small batches that it is made from.
    """
    count = count_examples(examples)
    if count == 0:
        return 1
    fixed, each = _need(task, examples)
    fixed = fixed + 2 * sum(parameter.nbytes for parameter in task.parameters.values())  # the sum of all, in float64
    fixed = fixed + 16 * count  # which examples are in which piece, in either pass
    each = each + sum(leaf.nbytes for leaf in _tensors(examples)) / count  # a piece is a copy
    room = np.maximum(limit / _WORKSPACE - fixed, 0) / np.maximum(each, 1.0)
    return max(1, int(room.min()))


def _need(task: Task, examples: Examples) -> Need:
    leaves = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    state = (task.model.training, *shapes, *map(id, task.parameters.values()))
    known = _probed.setdefault(task.model, {})
    if state not in known:
        few = [pytree.tree_map_only(torch.Tensor, _first(count), examples) for count in _PROBES]
        _trace(task, few[0])  # fills caches
        known[state] = _lines(*[_trace(task, part) for part in few])
    return known[state]


def _first(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """So many rows of a tensor, the same ones again if it has fewer."""
    return lambda leaf: leaf[torch.arange(count, device=leaf.device) % len(leaf)]


def _lines(low: FloatArray, high: FloatArray) -> Need:
    """The straight lines through two probes; a bound above all of them if the passes did not take the same way.

    If a line is a + b n with a, b >= 0, then a and b n_2 are at most its value at n_2, the larger probe.
    """
    if len(low) != len(high):
        return high.max(keepdims=True), high.max(keepdims=True) / _PROBES[1]
    each = np.maximum((high - low) / (_PROBES[1] - _PROBES[0]), 0.0)
    return np.maximum(low - _PROBES[0] * each, 0.0), each


def _trace(task: Task, examples: Examples) -> FloatArray:
    """The bytes of tensors alive after every operation while a batch is measured and summed."""
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), LiveBytes() as live:
        record_pass(task, examples).weighted_sum(np.ones(count_examples(examples)))
    return np.array(live.trace, dtype=np.float64)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that come into being inside a ``with`` block, as long as they are alive.

    Attributes:
        now: Bytes that are alive.
        trace: The same after every operation so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.trace = [0]

    @property
    def peak(self) -> int:
        """The most bytes that were alive at once."""
        return max(self.trace)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in _tensors((args, kwargs))}
        for leaf in _tensors(result):
            storage = leaf.untyped_storage()
            if storage._cdata not in given:
                given.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._remove, storage.nbytes())
        self.trace.append(self.now)
        return result

    def _remove(self, size: int) -> None:
        self.now -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
