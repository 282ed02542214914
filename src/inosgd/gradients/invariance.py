"""Examples whose numbers do not depend on their batch, to the last bit.

The order's guarantee and the bounds on sums take for granted that an example's loss and gradient are functions of that
example and of the model. A library's kernels are free to round a row one way in a product of 31 rows and another way in
one of 32, or at the edge of a tile: losses that are equal up to roundings then change places when an example is added,
and the sum moves by many thresholds. Therefore

1. a batch lies in memory as torch lays out new tensors, wherever it came from: kernels tell columns of a wider table,
   or rows that begin at another address, from others;
2. batches pass in few sizes: the last example is repeated, with coefficient 0, up to the next one;
3. before a size is used for a model, made-up examples pass at that size, and in *blocks* of a few rows, at other places
   and among other neighbours: their losses and the bounds on their norms must have the same bits, and sums of their
   gradients the same but for roundings of float64, which show what roundings of a norm may hide. *Closed* parameters
   show no roundings: a scale of zero closes a branch, and a row of at most two numbers, as in an identity, has one sum
   in any order. They are moved to an ordinary size while one of batches is looked at. A size of which nothing finite is
   seen, with made-up numbers of either sign or with positive ones, does not count as one that agrees;
4. where they do not, batches of that size pass in pieces: the largest 2^k blocks that agree. Where blocks of 8 to 64
   rows do not agree among themselves, linear maps are computed as (W x^T)^T, with a column for every place, which was
   found to be enough for layers of a few features; and where that is not enough either, examples pass one by one, which
   is slow and has no neighbours.

**What is assumed of kernels**: that the way they take depends on shapes, types, memory layout and the number of threads
and not on the numbers, so that what holds for made-up examples holds for all; and that one call made twice gives one
result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from inosgd._arrays import FloatArray, IntArray
from inosgd.gradients.draws import HeldDraws
from inosgd.gradients.engine import BatchGradients, ExampleLosses, Examples, count_examples, tensors_of
from inosgd.gradients.kinds import kind_of
from inosgd.gradients.recording import take
from inosgd.gradients.seen import RaggedError, UncheckedError
from inosgd.gradients.task import Task
from inosgd.gradients.values import moved
from inosgd.gradients.written import version_of

UNITS = (8, 16, 32, 64)
"""Blocks that are tried, in rows."""

_ALIGNMENT = 64
"""New tensors of torch's begin at multiples of so many bytes."""

T = TypeVar("T")
Measure = Callable[[Task, Examples], BatchGradients]

_NUMBERS = (torch.randn, torch.rand)
"""How numbers are made up. Logarithms and roots of the first would not be finite."""

_FEW = 2
"""How many numbers a row of a closed parameter has at most."""

_SMALL = 0.25
"""Which of them count: those of more than this part of an ordinary initialisation, 1 / sqrt(number of inputs)."""

_OPEN = 1.0
"""By how much closed parameters are moved at most, in the same unit: at small logits, roundings vanish beside 1."""

_GOLDEN, _ROUNDINGS_OF_SUMS = 0.6180339887498949, 2.0**-44

_COMPARED = 8
"""How many blocks of a batch are compared, evenly spaced, the first and the last among them."""


@dataclass
class Sizes:
    """In which sizes batches of a model may pass.

    Attributes:
        unit: The rows of a block; 1 if no block gives an example the same bits wherever it stands.
        by_columns: Whether it takes linear maps by columns; see `Task`.
        agrees: For every size tried, whether examples have the bits that they have in blocks.
        drawn: Whether the model draws random numbers. One that begins to draw later has other bits in every pass, and
            passes in the pieces that are known.
    """

    unit: int
    by_columns: bool = False
    agrees: dict[int, bool] = field(default_factory=dict)
    drawn: bool = False


@dataclass(frozen=True, eq=False)
class Probe:
    """What made-up examples of a model are measured with: ``pool`` makes up so many, ``measured`` measures a batch."""

    pool: Callable[[int], Examples]
    measured: Callable[[Examples], BatchGradients]


class _NothingShownError(Exception):
    """Numbers that are not finite are the same, whatever was rounded."""


_known: WeakKeyDictionary[nn.Module, WeakKeyDictionary[ExampleLosses, dict[tuple[object, ...], Sizes]]]
_known = WeakKeyDictionary()
"""For every model alive, with which losses and in which states what was found."""

_found: dict[tuple[object, ...], Any] = {}
"""What was found for models that differ from others in nothing but numbers (`inosgd.gradients.kinds`)."""

_MOST_FOUND = 1024

_MOST_STATES = 16
"""For how many states of a model what was found is remembered."""


def laid_out(examples: Examples) -> Examples:
    """The batch with all its tensors as new ones would lie in memory; those that do are not copied.

    Parts of a batch are new tensors anyway. A whole one may be a view: of the columns of a table that are inputs, of an
    array that NumPy has put at an address of its own, of images with their channels last.
    """
    if all(map(_as_new, tensors_of(examples))):
        return examples

    def copied(leaf: torch.Tensor) -> torch.Tensor:
        return leaf if _as_new(leaf) else leaf.clone(memory_format=torch.contiguous_format)

    return pytree.tree_map_only(torch.Tensor, copied, examples)


def _as_new(leaf: torch.Tensor) -> bool:
    """Whether all strides are those of a new tensor, and the address is one that torch would choose."""
    if leaf.layout is not torch.strided:
        return True
    strides = accumulate(reversed(leaf.shape[1:]), lambda stride, count: stride * max(count, 1), initial=1)
    return leaf.stride() == tuple(strides)[::-1] and leaf.data_ptr() % _ALIGNMENT == 0


def passing(task: Task, examples: Examples, measured: Measure, most: int | None = None) -> tuple[Task, int]:
    """The task as it passes, and how many rows pass at once, so that no example's numbers depend on the others.

    Args:
        task: The model and its losses.
        examples: The batch.
        measured: How a batch is measured.
        most: How many may pass; None for any number. A block may always pass.
    """
    count = count_examples(examples)
    if count == 0:
        return task, 1
    sizes = _sizes(task, examples, measured)
    task = replace(task, by_columns=True) if sizes.by_columns else task
    rows = padded_size(count, sizes.unit)
    if most is not None and rows > most:
        rows = max(most // sizes.unit, 1) * sizes.unit

    def agrees(size: int) -> bool:
        if size not in sizes.agrees:

            def tried() -> bool | None:
                drawn = HeldDraws(sizes.drawn)
                return _probed(task, examples, measured, drawn, lambda probe: _agrees(probe, size, sizes.unit))

            sizes.agrees[size] = bool(_once(tried, task, examples, measured, sizes.unit, size))
        return sizes.agrees[size]

    return task, next(filter(agrees, (rows, *_pieces(rows, sizes.unit))), sizes.unit)


def pass_one_by_one(task: Task, examples: Examples, measured: Measure) -> None:
    """From now on such examples pass one by one, because blocks turned out to be impossible."""
    sizes = _sizes(task, examples, measured)
    sizes.unit, sizes.agrees = 1, {1: True}


def rows_of_block(task: Task, examples: Examples, measured: Measure) -> int:
    """How many rows pass at once if all batches pass in blocks; 1 if no block gives an example the same bits."""
    return _sizes(task, examples, measured).unit if count_examples(examples) else 1


def padded_size(count: int, unit: int) -> int:
    """The smallest size that batches pass in and that ``count`` examples fit into; 1 if they pass one by one.

    Sizes are multiples of ``unit``, and of a 32nd of the largest power of two that is not above them: few sizes have to
    be looked at, and less than a 32nd of a large batch is padding.

    >>> [padded_size(count, 8) for count in (1, 64, 65, 500, 513)]
    [8, 64, 72, 504, 528]
    """
    if unit == 1:
        return 1
    step = max(unit, (1 << count.bit_length() - 1) // 32)
    return -(-count // step) * step


def _pieces(rows: int, unit: int) -> list[int]:
    """Sizes of pieces for batches of so many rows, the largest first: 1, 2, 4, 8, ... blocks, so that few are tried.

    >>> _pieces(136, 8)
    [128, 64, 32, 16, 8]
    """
    return [unit << power for power in reversed(range((-(-rows // unit) - 1).bit_length()))]


def _sizes(task: Task, examples: Examples, measured: Measure) -> Sizes:
    modes = tuple([module.training for module in task.modules])
    frozen = tuple([(id(each), version_of(each)) for each in task.frozen])
    state = (*_way(examples, measured), modes, frozen, *map(id, task.parameters.values()))
    of_model = _known.get(task.model)
    if of_model is None:
        of_model = _known[task.model] = WeakKeyDictionary()
    known = of_model.setdefault(task.losses, {})
    if state not in known:
        found = _once(lambda: _tried(task, examples, measured), task, examples, measured) or _one_by_one()
        for oldest in list(known)[: len(known) - _MOST_STATES + 1]:
            del known[oldest]
        known[state] = replace(found, agrees=dict(found.agrees))
    return known[state]


def _one_by_one() -> Sizes:
    return Sizes(1, agrees={1: True})


def is_closed(parameter: torch.Tensor) -> bool:
    """Whether a row has at most two numbers of an ordinary size, so that roundings may not show; see the module."""
    if parameter.numel() == 0 or parameter.dtype not in (torch.float32, torch.float64):
        return False
    rows = parameter.detach().flatten(1) if parameter.dim() > 1 else parameter.detach().reshape(1, -1)
    ordinary = rows.shape[1] ** -0.5 if parameter.dim() > 1 else 1.0
    return bool((rows.abs() > _SMALL * ordinary).count_nonzero(1).le(_FEW).any())


def _way(examples: Examples, measured: Measure) -> tuple[object, ...]:
    """What decides, beside the model, how examples pass."""
    shapes = [(leaf.shape[1:], leaf.dtype) for leaf in tensors_of(examples)]
    libraries = torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled()
    return measured, torch.get_num_threads(), libraries, _structure(examples), *shapes


def _structure(examples: Examples) -> object:
    """How the tensors of a batch are arranged; for pairs of them by a way that takes no time."""
    if type(examples) is tuple and all(isinstance(each, torch.Tensor) for each in examples):
        return len(examples)
    return pytree.tree_structure(examples)


def _once(
    find: Callable[[], T | None], task: Task, examples: Examples, measured: Measure, *question: object
) -> T | None:
    """What is found for the first model of this kind that shows anything, or for every model of no kind.

    Guarantee:
        Models of one kind take the same ways through the same kernels, by what is assumed of kernels, so that what was
        found of one of them is true of all. Frozen parameters that are closed stay closed and show no roundings: what
        was found beside them is used only for others with the same ones closed.
    """
    kind = kind_of(task, examples)
    if kind is None:
        return find()
    closed = tuple(map(is_closed, task.frozen))
    key = (kind, closed, task.by_columns, _way(examples, measured), question)
    if key in _found:
        found: T = _found[key]
        return found
    answer = find()
    if answer is not None:
        while len(_found) >= _MOST_FOUND:
            del _found[next(iter(_found))]
        _found[key] = answer
    return answer


def _tried(task: Task, examples: Examples, measured: Measure) -> Sizes | None:
    """The smallest block that will do, with linear maps as they are or by columns; None if nothing could be seen."""
    answers = []
    for by_columns in (False, True):
        way = replace(task, by_columns=by_columns)
        draws = _draws(way, examples, measured)
        if draws is None:
            continue
        agreeing = _probed(way, examples, measured, draws, lambda probe: _blocks(probe, count_examples(examples)))
        if agreeing:
            return Sizes(agreeing[0], by_columns, dict.fromkeys(agreeing, True), draws.asked)
        answers.append(agreeing)
    return None if None in answers or not answers else _one_by_one()


def _blocks(probe: Probe, count: int) -> tuple[int, ...]:
    """The smallest block in which examples have the same bits at any place, beside any other, and in larger batches.

    With it, the size of a larger batch that was tried: of two blocks for a batch that fits into them, else of three.
    Examples take all places of single blocks on the way. Nothing if there is no such block.
    """
    for unit in UNITS:
        larger = (2 if count <= 2 * unit else 3) * unit
        if _agrees(probe, larger, unit):
            return unit, larger
    return ()


def _agrees(probe: Probe, rows: int, unit: int) -> bool:
    """Whether examples have the same bits in a batch of ``rows`` and in blocks, elsewhere and beside others.

    Raises:
        _NothingShownError: If less than half of the losses are finite, or of the norms.
    """
    if rows == unit == 1:
        return True
    pool = probe.pool(rows + unit)
    blocks, others = rows // unit, np.arange(rows, rows + unit // 2)

    def of(places: IntArray) -> BatchGradients:
        return probe.measured(take(pool, torch.from_numpy(places)))

    together = of(np.arange(rows))
    whole, compared, total = _numbers(together), np.zeros(rows), None
    if not (np.isfinite(whole).mean(1) >= 0.5).all():
        raise _NothingShownError
    coefficients = _different(whole[1])
    for block in np.unique(np.linspace(0, blocks - 1, min(blocks, _COMPARED)).astype(int)):
        moved = np.roll(np.arange(block * unit, (block + 1) * unit), 1 + block % (unit - 1))
        kept = moved[unit // 2 :]
        alone = of(moved)
        if not (
            _same(_numbers(alone), whole[:, moved])
            and _same(_numbers(of(np.append(others, kept)))[:, -len(kept) :], whole[:, kept])
        ):
            return False
        compared[moved] = coefficients[moved]
        part = alone.weighted_sum(coefficients[moved])
        total = part if total is None else total.add_(part)
    return total is None or _same_sums(together.weighted_sum(compared), total, compared, whole[1])


def _numbers(gradients: BatchGradients) -> FloatArray:
    """Losses and bounds on norms, one column per example."""
    measured = gradients.measure()
    return np.stack([measured.losses, measured.grad_norms])


def _different(norms: FloatArray) -> FloatArray:
    """Coefficients that give all gradients about the same norm, and no two of them the same; 0 if it is not finite."""
    usable = np.isfinite(norms) & (norms > 0)
    return np.where(usable, 1 + np.arange(len(norms)) * _GOLDEN % 1, 0.0) / np.where(usable, norms, 1.0)


def _same_sums(one: torch.Tensor, other: torch.Tensor, coefficients: FloatArray, norms: FloatArray) -> bool:
    """Whether sums in float64 are the same but for their own roundings, which are far below those of float32."""
    size = float(np.dot(coefficients, np.where(coefficients > 0, norms, 0.0)))
    return float(one.sub_(other).abs().max()) <= _ROUNDINGS_OF_SUMS * size


def made_up(examples: Examples, count: int, numbers: Callable[..., torch.Tensor] = torch.randn) -> Examples:
    """So many examples of this kind: random numbers, and integers of the examples themselves, which may be indices."""
    generator = torch.Generator("cpu").manual_seed(count)

    def rows(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.is_floating_point() or leaf.is_complex():
            values = numbers(count, *leaf.shape[1:], generator=generator, dtype=leaf.dtype, device="cpu")
            return values.to(leaf.device)
        return leaf[torch.arange(count, device=leaf.device) % len(leaf)]

    return pytree.tree_map_only(torch.Tensor, rows, examples)


def _draws(task: Task, examples: Examples, measured: Measure) -> HeldDraws | None:
    """Whether the model draws for this batch, as draws that are held fixed; None if it fails."""
    draws = HeldDraws()

    def passed() -> HeldDraws:
        with draws:
            measured(task, examples)
        return draws

    return _tolerated(task, passed)


def _probed(
    task: Task, examples: Examples, measured: Measure, draws: HeldDraws, find: Callable[[Probe], T]
) -> T | None:
    """What ``find`` finds with a probe in its hands, or None if the model fails on all that is made up for it.

    What the model draws is held fixed, if it draws anything, and closed parameters are moved. A model that cannot take
    that fails: as it is, little could be seen of it.
    """
    made_up_task = replace(task, seen=replace(task.seen, anything=True)) if task.seen is not None else task
    closed = list(filter(is_closed, task.parameters.values()))

    def probed(numbers: Callable[..., torch.Tensor]) -> T:
        probe = Probe(partial(made_up, examples, numbers=numbers), partial(measured, made_up_task))
        with draws if draws.asked else nullcontext(), moved(closed, _OPEN):
            try:
                return find(probe)
            except (RaggedError, UncheckedError):
                if closed:  # as it is, it may be another matter
                    raise _NothingShownError from None
                raise

    found = (_tolerated(task, partial(probed, numbers)) for numbers in _NUMBERS)
    return next((each for each in found if each is not None), None)


def _tolerated(task: Task, find: Callable[[], T]) -> T | None:
    """What is found, with torch's generators set back, or None if the model fails."""
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            return find()
        except (RaggedError, UncheckedError):  # the latter of the examples themselves: the batch is checked first
            raise
        except Exception:
            return None


def _same(one: FloatArray, other: FloatArray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))
