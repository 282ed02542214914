"""Linear layers, on vectors and on sequences of any shape."""

from __future__ import annotations

import torch
from torch import nn

from inosgd.gradients.rules.forms import affine
from inosgd.gradients.rules.rule import Gradients, LayerCall, register_rule


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


register_rule(nn.Linear, linear_rule)
