"""The chain's kernel: a pass through a small chain of linear layers as three calls of compiled code.

A step of a small network costs what its calls of torch cost, not what they compute. ``chain_kernel.cpp`` does the same
arithmetic as `inosgd.gradients.rules.chain` in one call each for the forward pass, for the backward pass with the
norms, and for the weighted sum. It is used where there is a compiler, on the CPU, for chains with no activation but
ReLU, and for narrow layers: large products are what torch is good at. The choice depends on the model alone, not on a
batch, so that two neighbouring batches are summed in the same way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from inosgd.gradients.compiling import compiled
from inosgd.gradients.rules.chain import ACTIVATIONS, ChainGradients, ChainRun, FoldedChain, Layer, Run, parameters_of
from inosgd.gradients.rules.forms import Bounds, OuterProducts, Rows, folded
from inosgd.gradients.rules.rule import Gradients

SOURCE = Path(__file__).with_suffix(".cpp")

WIDEST = 128
"""The most features of a layer that the kernel is used for."""

_KNOWN = (None, ACTIVATIONS[nn.ReLU])
_TYPES = {torch.float32: "float", torch.float64: "double"}


class Kernel(NamedTuple):
    """The functions of the source for one type of numbers, and how many numbers fit into a vector."""

    forward: Callable[..., None]
    backward: Callable[..., bool]
    weighted_sum: Callable[..., None]
    folded_bounds: Callable[..., None]
    lanes: int


class ChainStruct(ctypes.Structure):
    """``Chain`` of the source."""

    _fields_ = (
        ("layers", ctypes.c_long),
        ("widths", ctypes.c_void_p),
        ("rectified", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("examples", ctypes.c_long),
    )


class Shape(NamedTuple):
    """What is the same for all passes through a chain."""

    widths: tuple[int, ...]
    rectified: tuple[bool, ...]
    biased: tuple[bool, ...]


class Layout(NamedTuple):
    """Where things of a shape lie.

    Attributes:
        rows: How many rows the values of each d and then of each a have.
        numbers: How many weights and biases there are.
        arrays: The shape as the kernel is told it, in memory that stays where it is.
    """

    rows: tuple[int, ...]
    numbers: int
    arrays: tuple[Any, Any]


@lru_cache(maxsize=256)
def layout(shape: Shape) -> Layout:
    """The layout of a shape."""
    outputs, inputs = shape.widths[1:], shape.widths[:-1]
    widths = (ctypes.c_long * len(shape.widths))(*shape.widths)
    rectified = (ctypes.c_ubyte * len(outputs))(*shape.rectified)
    numbers = sum(map(mul, outputs, inputs)) + sum(map(mul, outputs, shape.biased))
    return Layout(outputs + inputs, numbers, (widths, rectified))


class KernelRun:
    """One pass through a chain, by the kernel; see `inosgd.gradients.rules.chain.ChainRun`.

    Attributes:
        layers: The layers of the chain.
        shape: Their shape.
        block: d_1 .. d_L and then a_1 .. a_L, one row per feature and one column per example, and room for one vector.
        squares: At least the squared norms of the examples' gradients, after the backward pass.
    """

    def __init__(self, functions: Kernel, shape: Shape, layers: Sequence[Layer], inputs: torch.Tensor) -> None:
        self.layers, self.shape, self._functions = layers, shape, functions
        self._pulled: torch.Tensor | None = None
        self._finite = True
        known, count = layout(shape), len(inputs)
        self._output = inputs.new_empty(count, shape.widths[-1])
        self.block = inputs.new_empty(sum(known.rows) * count + functions.lanes)
        self.squares = inputs.new_empty(count, dtype=torch.float64)
        pointers = ctypes.c_void_p * len(layers)
        self._kept_alive = [
            parameter.untyped_storage() for parameter in parameters_of(layers)
        ]  # the model may be given others
        weights = pointers(*[layer.weight.data_ptr() for layer in layers])
        biases = pointers(*[None if layer.bias is None else layer.bias.data_ptr() for layer in layers])
        self._arrays = (*known.arrays, weights, biases)
        self._chain = ChainStruct(len(layers), *map(ctypes.addressof, self._arrays), count)

    @torch.no_grad()
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The chain's output, one row per example."""
        given = inputs.detach().contiguous().resolve_neg()
        self._call(self._functions.forward, given, self.block, self._output)
        return self._output

    @torch.no_grad()
    def pull(self, gradient: torch.Tensor) -> torch.Tensor:
        """From the gradient of the chain's output to d_1, with all the others on the way."""
        self._backward(gradient)
        return self.values()[: self.shape.widths[1]]

    def values(self, block: torch.Tensor | None = None) -> torch.Tensor:
        """The block, or another one like it, as rows and columns."""
        rows, count = sum(layout(self.shape).rows), len(self.squares)
        return (self.block if block is None else block)[: rows * count].view(rows, count)

    @torch.no_grad()
    def gradients(self, gradient: torch.Tensor) -> Gradients:
        """The per-example gradients of all layers."""
        self._backward(gradient)
        return {parameters_of(self.layers): KernelGradients(self)}

    def weighted_sum(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The weighted sums of all layers side by side, the bias after the weight, in float64.

        A summand is rounded at most 38 times on its way: twice before it is one, 32 times in its lane, 4 times where
        lanes are folded; see `inosgd.gradients.rules.sums`.

        Next to gradients that are not finite, 0 must not be multiplied: such an example is taken out of the block.
        """
        total = self.block.new_empty(layout(self.shape).numbers, dtype=torch.float64)
        block = self.block if self._finite else self._without((coefficients == 0) & ~self.squares.isfinite())
        self._call(self._functions.weighted_sum, coefficients.to(self.block).contiguous(), block, total)
        return total

    def folded_bounds(self, places: int) -> Bounds:
        """Bounds for examples that are so many rows each."""
        norms, magnitudes = (self.squares.new_empty(len(self.squares) // places) for _ in range(2))
        chain, block = ctypes.addressof(self._chain), self.block.data_ptr()
        self._functions.folded_bounds(chain, block, places, norms.data_ptr(), magnitudes.data_ptr())
        return Bounds(norms, magnitudes)

    def _without(self, examples: torch.Tensor) -> torch.Tensor:
        block = self.block.clone()
        self.values(block)[:, examples] = 0
        return block

    def _backward(self, gradient: torch.Tensor) -> None:
        if self._pulled is None or not torch.equal(self._pulled, gradient):
            self._pulled = gradient.contiguous().resolve_neg()
            self._finite = self._call(self._functions.backward, self._output, self._pulled, self.block, self.squares)

    def _call(self, function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        return function(ctypes.addressof(self._chain), *[tensor.data_ptr() for tensor in tensors])


@dataclass(frozen=True, eq=False)
class KernelGradients:
    """Gradients of a chain's weights and biases, as the kernel left them."""

    run: KernelRun

    def bounds(self) -> Bounds:
        """Known since the backward pass."""
        return Bounds(self.run.squares, self.run.squares)

    def flat_sum(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The same as `weighted_sum` with ``single``, side by side."""
        return self.run.weighted_sum(coefficients)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """By the kernel, in one call; layer by layer where that is not exact enough."""
        if not single:
            return self._plain().weighted_sum(coefficients, single=False)
        parameters = parameters_of(self.run.layers)
        parts = self.flat_sum(coefficients).split_with_sizes([parameter.numel() for parameter in parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]

    def materialise(self) -> Sequence[torch.Tensor]:
        """Layer by layer."""
        return self._plain().materialise()

    def apart(self) -> list[OuterProducts]:
        """The layers as forms of their own."""
        return self._plain().apart()

    def select(self, rows: Rows) -> ChainGradients:
        """The columns of some examples."""
        return self._plain().select(rows)

    def folded_bounds(self, places: int) -> Bounds:
        """By the kernel."""
        return self.run.folded_bounds(places)

    def folded(self, places: int) -> FoldedChain:
        """See `inosgd.gradients.rules.forms.folded`."""
        return FoldedChain(self, places)

    def _plain(self) -> ChainGradients:
        return ChainGradients(self.run.values(), layout(self.run.shape).rows, self.run.shape.biased)


def kernel_run(layers: Sequence[Layer], inputs: torch.Tensor) -> KernelRun | None:
    """A pass of ``inputs`` through the chain by the kernel, if it suits them."""
    shape = suited_shape(layers, inputs)
    found = None if shape is None else kernel(inputs.dtype)
    return None if shape is None or found is None else KernelRun(found, shape, layers, inputs)


def suited_shape(layers: Sequence[Layer], inputs: torch.Tensor) -> Shape | None:
    """The shape of a chain, if the kernel can run it on these inputs and is the faster way.

    The kernel believes what it is told: all sizes, types and places are checked here.
    """
    dtype, widths = inputs.dtype, [inputs.shape[1]]
    if dtype not in _TYPES or type(inputs) is not torch.Tensor or not inputs.is_cpu or not len(inputs):
        return None
    for weight, bias, activation in layers:
        outputs = len(weight)
        if weight.shape != (outputs, widths[-1]) or not _readable(weight, dtype) or activation not in _KNOWN:
            return None
        if bias is not None and not (bias.shape == (outputs,) and _readable(bias, dtype)):
            return None
        widths.append(outputs)
    rectified = tuple([activation is not None for _, _, activation in layers])
    shape = Shape(tuple(widths), rectified, tuple([bias is not None for _, bias, _ in layers]))
    return shape if max(widths) <= WIDEST and min(widths) > 0 else None


def _readable(parameter: nn.Parameter, dtype: torch.dtype) -> bool:
    plain = type(parameter) is nn.Parameter and parameter.dtype == dtype and not parameter.is_neg()
    return plain and parameter.is_cpu and parameter.is_contiguous()


@cache
def kernel(dtype: torch.dtype) -> Kernel | None:
    """The kernel for this type; None where there is none, or where it does not compute what torch computes.

    The first call on a machine builds it.
    """
    library = compiled(SOURCE) if dtype in _TYPES else None
    if library is None:
        return None
    found = [getattr(library, f"{name}_{_TYPES[dtype]}") for name in Kernel._fields]
    pointer = ctypes.c_void_p
    given = [[pointer] * 4, [pointer] * 5, [pointer] * 4, [pointer] * 2 + [ctypes.c_long] + [pointer] * 2, []]
    results = [None, ctypes.c_bool, None, None, ctypes.c_long]
    for function, arguments, result in zip(found, given, results, strict=True):
        function.argtypes, function.restype = arguments, result
    built = Kernel(found[0], found[1], found[2], found[3], found[4]())
    return built if agrees(built, dtype) else None


@torch.no_grad()
def agrees(functions: Kernel, dtype: torch.dtype) -> bool:
    """Whether the kernel gives torch's results for all kinds of layers and tiles, ends of rows, and two blocks."""
    source = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=dtype)

    layers = [
        Layer(nn.Parameter(normal(7, 6)), nn.Parameter(normal(7)), ACTIVATIONS[nn.ReLU]),
        Layer(nn.Parameter(normal(9, 7)), None, None),
        Layer(nn.Parameter(normal(2, 9)), nn.Parameter(normal(2)), ACTIVATIONS[nn.ReLU]),
    ]
    count = 39 * functions.lanes + 3
    inputs, gradient, coefficients = normal(count, 6), normal(count, 2), normal(count).double()
    shape = suited_shape(layers, inputs)
    if shape is None:
        return False

    def results(run: Run) -> tuple[list[torch.Tensor], torch.Tensor]:
        output = run.forward(inputs)
        (form,) = run.gradients(gradient).values()
        bounds = torch.cat([form.bounds().norms, *folded(form, 3, count // 3).bounds()])
        values = [output, run.pull(gradient), *form.weighted_sum(coefficients, single=True)]
        return [each.to(dtype) for each in values], bounds

    wanted, least = results(ChainRun(layers, inputs))
    found, bounds = results(KernelRun(functions, shape, layers, inputs))
    eps = torch.finfo(dtype).eps
    tolerance = eps**0.75
    same = all(
        # Terms of a sum cancel, so that its small entries err like its large ones.
        torch.allclose(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))
        for one, other in zip(found, wanted, strict=True)
    )
    # Squares do not cancel, and each example is clipped by its own bound. A bound of 0 is raised for underflow.
    return same and torch.allclose(bounds, least, rtol=tolerance, atol=eps**3 * float(least.max()))
