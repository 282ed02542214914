"""Sums over examples, with errors that are known before they are computed.

Both sums of this module are compiled code (``sums.cpp``) where there is a compiler, and products in float64 by torch
where there is none. With u = 2^-24 and m the sum of the magnitudes of all summands, as a matrix or vector of its own,

==============  =====================================================================================================
``single``      each summand is rounded at most 36 times on its way into the sum: the error is at most
                `ROUNDOFFS` u |m|, and what numbers below the smallest normal one lose (`inosgd.rounding`)
otherwise       at most 2^11 times in float64, for up to 2^20 places: 2^-42 |m|
==============  =====================================================================================================

by the standard bound for sums in any order (Higham 2002, section 3.1), entry by entry and so for norms too. ``single``
is a permission: without a compiler, and for numbers that are float64 themselves, sums are in float64 anyway.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import torch

from inosgd.gradients.compiling import compiled

SOURCE = Path(__file__).with_suffix(".cpp")

_PLACES_AT_ONCE = 1 << 16
"""The most places of one call; sums over more are put together afterwards, so that few roundings follow each other."""

_ROWS_AT_ONCE = 1 << 10
"""The same for operations of torch, which add up in an order that is not ours."""

_WORTH_A_THREAD = 1 << 21
"""How many products pay for starting a thread."""

_TYPES = {torch.float32: "float", torch.float64: "double"}
_OUTER, _ROW = [ctypes.c_void_p] * 7 + [ctypes.c_long] * 4, [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3


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

    def gathered(self, places: slice) -> torch.Tensor:
        """The numbers of some places, one row each, in float64."""
        at = self.rows[places].unsqueeze(1) + self.columns
        whole = self.values.as_strided((int(at.max()) + 1,), (1,)) if at.numel() else self.values.flatten()
        return whole[at.to(whole.device)].double()


def outer_sum(outputs: Operand, inputs: Operand, scales: torch.Tensor, *, single: bool) -> torch.Tensor:
    """sum_k scales[k] d_k a_k^T over all places, in float64.

    Guarantee:
        In error by at most what the module says, with |m| <= sum_k |scales[k]| |d_k| |a_k|.
    """
    height, width = len(outputs.columns), len(inputs.columns)
    function = _function("outer_sum", outputs.values, single)
    total = torch.zeros(height, width, dtype=torch.float64, device=outputs.values.device)
    for places in _pieces(len(scales), _ROWS_AT_ONCE if function is None else _PLACES_AT_ONCE):
        if function is None:
            scaled = outputs.gathered(places) * scales[places].unsqueeze(1)
            total += scaled.mT @ inputs.gathered(places)
        else:
            total += _outer_by_kernel(function, outputs, inputs, scales[places].contiguous(), places)
    return total


def row_sum(values: torch.Tensor, scales: torch.Tensor, *, single: bool) -> torch.Tensor:
    """sum_k scales[k] x_k, in float64, for x of shape (examples, features) or (examples, places, features).

    Guarantee:
        In error by at most what the module says, with |m| <= sum_k |scales[k]| |x_k|.
    """
    values = values if values.stride(-1) == 1 else values.contiguous()
    function, width = _function("row_sum", values, single), values.shape[-1]
    total = torch.zeros(width, dtype=torch.float64, device=values.device)
    if function is None:
        rows = values.reshape(-1, width)
        for places in _pieces(len(scales), _ROWS_AT_ONCE):
            total += scales[places] @ rows[places].double()
    else:
        rows = places_of(values.shape[:-1], values.stride()[:-1])
        for places in _pieces(len(scales), _PLACES_AT_ONCE):
            total += _row_by_kernel(function, values, rows[places], scales[places].contiguous())
    return total


def lookup_sum(values: torch.Tensor, indices: torch.Tensor, scales: torch.Tensor, table: int) -> torch.Tensor:
    """The rows of a table to which scales[i] x_it was added where ``indices`` point: always in float64.

    A row that many places look up is put together from the sums of `_ROWS_AT_ONCE` places each.

    Args:
        values: x, of shape (examples, places, features).
        indices: (examples, places).
        scales: One per example.
        table: How many rows it has.
    """
    scaled, rows = (values * scales.view(-1, 1, 1)).flatten(0, 1), indices.flatten()
    if len(rows) > _ROWS_AT_ONCE:
        pieces = torch.arange(len(rows), device=rows.device) // _ROWS_AT_ONCE
        pairs, places = torch.unique(pieces * table + rows, return_inverse=True)
        scaled = scaled.new_zeros(len(pairs), scaled.shape[1]).index_add_(0, places, scaled)
        rows = pairs % table
    return scaled.new_zeros(table, scaled.shape[1]).index_add_(0, rows, scaled)


def _outer_by_kernel(
    function: Callable[..., None], outputs: Operand, inputs: Operand, scales: torch.Tensor, places: slice
) -> torch.Tensor:
    height, width = len(outputs.columns), len(inputs.columns)
    total = torch.zeros(height, width, dtype=torch.float64, device="cpu")
    d_rows, a_rows = outputs.rows[places], inputs.rows[places]
    tensors = (outputs.values, d_rows, outputs.columns, inputs.values, a_rows, inputs.columns, scales)
    pointers = [tensor.data_ptr() for tensor in tensors]

    def rows(first: int, last: int) -> None:
        function(*pointers, len(scales), width, first, last, total.data_ptr())

    _in_threads(rows, height, len(scales) * width * height)
    return total


def _row_by_kernel(
    function: Callable[..., None], values: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    total = torch.zeros(values.shape[-1], dtype=torch.float64, device="cpu")
    pointers = [tensor.data_ptr() for tensor in (values, rows, scales)]

    def columns(first: int, last: int) -> None:
        function(*pointers, len(scales), first, last, total.data_ptr())

    _in_threads(columns, len(total), len(scales) * len(total))
    return total


def _in_threads(work: Callable[[int, int], None], count: int, cost: int) -> None:
    """``work(first, last)`` for parts of 0 .. count, on as many threads as torch may use; ctypes lets Python go on."""
    threads = min(torch.get_num_threads(), cost // _WORTH_A_THREAD + 1, count)
    ends = [count * part // max(1, threads) for part in range(1, threads + 1)]
    others = [Thread(target=work, args=pair) for pair in pairwise(ends)]
    for thread in others:
        thread.start()
    if ends:
        work(0, ends[0])
    for thread in others:
        thread.join()


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@lru_cache(maxsize=128)
def places_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The offsets of the entries of a tensor of this shape, the last dimension changing first."""
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, stride in zip(shape, strides, strict=True):
        offsets = (offsets.unsqueeze(1) + torch.arange(size, device="cpu") * stride).flatten()
    return offsets


def _function(name: str, values: torch.Tensor, single: bool) -> Callable[..., None] | None:
    """The compiled sum for values of this type, if there is one and it can read them."""
    if values.dtype not in _TYPES or not values.is_cpu or values.is_neg():
        return None
    library = kernel()
    kind = _TYPES[values.dtype]
    return None if library is None else getattr(library, f"{name}_{kind}_{kind if single else 'double'}")


@cache
def kernel() -> ctypes.CDLL | None:
    """The compiled sums; None where there are none, or where they do not compute what torch computes."""
    library = compiled(SOURCE)
    if library is None:
        return None
    for kinds in ("float_float", "float_double", "double_double"):
        for name, types in (("outer_sum", _OUTER), ("row_sum", _ROW)):
            function = getattr(library, f"{name}_{kinds}")
            function.argtypes, function.restype = [*types, ctypes.c_void_p], None
    return library if _agrees(library) else None


def _agrees(library: ctypes.CDLL) -> bool:
    """Whether the sums are those of torch for tiles of all kinds, within their bounds."""
    source = torch.Generator("cpu").manual_seed(0)
    shapes = ((90, 6, 31), (90, 6, 45), (90,))
    d, a, scales = (torch.randn(*shape, generator=source, dtype=torch.float64, device="cpu") for shape in shapes)
    places = scales.repeat_interleave(6)
    for dtype, kinds, tolerance in (
        (torch.float32, "float_float", 1e-5),
        (torch.float32, "float_double", 1e-12),
        (torch.float64, "double_double", 1e-12),
    ):
        outputs, inputs = d.to(dtype), a.to(dtype)
        wanted = torch.einsum("b,bto,bti->oi", scales, outputs.double(), inputs.double())
        found = _outer_by_kernel(
            getattr(library, f"outer_sum_{kinds}"), Operand.of(outputs), Operand.of(inputs), places, slice(0, 540)
        )
        at = places_of(inputs.shape[:-1], inputs.stride()[:-1])
        rows = _row_by_kernel(getattr(library, f"row_sum_{kinds}"), inputs, at, places)
        pairs = ((found, wanted), (rows, places @ inputs.flatten(0, 1).double()))
        if not all(torch.allclose(one, other, rtol=tolerance, atol=540 * tolerance) for one, other in pairs):
            return False
    return True
