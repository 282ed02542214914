"""Sums over examples, with errors that are known before they are computed.

All sums of this module are compiled code (``sums.cpp``) where there is a compiler, and operations in float64 by torch
where there is none. With u = 2^-24 and m the sum of the magnitudes of all summands, as a matrix or vector of its own,

==============  =====================================================================================================
``single``      each summand is rounded at most 37 times on its way into the sum: the error is at most
                `ROUNDOFFS` u |m|, and what numbers below the smallest normal one lose (`inosgd.rounding`)
otherwise       at most 2^11 times in float64, for up to 2^20 places: 2^-42 |m|
==============  =====================================================================================================

by the standard bound for sums in any order (Higham 2002, section 3.1), entry by entry and so for norms too. The 37 are
a rounding of the scale, one of its product with d, 24 where products are added up one after the other, and 11 where
twelve such sums are; all that follows is in float64, which is far below the 3 that are left. ``single`` is a
permission: without a compiler, and for numbers that are float64 themselves, sums are in float64 anyway.

The work is shared by the threads of the OpenMP runtime that torch has loaded, as many as torch may use. It is the
results that are shared out, so that sums have the same bits on any number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from inosgd.gradients.compiling import compiled

SOURCE = Path(__file__).with_suffix(".cpp")

_PLACES_AT_ONCE = 1 << 16
"""The most places of one call; sums over more are put together afterwards, so that few roundings follow each other."""

_SCALED_ROWS_AT_ONCE = 1 << 15
"""The same for sums of scaled rows, 24 of which at a time are added to what was summed: 2^15 / 24 + 24 roundings."""

_ROWS_AT_ONCE = 1 << 10
"""The same for operations of torch, which add up in an order that is not ours."""

_FEW = 1 << 15
"""So many numbers are added up by torch in float64, which is faster than to describe them to a kernel."""

_WORTH_A_THREAD = 1 << 17
"""How many products pay for another thread."""

_TYPES = {torch.float32: "float", torch.float64: "double"}
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_long
_NORMAL_SUMS = ("sums_over_places", "sums_over_pixels")
_ARGUMENTS = {
    "outer_sum": [_POINTER] * 3 + [_NUMBER, _POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER],
    "example_sums": [_POINTER] * 2 + [_NUMBER] * 4 + [_POINTER] * 2,
    "row_sum": [_POINTER] * 3 + [_NUMBER] * 3 + [_POINTER],
    "held_sums": [_POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER],
    "held_squares": [_POINTER] + [_NUMBER] * 3 + [_POINTER],
    "lookup_sum": [_POINTER] * 4 + [_NUMBER] * 3 + [_POINTER],
    "squares": [_POINTER] * 2 + [_NUMBER] * 3 + [_POINTER],
    "squares_across": [_POINTER] + [_NUMBER] * 6 + [_POINTER],
    "pair_bounds": [_POINTER] * 2 + [_NUMBER] * 5 + [_POINTER] * 2,
    "channel_gradients": [_POINTER] * 3 + [_NUMBER] * 3 + [_POINTER],
    **dict.fromkeys(_NORMAL_SUMS, [_POINTER] * 4 + [_NUMBER] * 4 + [_POINTER] * 2),
}
_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("outer_sum", "row_sum", "held_sums"), ("float_float", "float_double", "double_double")),
    **dict.fromkeys(("example_sums", "held_squares", "lookup_sum", "channel_gradients"), ("float", "double")),
    **dict.fromkeys(("squares", "squares_across", "pair_bounds", *_NORMAL_SUMS), ("float", "double")),
}


class OperandStruct(ctypes.Structure):
    """``Operand`` of the source."""

    _fields_ = (*((name, _POINTER) for name in ("base", "rows", "columns")), ("width", _NUMBER))


class HeldStruct(ctypes.Structure):
    """``Held`` of the source."""

    _fields_ = (("base", _POINTER), ("width", _NUMBER), ("sums", _POINTER))


class PlacesStruct(ctypes.Structure):
    """``Places`` of the source."""

    _fields_ = (("base", _POINTER), *((name, _NUMBER) for name in ("example", "step", "width")))


class ImagesStruct(ctypes.Structure):
    """``Images`` of the source."""

    _fields_ = (
        ("base", _POINTER),
        *((name, _NUMBER) for name in ("example", "channel", "down", "right", "height", "width")),
    )


class Operand(NamedTuple):
    """Numbers of every place k: entry j is at ``rows[k] + columns[j]`` in the memory of ``values``."""

    values: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> Operand:
        """Values of shape (examples, features) or (examples, places, features), however they lie in memory."""
        places = places_of(values.shape[:-1], values.stride()[:-1])
        return cls(values, places, places_of(values.shape[-1:], values.stride()[-1:]))

    def described(self, start: int = 0) -> OperandStruct:
        """What the kernel is told, for the places from ``start`` bytes of their offsets on."""
        pointers = self.values.data_ptr(), self.rows.data_ptr() + start, self.columns.data_ptr()
        return OperandStruct(*pointers, len(self.columns))

    def gathered(self, places: slice) -> torch.Tensor:
        """The numbers of some places, one row each, in float64."""
        at = self.rows[places].unsqueeze(1) + self.columns
        whole = self.values.as_strided((int(at.max()) + 1,), (1,)) if at.numel() else self.values.flatten()
        return whole[at.to(whole.device)].double()


def outer_sums(
    outputs: Operand,
    inputs: Sequence[Operand],
    scales: torch.Tensor,
    *,
    biased: bool = False,
    single: bool,
    into: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """sum_k scales[k] d_k a_k^T over all places for every a, then sum_k scales[k] d_k if ``biased``, in float64.

    Args:
        outputs: The d_k.
        inputs: The a_k of every sum.
        scales: One for every place.
        biased: Whether to add up the scaled d_k as well.
        single: See the module.
        into: Where the sums are written, each one contiguous, whatever is there; None for new tensors.

    Guarantee:
        In error by at most what the module says, with |m| <= sum_k |scales[k]| |d_k| |a_k|, and |a_k| = 1 for the last.
    """
    function = _function("outer_sum", outputs.values, single)
    count, size = len(scales), _ROWS_AT_ONCE if function is None else _PLACES_AT_ONCE
    total = _targets(outputs, inputs, biased) if into is None else list(into)
    for start in range(0, count, size):
        places, found = slice(start, min(start + size, count)), _targets(outputs, inputs, biased) if start else total
        if function is None:
            _outer_by_torch(outputs, inputs, scales, biased, places, found)
        else:
            _outer_by_kernel(function, outputs, inputs, scales, biased, places, found)
        if start:
            total = [one.add_(other) for one, other in zip(total, found, strict=True)]
    return total if count else [each.zero_() for each in total]


def _targets(outputs: Operand, inputs: Sequence[Operand], biased: bool) -> list[torch.Tensor]:
    """New tensors for sums, with anything in them."""
    height, device = len(outputs.columns), outputs.values.device
    shapes = [(height, len(each.columns)) for each in inputs] + [(height,)] * biased
    return [torch.empty(shape, dtype=torch.float64, device=device) for shape in shapes]


def example_sums(
    outputs: Operand, inputs: Sequence[Operand], count: int, *, biased: bool = False
) -> list[torch.Tensor] | None:
    """sum_k d_k a_k^T over the places of every example for every a, then sum_k d_k if ``biased``, if there is a kernel.

    Args:
        outputs: The d_k, of as many places for each of the examples.
        inputs: The a_k of every sum.
        count: How many examples there are. Where they have no places, there is nothing for a kernel to do.
        biased: Whether to add up the d_k as well.
    """
    function = _function("example_sums", outputs.values, None)
    given = [outputs, *inputs]
    others = any(each.values.dtype != outputs.values.dtype or each.values.is_neg() for each in given)
    if function is None or others or not len(outputs.rows):
        return None
    height, widths, places = len(outputs.columns), [len(each.columns) for each in inputs], len(outputs.rows) // count
    found = [outputs.values.new_empty(count, height, width) for width in widths]
    sums = outputs.values.new_empty(count, height) if biased else None
    operands = (OperandStruct * len(given))(*[each.described() for each in given])
    targets = (_POINTER * len(found))(*[each.data_ptr() for each in found])
    threads, first = _threads(count * places * height * (sum(widths) + 1)), ctypes.addressof(operands)
    second = first + ctypes.sizeof(OperandStruct)
    to_sums = None if sums is None else sums.data_ptr()
    function(first, second, len(inputs), places, count, threads, ctypes.addressof(targets), to_sums)
    return found if sums is None else [*found, sums]


def row_sum(values: torch.Tensor, scales: torch.Tensor, *, single: bool) -> torch.Tensor:
    """sum_k scales[k] x_k, in float64, for x of shape (examples, features) or (examples, places, features).

    Guarantee:
        In error by at most what the module says, with |m| <= sum_k |scales[k]| |x_k|.
    """
    if values.shape[:-1].numel() != len(scales):
        raise RuntimeError(f"{values.shape[:-1].numel()} rows of gradients for {len(scales)} coefficients")
    if values.dim() == 2 and values.shape[0] <= _ROWS_AT_ONCE and values.numel() <= _FEW:
        return scales @ values.double()
    values = values if values.stride(-1) == 1 else values.contiguous()
    function, width = _function("row_sum", values, single), values.shape[-1]
    if function is None:
        rows = values.reshape(-1, width)
        parts = [scales[places] @ rows[places].double() for places in _pieces(len(scales), _ROWS_AT_ONCE)]
    else:
        rows = places_of(values.shape[:-1], values.stride()[:-1])
        pieces = _pieces(len(scales), _SCALED_ROWS_AT_ONCE)
        parts = [_row_by_kernel(function, values, rows[places], scales[places].contiguous()) for places in pieces]
    total = parts[0] if parts else torch.zeros(width, dtype=torch.float64, device=values.device)
    for part in parts[1:]:
        total += part
    return total


def held_sums(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], scales: torch.Tensor, *, single: bool) -> None:
    """`row_sum` of tensors with one row for every scale, written into the contiguous tensors they are paired with.

    One call does all of them, because most are small. `_FEW` numbers are added up in float64, whatever is permitted.
    """
    together: dict[tuple[torch.dtype, bool], tuple[Callable[..., None], list[HeldStruct]]] = {}
    for values, target in pairs:
        few = values.numel() <= _FEW
        function = _function("held_sums", values, single and not few)
        fits = values.shape == (len(scales), *target.shape) and values.is_contiguous()
        if function is None or not fits or len(values) > _SCALED_ROWS_AT_ONCE:
            rows = values.reshape(len(values), values.shape[1:].numel())
            target.copy_(row_sum(rows, scales, single=single).view(values.shape[1:]))
        else:
            described = HeldStruct(values.data_ptr(), target.numel(), target.data_ptr())
            together.setdefault((values.dtype, few), (function, []))[1].append(described)
    scales = scales.contiguous()
    for function, some in together.values():
        held, threads = (HeldStruct * len(some))(*some), _threads(len(scales) * sum(each.width for each in some))
        function(ctypes.addressof(held), len(held), scales.data_ptr(), len(scales), threads)


def held_squares(values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """At least the sum of `squared_rows` over tensors with as many rows each, if a kernel can read them all.

    A sum of n of them is raised by twice its n roundings of 2^-53.
    """
    function, kind, count = _function("held_squares", values[0], None), values[0].dtype, len(values[0])
    fitting = [len(each) == count and each.is_contiguous() for each in values]
    if function is None or not all(fitting) or any(each.dtype != kind or each.is_neg() for each in values):
        return None
    widths = [each.shape[1:].numel() for each in values]
    pairs = zip(values, widths, strict=True)
    held = (HeldStruct * len(values))(*[HeldStruct(each.data_ptr(), width, None) for each, width in pairs])
    found = torch.empty(count, dtype=torch.float64, device="cpu")
    function(ctypes.addressof(held), len(held), count, _threads(count * sum(widths)), found.data_ptr())
    return found


def squared_rows(values: torch.Tensor) -> torch.Tensor | None:
    """At least the squared norm over the last dimension, in float64, if there is a kernel for it.

    The squares are added up in float64, in which those of float32 have no error, so that a sum of n of them is raised
    by twice its n + 4 roundings of 2^-53, and by 2 n times the smallest float64. Where the squares add up to more than
    the type of the values holds, it is infinite, as it is where they are added up in that type.
    """
    function = _function("squares", values, None)
    if function is None:
        return None
    values = values if values.stride(-1) == 1 else values.contiguous()
    found = torch.empty(values.shape[:-1], dtype=torch.float64, device="cpu")
    rows, width = places_of(values.shape[:-1], values.stride()[:-1]), values.shape[-1]
    threads = _threads(values.numel())
    function(values.data_ptr(), rows.data_ptr(), len(rows), width, threads, found.data_ptr())
    return found


def squared_pixels(images: torch.Tensor) -> torch.Tensor | None:
    """`squared_rows` over the channels of images, (examples, channels, height, width), read where they are."""
    function = _function("squares_across", images, None)
    if function is None or images.stride(3) != 1 or images.stride(2) != images.shape[3]:
        return squared_rows(images.movedim(1, -1))
    count, channels, height, width = images.shape
    found = torch.empty(count, height, width, dtype=torch.float64, device="cpu")
    steps = (count, images.stride(0), channels, images.stride(1), height * width)
    function(images.data_ptr(), *steps, _threads(images.numel()), found.data_ptr())
    return found


def pair_bounds(
    outputs: torch.Tensor, inputs: Sequence[torch.Tensor], biases: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """`inosgd.gradients.rules.forms.pair_bounds` of sum_t d_t a_t^T, if there is a kernel for it.

    Guarantee:
        Entries of the two matrices are sums of n products in the type of the values, in some order; their T^2 products
        are added up in float64, by blocks of 4 x 4 pairs, rows of blocks, and lanes. On its way a product is rounded no
        more than T / 2 + 12 times, each time by 2^-53, and no more than T^2 times: within the 2 T + 3 roundings of u
        that the bound leaves for them, in float64 too. Sums over places beyond T add 0.

    Args:
        outputs: d, (examples, places, features).
        inputs: The a of every weight.
        biases: How many more numbers, each 1, every a_t has.
    """
    function = _function("pair_bounds", outputs, None)
    if function is None or any(each.dtype != outputs.dtype or each.is_neg() for each in inputs):
        return None
    given = [each if each.stride(-1) == 1 else each.contiguous() for each in (outputs, *inputs)]
    rows = [PlacesStruct(each.data_ptr(), each.stride(0), each.stride(1), each.shape[2]) for each in given]
    operands = (PlacesStruct * len(rows))(*rows)
    count, places, first = len(outputs), outputs.shape[1], ctypes.addressof(operands)
    found = torch.empty(2, count, dtype=torch.float64, device="cpu")
    threads = _threads(count * places * places * sum(each.shape[2] for each in given) // 2)
    second = first + ctypes.sizeof(PlacesStruct)
    norms, magnitudes = found.unbind()
    function(first, second, len(inputs), biases, count, places, threads, norms.data_ptr(), magnitudes.data_ptr())
    return norms, magnitudes


def channel_gradients(
    inputs: torch.Tensor, outputs: torch.Tensor, geometry: Sequence[tuple[int, int]]
) -> torch.Tensor | None:
    """sum_y d[c, y] a[c, s y + h k] for every example and channel c, if there is a kernel: (examples, channels, k).

    Args:
        inputs: a, (examples, channels, height, width).
        outputs: d, with as many channels.
        geometry: Kernel, stride s, padding and dilation h, each down and across.
    """
    function = _function("channel_gradients", outputs, None)
    if function is None or inputs.dtype != outputs.dtype or inputs.is_neg():
        return None
    count, channels, height, width = outputs.shape
    images = [ImagesStruct(each.data_ptr(), *each.stride(), *each.shape[2:]) for each in (inputs, outputs)]
    shape = (_NUMBER * 10)(height, width, *[number for pair in geometry for number in pair])
    found = outputs.new_empty(count, channels, geometry[0][0] * geometry[0][1])
    pointers = [ctypes.addressof(each) for each in (*images, shape)]
    function(*pointers, count, channels, _threads(found.numel() * height * width), found.data_ptr())
    return found


def normal_sums(
    inputs: torch.Tensor, outputs: torch.Tensor, means: torch.Tensor, scales: torch.Tensor, *, over_pixels: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Sums of d (a - mean) scale, and of d, for every example and every entry, if there is a kernel.

    Args:
        inputs: a, (examples, places, entries), or (examples, channels, pixels) to be summed over pixels.
        outputs: d, of the same shape and type.
        means: One for every place; or, in the order of channels, for as many of them as there are to each mean.
        scales: The same.
        over_pixels: Which of the two.
    """
    function = _function(_NORMAL_SUMS[over_pixels], outputs, None)
    given = [inputs, outputs, means, scales]
    if function is None or any(each.dtype != outputs.dtype or each.is_neg() for each in given) or not outputs.numel():
        return None
    count, second, width = outputs.shape
    sizes = (count * second, count * second // means.numel()) if over_pixels else (count, second)
    found = [outputs.new_empty(count, second if over_pixels else width) for _ in range(2)]
    given = [each.contiguous() for each in given]
    pointers, targets = ([each.data_ptr() for each in some] for some in (given, found))
    function(*pointers, *sizes, width, _threads(outputs.numel()), *targets)
    return found[0], found[1]


def lookup_sum(values: torch.Tensor, indices: torch.Tensor, scales: torch.Tensor, table: int) -> torch.Tensor:
    """The rows of a table to which scales[i] x_it was added where ``indices`` point: always in float64.

    A row that many places look up is put together from the sums of `_ROWS_AT_ONCE` places each.

    Args:
        values: x, of shape (examples, places, features).
        indices: (examples, places).
        scales: One per example.
        table: How many rows it has.
    """
    function = _function("lookup_sum", values, None)
    if function is not None:
        return _lookup_by_kernel(function, values, indices, scales, table)
    scaled, rows = (values * scales.view(-1, 1, 1)).flatten(0, 1), indices.flatten()
    if len(rows) > _ROWS_AT_ONCE:
        pieces = torch.arange(len(rows), device=rows.device) // _ROWS_AT_ONCE
        pairs, places = torch.unique(pieces * table + rows, return_inverse=True)
        scaled = scaled.new_zeros(len(pairs), scaled.shape[1]).index_add_(0, places, scaled)
        rows = pairs % table
    return scaled.new_zeros(table, scaled.shape[1]).index_add_(0, rows, scaled)


def _outer_by_torch(
    outputs: Operand,
    inputs: Sequence[Operand],
    scales: torch.Tensor,
    biased: bool,
    places: slice,
    total: Sequence[torch.Tensor],
) -> None:
    scaled = outputs.gathered(places) * scales[places].unsqueeze(1)
    for each, target in zip(inputs, total, strict=False):
        torch.mm(scaled.mT, each.gathered(places), out=target)
    if biased:
        total[-1].copy_(scaled.sum(0))


def _outer_by_kernel(
    function: Callable[..., None],
    outputs: Operand,
    inputs: Sequence[Operand],
    scales: torch.Tensor,
    biased: bool,
    places: slice,
    total: Sequence[torch.Tensor],
) -> None:
    height, widths, start = len(outputs.columns), [len(each.columns) for each in inputs], 8 * places.start
    operands = (OperandStruct * len(inputs))(*[each.described(start) for each in inputs])
    targets = (_POINTER * len(inputs))(*[each.data_ptr() for each in total[: len(inputs)]])
    scales, count = scales.contiguous(), places.stop - places.start
    function(
        outputs.values.data_ptr(),
        outputs.rows.data_ptr() + start,
        outputs.columns.data_ptr(),
        height,
        ctypes.addressof(operands),
        len(inputs),
        scales.data_ptr() + start,
        count,
        _threads(count * height * (sum(widths) + 1)),
        ctypes.addressof(targets),
        total[-1].data_ptr() if biased else None,
    )


def _row_by_kernel(
    function: Callable[..., None], values: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    width = values.shape[-1]
    total = torch.empty(width, dtype=torch.float64, device="cpu")
    pointers = [tensor.data_ptr() for tensor in (values, rows, scales)]
    function(*pointers, len(scales), width, _threads(len(scales) * width), total.data_ptr())
    return total


def _lookup_by_kernel(
    function: Callable[..., None], values: torch.Tensor, indices: torch.Tensor, scales: torch.Tensor, table: int
) -> torch.Tensor:
    values = values if values.stride(-1) == 1 else values.contiguous()
    rows, width = places_of(values.shape[:-1], values.stride()[:-1]), values.shape[-1]
    total = torch.zeros(table, width, dtype=torch.float64, device="cpu")
    tensors = (values, rows, indices.long().contiguous(), scales.repeat_interleave(indices.shape[1]))
    pointers = [tensor.data_ptr() for tensor in tensors]
    function(*pointers, len(rows), table, width, total.data_ptr())
    return total


def _threads(cost: int) -> int:
    return min(torch.get_num_threads(), cost // _WORTH_A_THREAD + 1)


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@lru_cache(maxsize=128)
def places_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The offsets of the entries of a tensor of this shape, the last dimension changing first."""
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, stride in zip(shape, strides, strict=True):
        offsets = (offsets.unsqueeze(1) + torch.arange(size, device="cpu") * stride).flatten()
    return offsets


def _function(name: str, values: torch.Tensor, single: bool | None) -> Callable[..., None] | None:
    """The compiled function for values of this type, if there is one and it can read them."""
    if values.dtype not in _TYPES or not values.is_cpu or values.is_neg():
        return None
    library = kernel()
    kind = _TYPES[values.dtype]
    ending = "" if single is None else f"_{kind if single else 'double'}"
    return None if library is None else getattr(library, f"{name}_{kind}{ending}")


@cache
def kernel() -> ctypes.CDLL | None:
    """The compiled sums; None where there are none, or where they do not compute what torch computes."""
    library = compiled(SOURCE)
    if library is None:
        return None
    for name, kinds in _KINDS.items():
        for kind in kinds:
            function = getattr(library, f"{name}_{kind}")
            function.argtypes, function.restype = _ARGUMENTS[name], None
    return library if _agrees(library) else None


def _agrees(library: ctypes.CDLL) -> bool:
    """Whether the sums are those of torch for tiles of all kinds, within their bounds."""
    source = torch.Generator("cpu").manual_seed(0)
    shapes = ((90, 6, 31), (90, 6, 45), (90,))
    d, a, scales = (torch.randn(*shape, generator=source, dtype=torch.float64, device="cpu") for shape in shapes)
    places, every = scales.repeat_interleave(6), slice(0, 540)
    for dtype, kinds, tolerance in (
        (torch.float32, "float_float", 1e-5),
        (torch.float32, "float_double", 1e-12),
        (torch.float64, "double_double", 1e-12),
    ):
        outputs, inputs = Operand.of(d.to(dtype)), Operand.of(a.to(dtype))
        at = places_of(inputs.values.shape[:-1], inputs.values.stride()[:-1])
        outer, row = (getattr(library, f"{name}_{kinds}") for name in ("outer_sum", "row_sum"))
        found, wanted = (_targets(outputs, [inputs, outputs], True) for _ in range(2))
        _outer_by_torch(outputs, [inputs, outputs], places, True, every, wanted)
        _outer_by_kernel(outer, outputs, [inputs, outputs], places, True, every, found)
        wanted.append(places @ inputs.values.flatten(0, 1).double())
        found.append(_row_by_kernel(row, inputs.values, at, places))
        pairs = zip(found, wanted, strict=True)
        if not all(torch.allclose(one, other, rtol=tolerance, atol=540 * tolerance) for one, other in pairs):
            return False
    return True
