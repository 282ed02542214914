"""Convolutions in one and two dimensions.

With a the padded input, s the stride and h the dilation, output pixel y of example i sees at kernel offset k the
input pixel s y + h k, so that

    dW[o, c, k] = sum_y d[o, y] a[c, s y + h k],    db[o] = sum_y d[o, y].

Channel groups are independent convolutions; they are treated as a second example dimension, and their gradients are
held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from inosgd.gradients.rules.forms import (
    Bounds,
    Dense,
    Form,
    Rows,
    apart,
    held_bounds,
    pair_bounds,
    pixel_squares,
    raised,
    sum_rows,
)
from inosgd.gradients.rules.linear import map_gradients
from inosgd.gradients.rules.rule import Gradients, LayerCall, reads_places, register_rule
from inosgd.gradients.rules.sums import Operand, channel_gradients, example_sums, outer_sums, places_of

CHUNK_ELEMENTS = 1 << 19
"""How many numbers are unfolded, or in a Gram matrix, at once: few enough to stay in the processor's cache."""

HELD_PIXELS = 64
"""From so many output pixels on, holding gradients from norms to sum costs less than computing the sum anew."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """The shape of a two-dimensional convolution; ``weight`` is the shape the parameter has."""

    weight: tuple[int, ...]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


@reads_places
def convolution_rule(call: LayerCall) -> Gradients:
    """As a linear map, by Gram matrices, by gradients of a few examples at a time, or by gradients that are held.

    The choice depends on shapes alone, so that runs reproduce; see `_prefers_gram` and `HELD_PIXELS`.
    """
    inputs, outputs, geometry = _planar(call)
    if geometry.kernel == (1, 1):
        inputs, geometry = _seen_by_one_pixel(inputs, geometry)
    if call.places > 1:
        inputs, outputs, geometry = _stacked(inputs, outputs, geometry, call.places)
    if geometry.groups == 1 and _sees_patches(geometry):
        return _of_patches(call.module, inputs, outputs, geometry)
    gradients: dict[tuple[nn.Parameter, ...], Form] = {}
    if call.trains("weight"):
        gradients[(call.module.weight,)] = _weight_gradients(inputs, outputs, geometry)
    if call.trains("bias"):
        gradients[(call.module.bias,)] = Dense((outputs.sum((2, 3)),))
    return gradients


def _weight_gradients(inputs: torch.Tensor, outputs: torch.Tensor, geometry: Geometry) -> Form:
    if geometry.groups > 1 and geometry.groups == inputs.shape[1] == outputs.shape[1]:
        by_kernel = channel_gradients(
            inputs, outputs, (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
        )
        if by_kernel is not None:
            return Dense((by_kernel.view(len(by_kernel), *geometry.weight),))
    form = Convolved(inputs, outputs, geometry, _prefers_gram(inputs, outputs, geometry))
    held = geometry.groups > 1 or (not form.gram and outputs.shape[2] * outputs.shape[3] >= HELD_PIXELS)
    return form.held() if held else form


def _sees_patches(shape: Geometry) -> bool:
    """Whether every input pixel is seen once: the stride is the kernel, as for one pixel or patches of an image."""
    return shape.kernel == shape.stride and shape.padding == (0, 0) and shape.dilation == (1, 1)


def _of_patches(layer: Any, inputs: torch.Tensor, outputs: torch.Tensor, shape: Geometry) -> Gradients:
    """A linear map of the patches, with its bias: what output pixel y sees is a vector of its own."""
    (down, across), (height, width) = shape.kernel, outputs.shape[2:]
    seen = inputs[:, :, : height * down, : width * across]
    split = seen.reshape(*seen.shape[:2], height, down, width, across)
    patches = split.permute(0, 2, 4, 1, 3, 5).reshape(len(inputs), height * width, -1)
    found = map_gradients(layer.weight, layer.bias, patches, outputs.flatten(2).mT)
    reshaped = {key: Reshaped(form, tuple([each.shape for each in key])) for key, form in found.items()}
    return {key: Dense(tuple(r.materialise())) if isinstance(r.form, Dense) else r for key, r in reshaped.items()}


@dataclass(frozen=True, eq=False)
class Reshaped:
    """Gradients of parameters of other shapes than the form knows."""

    form: Form
    shapes: tuple[torch.Size, ...]

    def bounds(self) -> Bounds:
        """The same."""
        return self.form.bounds()

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """The same, in the parameters' shapes."""
        parts = self.form.weighted_sum(coefficients, single=single)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def sum_into(self, targets: Sequence[torch.Tensor], coefficients: torch.Tensor, *, single: bool) -> None:
        """The same, written where it belongs."""
        flat = [target.view(len(target), -1) if target.dim() > 1 else target for target in targets]
        form: Any = self.form
        form.sum_into(flat, coefficients, single=single)

    def materialise(self) -> Sequence[torch.Tensor]:
        """The same, in the parameters' shapes."""
        parts = zip(self.form.materialise(), self.shapes, strict=True)
        return [part.reshape(len(part), *shape) for part, shape in parts]

    def select(self, rows: Rows) -> Reshaped:
        """Some examples."""
        return Reshaped(self.form.select(rows), self.shapes)


@dataclass(frozen=True, eq=False)
class Convolved:
    """Gradients of the weight of a convolution without groups, as input and output gradient.

    |dW|^2 = sum_{y,z} D[y,z] sum_k A[s y + h k, s z + h k], with D = d^T d over output pixels and A = a^T a over
    padded input pixels: A is computed once and summed over shifts, k^2 fewer products than the Gram matrix of the
    unfolded input. With a stride only pixels of the same phase (position modulo s) ever meet, so that one smaller
    A per phase is enough.

    Attributes:
        inputs: a, without the padding that the geometry has.
        outputs: d.
        geometry: How they belong together.
        gram: Whether norms come from Gram matrices; from the gradients of a few examples at a time otherwise. Either
            way they are rounded up.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor
    geometry: Geometry
    gram: bool = True

    def bounds(self) -> Bounds:
        """By the formula above, or by the gradients; a chunk of examples at a time."""
        if not self.gram:
            chunks = _chunks(self.inputs, self.outputs, math.prod(self.geometry.weight))
            parts = [replace(self, inputs=a, outputs=d).held().bounds().norms for a, d in chunks]
            pixels, entries = self.outputs.shape[2] * self.outputs.shape[3], math.prod(self.geometry.weight)
            return raised(torch.cat(parts), self._squared_magnitudes(), self.outputs, pixels, entries)
        pixels = math.prod(
            (self.inputs.shape[2 + i] + 2 * self.geometry.padding[i]) // self.geometry.stride[i] for i in (0, 1)
        )
        terms = self.outputs.shape[1], self.inputs.shape[1] * math.prod(self.geometry.kernel)
        bounds = [
            pair_bounds(_pixel_gram(d), _unfolded_gram(a, d, self.geometry), *terms)
            for a, d in _chunks(self.inputs, self.outputs, pixels**2)
        ]
        return Bounds(*[torch.cat(each) for each in zip(*bounds, strict=True)])

    def _squared_magnitudes(self) -> torch.Tensor:
        """m^2, with m = sum_y |d_y| |a_y|, a_y being what output pixel y sees of the input."""
        shape = self.geometry
        of_inputs = pixel_squares(self.inputs).unsqueeze(1)
        seen = functional.conv2d(
            of_inputs, of_inputs.new_ones(1, 1, *shape.kernel), None, shape.stride, shape.padding, shape.dilation
        )
        lengths = (seen.squeeze(1) * pixel_squares(self.outputs)).sqrt()
        return lengths.flatten(1).sum(1).square()

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """sum_i c_i sum_y d_y a_y^T over the output pixels of all examples, read where they are."""
        total = self.outputs.new_empty(self.geometry.weight, dtype=torch.float64)
        self.sum_into([total], coefficients, single=single)
        return [total]

    def sum_into(self, targets: Sequence[torch.Tensor], coefficients: torch.Tensor, *, single: bool) -> None:
        """The same, written where it belongs."""
        outputs, inputs = self._operands()
        scales = coefficients.repeat_interleave(self.outputs.shape[2] * self.outputs.shape[3])
        outer_sums(outputs, [inputs], scales, single=single, into=[targets[0].view(len(targets[0]), -1)])

    def _operands(self) -> tuple[Operand, Operand]:
        """d and what it is multiplied by at every output pixel, read where they are: columns in the weight's order."""
        shape, outputs = self.geometry, self.outputs
        (top, side), inputs = shape.padding, self.inputs
        inputs = functional.pad(inputs, (side, side, top, top)) if top or side else inputs
        pixels, (example, channel, down, right) = (len(outputs), *outputs.shape[2:]), inputs.stride()
        places = places_of(pixels, (example, shape.stride[0] * down, shape.stride[1] * right))
        steps = (channel, shape.dilation[0] * down, shape.dilation[1] * right)
        seen = Operand(inputs, places, places_of((inputs.shape[1], *shape.kernel), steps))
        places = places_of(pixels, (outputs.stride(0), *outputs.stride()[2:]))
        return Operand(outputs, places, places_of((outputs.shape[1],), (outputs.stride(1),))), seen

    def materialise(self) -> Sequence[torch.Tensor]:
        """The gradients themselves."""
        return self.held().materialise()

    def select(self, rows: Rows) -> Convolved:
        """Inputs and output gradients of some examples."""
        return replace(self, inputs=self.inputs[rows], outputs=self.outputs[rows])

    def held(self) -> Form:
        """The gradients, by the compiled kernel if there is one."""
        outputs, inputs = self._operands()
        found = example_sums(outputs, [inputs], len(self.outputs)) if self.geometry.groups == 1 else None
        return Dense((found[0].view(-1, *self.geometry.weight),)) if found else self.by_kernel_row()

    def by_kernel_row(self) -> KernelRows:
        """The gradients, one row of the kernel after the other.

        For kernel row k the input is needed at the pixels (s y + h k, s x + h l), for all l: unfolded in its
        columns only, the input holds them all, and those of one kernel row are consecutive in it. One product of
        d with that part per kernel row is all there is to do, and the input is copied k times instead of k^2.
        """
        inputs, outputs = self._by_group()
        height, width = self.geometry.kernel
        size = (len(inputs), outputs.shape[1], width * inputs.shape[1])
        rows = [outputs.new_empty(size) for _ in range(height)]
        start = 0
        for a, d in _chunks(inputs, outputs, width * inputs[0].numel()):
            _add_kernel_rows(a, d, self.geometry, [row[start : start + len(a)] for row in rows])
            start += len(a)
        count, filters = self.outputs.shape[:2]
        return KernelRows(tuple(row.view(count, filters, width, -1) for row in rows), self.geometry)

    def _by_group(self) -> tuple[torch.Tensor, torch.Tensor]:
        groups = self.geometry.groups
        if groups == 1:
            return self.inputs, self.outputs
        split = [each.reshape(len(each) * groups, -1, *each.shape[2:]) for each in (self.inputs, self.outputs)]
        return split[0], split[1]


@dataclass(frozen=True, eq=False)
class KernelRows:
    """Gradients of a convolution's weight, held: per kernel row one tensor (examples, filters, columns, channels)."""

    rows: tuple[torch.Tensor, ...]
    geometry: Geometry

    def bounds(self) -> Bounds:
        """Entry by entry."""
        return held_bounds(self.rows)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """Row by row, then in the weight's layout."""
        sums = torch.stack([sum_rows(row, coefficients, single) for row in self.rows], dim=1)
        return [sums.permute(0, 3, 1, 2).reshape(self.geometry.weight)]

    def materialise(self) -> Sequence[torch.Tensor]:
        """In the weight's layout, (examples, filters, channels, kernel)."""
        stacked = torch.stack(self.rows, dim=2).permute(0, 1, 4, 2, 3)
        return [stacked.reshape(len(stacked), *self.geometry.weight)]

    def select(self, rows: Rows) -> KernelRows:
        """Some examples of every kernel row."""
        return KernelRows(tuple(row[rows] for row in self.rows), self.geometry)


def _add_kernel_rows(
    inputs: torch.Tensor, outputs: torch.Tensor, shape: Geometry, rows: Sequence[torch.Tensor]
) -> None:
    """Fill ``rows[k]`` with sum_y d[o, y] a[c, s y + h k], as (examples, filters, columns x channels).

    Input rows are sorted by phase, so that the rows s y + h k of one k follow each other.
    """
    stride, width = shape.stride[0], outputs.shape[3]
    top, side = shape.padding
    bottom = top + -(inputs.shape[2] + 2 * top) % stride
    padded = functional.pad(inputs, (side, side, top, bottom)).permute(0, 2, 3, 1).contiguous()
    count, height, _, channels = padded.shape
    example, down, right, _ = padded.stride()
    columns = padded.as_strided(
        (stride, count, height // stride, width, shape.kernel[1], channels),
        (down, example, stride * down, shape.stride[1] * right, shape.dilation[1] * right, 1),
    ).reshape(stride, count, height // stride * width, -1)
    flat = outputs.flatten(2)
    for row, out in enumerate(rows):
        shift, phase = divmod(row * shape.dilation[0], stride)
        start = shift * width
        torch.bmm(flat, columns[phase, :, start : start + flat.shape[2]], out=out)


def _chunks(inputs: torch.Tensor, outputs: torch.Tensor, elements: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and outputs of a few examples at a time, ``elements`` being what one example takes."""
    size = max(2, CHUNK_ELEMENTS // max(1, elements))
    for start in range(0, len(inputs), size):
        yield inputs[start : start + size], outputs[start : start + size]


def _prefers_gram(inputs: torch.Tensor, outputs: torch.Tensor, shape: Geometry) -> bool:
    """Whether Gram matrices and a second product cost less than materialising; a rule on shapes alone."""
    channels, filters = inputs.shape[1] // shape.groups, outputs.shape[1] // shape.groups
    pixels = outputs.shape[2] * outputs.shape[3]
    phases = min(shape.stride[0], shape.kernel[0]) * min(shape.stride[1], shape.kernel[1])
    seen = inputs.shape[2] * inputs.shape[3] if phases == 1 else pixels * 1.3
    direct = pixels * channels * shape.kernel[0] * shape.kernel[1] * filters
    return phases * seen * seen * channels + pixels * pixels * filters < 0.35 * direct


def _pixel_gram(values: torch.Tensor) -> torch.Tensor:
    flat = values.flatten(2)
    return flat.mT @ flat


def _unfolded_gram(inputs: torch.Tensor, outputs: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """sum_k A[s y + h k, s z + h k] over all pairs (y, z) of output pixels."""
    height, width = outputs.shape[2:]
    total = inputs.new_zeros(len(inputs), height, width, height, width)
    for gram, row_shifts, column_shifts in _phase_grams(inputs, shape):
        first, *others = row_shifts
        rows = gram[:, first : first + height, :, first : first + height]
        if others:
            rows = rows.clone()
        for i in others:
            rows += gram[:, i : i + height, :, i : i + height]
        for j in column_shifts:
            total += rows[:, :, j : j + width, :, j : j + width]
    return total.view(len(inputs), height * width, height * width)


def _phase_grams(inputs: torch.Tensor, shape: Geometry) -> Iterator[tuple[torch.Tensor, list[int], list[int]]]:
    """The Gram matrices of the padded input's phases, with the shifts at which kernel rows and columns see them."""
    top, side = shape.padding
    if shape.stride == (1, 1):
        gram = _pixel_gram(inputs).view(len(inputs), *inputs.shape[2:] * 2)
        gram = functional.pad(gram, (side, side, top, top) * 2)
        yield gram, _phases(shape, 0)[0][1], _phases(shape, 1)[0][1]
        return
    padded = functional.pad(inputs, (side, side, top, top))
    for row_phase, row_shifts in _phases(shape, 0):
        for column_phase, column_shifts in _phases(shape, 1):
            seen = padded[:, :, row_phase :: shape.stride[0], column_phase :: shape.stride[1]]
            yield _pixel_gram(seen).view(len(inputs), *seen.shape[2:] * 2), row_shifts, column_shifts


def _phases(shape: Geometry, axis: int) -> list[tuple[int, list[int]]]:
    """For every phase that kernel offsets fall on, by how many strides they are shifted."""
    offsets = [offset * shape.dilation[axis] for offset in range(shape.kernel[axis])]
    stride = shape.stride[axis]
    phases = sorted({offset % stride for offset in offsets})
    return [(phase, [offset // stride for offset in offsets if offset % stride == phase]) for phase in phases]


def _planar(call: LayerCall) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """Input, output gradient and geometry in two dimensions, with any padding but zeros already applied."""
    layer: Any = call.module
    inputs, outputs = call.input, call.gradient
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(layer.kernel_size)
    shape = Geometry(
        weight=layer.weight.shape,
        kernel=_pair(layer.kernel_size, 1),
        stride=_pair(layer.stride, 1),
        padding=_pair(padding, 0),
        dilation=_pair(layer.dilation, 1),
        groups=layer.groups,
    )
    if inputs.dim() == 3:
        inputs, outputs = inputs.unsqueeze(2), outputs.unsqueeze(2)
    return inputs, outputs, shape


def _seen_by_one_pixel(inputs: torch.Tensor, shape: Geometry) -> tuple[torch.Tensor, Geometry]:
    """A kernel of one pixel sees every s-th pixel of the input only: the rest can be left out, and the stride too."""
    top, side = shape.padding
    padded = functional.pad(inputs, (side, side, top, top)) if top or side else inputs
    seen = padded[:, :, :: shape.stride[0], :: shape.stride[1]]
    return seen, replace(shape, stride=(1, 1), padding=(0, 0), dilation=(1, 1))


def _stacked(
    inputs: torch.Tensor, outputs: torch.Tensor, shape: Geometry, places: int
) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """The images of an example one under the other, with their padding, as one image.

    Each has a height of whole strides, so that its output pixels are output pixels of the tall image. Where the kernel
    would see the end of one image and the beginning of the next, d is 0.
    """
    (top, side), stride, height = shape.padding, shape.stride[0], inputs.shape[2]
    each = -(-(height + 2 * top) // stride)
    rows = outputs.shape[2]
    if each == rows and not top and height == each * stride:
        tall, targets = (apart(values, places).transpose(1, 2) for values in (inputs, outputs))
    else:
        count = len(inputs) // places
        tall = inputs.new_zeros(count, inputs.shape[1], places, each * stride, inputs.shape[3])
        tall[:, :, :, top : top + height] = apart(inputs, places).transpose(1, 2)
        targets = outputs.new_zeros(count, outputs.shape[1], places, each, outputs.shape[3])
        targets[:, :, :, :rows] = apart(outputs, places).transpose(1, 2)
    used = (places - 1) * each + rows
    seen = (used - 1) * stride + (shape.kernel[0] - 1) * shape.dilation[0] + 1
    return tall.flatten(2, 3)[:, :, :seen], targets.flatten(2, 3)[:, :, :used], replace(shape, padding=(0, side))


def _pair(values: Sequence[int], filler: int) -> Pair:
    return (values[0], values[1]) if len(values) == 2 else (filler, values[0])


register_rule(nn.Conv1d, convolution_rule)
register_rule(nn.Conv2d, convolution_rule)
