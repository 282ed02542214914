"""Max-pooling on the CPU with the channels of a pixel next to each other.

Pooling has no parameters, so there is nothing to record about it; but it takes half of a small convolutional
network's step, because the library's kernel for the usual layout looks at one number at a time. With channels last
the same comparisons are made for many channels at once. Inputs, outputs and gradients are exactly those of the usual
layout, and they are handed over in it, so that a model notices nothing (``view`` works as before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

CHANNELS = 8
"""From so many channels on, changing the layout twice costs less than it saves."""

CHUNK_ELEMENTS = 1 << 20
"""How many numbers change their layout at once."""

_LAST = torch.channels_last
_pool = torch.ops.aten.max_pool2d_with_indices
_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward


def suits(layer: nn.MaxPool2d, inputs: Any) -> bool:
    """Whether the input is a batch of images in the usual layout on the CPU, with enough channels."""
    return (
        not layer.return_indices
        and isinstance(inputs, torch.Tensor)
        and inputs.dim() == 4
        and inputs.device.type == "cpu"
        and inputs.dtype in (torch.float32, torch.float64)
        and inputs.shape[1] >= CHANNELS
        and inputs.is_contiguous()
    )


def pooled(layer: nn.MaxPool2d, inputs: torch.Tensor) -> torch.Tensor:
    """What the layer returns."""
    stride = layer.kernel_size if layer.stride is None else layer.stride
    settings = [_pair(each) for each in (layer.kernel_size, stride, layer.padding, layer.dilation)]
    result: torch.Tensor = _ChannelsLastPool.apply(inputs, (*settings, layer.ceil_mode))  # type: ignore[no-untyped-call]
    return result


class _ChannelsLastPool(torch.autograd.Function):
    """A few examples at a time change their layout and back, in the processor's cache.

    Only where the maxima were is kept for the backward pass, and not the input in the other layout.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, settings: tuple[Any, ...]) -> torch.Tensor:
        ctx.shape, ctx.settings = inputs.shape, settings
        chunks = [_pool(part.contiguous(memory_format=_LAST), *settings) for part in _chunks(inputs, inputs.shape)]
        ctx.save_for_backward(*[places for _, places in chunks])
        return torch.cat([output.contiguous() for output, _ in chunks])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        result = gradients[0].new_empty(ctx.shape)
        parts = zip(_chunks(gradients[0], ctx.shape), _chunks(result, ctx.shape), ctx.saved_tensors, strict=True)
        for arrived, target, places in parts:
            like = torch.empty_like(target, memory_format=_LAST)  # never read or written
            target.copy_(_pool_backward(arrived.contiguous(memory_format=_LAST), like, *ctx.settings, places))
        return result, None


def _chunks(values: torch.Tensor, shape: torch.Size) -> Sequence[torch.Tensor]:
    """The values of a few images each, of inputs of this shape."""
    return torch.split(values, max(1, CHUNK_ELEMENTS // shape[1:].numel()))


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
