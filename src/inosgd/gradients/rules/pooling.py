"""Max-pooling on the CPU with the channels of a pixel next to each other.

Pooling has no parameters, so there is nothing to record about it; but it takes half of a small convolutional
network's step, because the library's kernel for the usual layout looks at one number at a time. With channels last
the same comparisons are made for many channels at once. Inputs, outputs and gradients are exactly those of the usual
layout, and they are handed over in it, so that a model notices nothing (``view`` works as before).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CHANNELS = 8
"""From so many channels on, changing the layout twice costs less than it saves."""

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
    """Only where the maxima were is kept for the backward pass, and not the input in the other layout."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, settings: tuple[Any, ...]) -> torch.Tensor:
        output, places = _pool(inputs.contiguous(memory_format=torch.channels_last), *settings)
        ctx.save_for_backward(places)
        ctx.shape, ctx.settings = inputs.shape, settings
        result: torch.Tensor = output.contiguous()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (places,) = ctx.saved_tensors
        arrived = gradients[0].contiguous(memory_format=torch.channels_last)
        like = torch.empty(ctx.shape, dtype=arrived.dtype, memory_format=torch.channels_last)  # never read or written
        result = _pool_backward(arrived, like, *ctx.settings, places)
        del arrived, like
        return result.contiguous(), None


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
