"""Linear layers, on vectors and on sequences of any shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from inosgd.gradients.rules.forms import Dense, Form, affine
from inosgd.gradients.rules.rule import Gradients, LayerCall, reads_places, register_named_rule, register_rule


def linear_rule(call: LayerCall) -> Gradients:
    """See `map_gradients`."""
    return map_gradients(call.module.weight, call.module.bias, call.input, call.gradient)


def map_gradients(
    weight: nn.Parameter, bias: nn.Parameter | None, inputs: torch.Tensor, outputs: torch.Tensor
) -> Gradients:
    """y_t = W a_t + b at every place t of an example: dW = sum_t d_t a_t^T and db = sum_t d_t."""
    if inputs.dim() > 2:
        inputs, outputs = inputs.flatten(1, -2), outputs.flatten(1, -2)
    trained = [parameter for parameter in (weight, bias) if parameter is not None and parameter.requires_grad]
    if not trained:
        return {}
    used = [inputs] if weight.requires_grad else []
    return {tuple(trained): affine(outputs, used, len(trained) - len(used))}


@reads_places
def product_rule(call: LayerCall) -> Gradients:
    """y = b + a W at every place: dW = sum_t a_t d_t^T."""
    rows = len(call.gradient) // call.places
    inputs, outputs = (each.reshape(rows, -1, each.shape[-1]) for each in (call.input, call.gradient))
    found: dict[tuple[nn.Parameter, ...], Form] = {}
    if call.trains("weight"):
        found[(call.module.weight,)] = affine(inputs, [outputs], 0)
    if call.trains("bias"):
        found[(call.module.bias,)] = Dense((outputs.sum(1),))
    return found


def by_columns(inputs: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None = None) -> torch.Tensor:
    """x W^T + b as (W x^T)^T + b, with a column for every place, in both directions.

    For some small widths the library's products round a row by its place in a tile, and columns never did. There is no
    gradient for the weight, which the layer's rule takes from what is recorded.
    """
    result: torch.Tensor = _ByColumns.apply(inputs, weight)  # type: ignore[no-untyped-call]
    return result if bias is None else result + bias


class _ByColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return _mapped(weight, inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return _mapped(weight.mT, gradients[0]), None


def _mapped(matrix: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    columns = places.reshape(-1, places.shape[-1]).mT.contiguous()
    return (matrix.contiguous() @ columns).mT.reshape(*places.shape[:-1], len(matrix))


register_rule(nn.Linear, linear_rule)
register_named_rule("transformers.pytorch_utils.Conv1D", product_rule)
