"""Normalisation within an example: scale and shift of LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

All of them are y = weight * n(a) + bias with n(a) the normalised input, so that per example

    d weight = sum over the places that share an entry of d * n(a),    d bias = the same sum of d.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inosgd.gradients.rules.forms import Dense
from inosgd.gradients.rules.rule import Gradients, LayerCall, register_rule


def layer_norm_rule(call: LayerCall) -> Gradients:
    """Entries lie in the last dimensions; every place before them shares the same weight and bias."""
    layer: nn.LayerNorm = call.module
    normal = functional.layer_norm(call.input, layer.normalized_shape, eps=layer.eps) if call.trains("weight") else None
    return _trailing(call, normal)


def rms_norm_rule(call: LayerCall) -> Gradients:
    """Like LayerNorm, without a mean and without a bias."""
    layer: nn.RMSNorm = call.module
    return _trailing(call, functional.rms_norm(call.input, layer.normalized_shape, eps=layer.eps))


def group_norm_rule(call: LayerCall) -> Gradients:
    """Channels are normalised in groups; every pixel of a channel shares one weight and bias."""
    return _channels(call, call.module.num_groups)


def instance_norm_rule(call: LayerCall) -> Gradients:
    """GroupNorm with one channel per group."""
    return _channels(call, call.module.num_features)


def _trailing(call: LayerCall, normal: torch.Tensor | None) -> Gradients:
    shape = (len(call.gradient), -1, *call.module.normalized_shape)
    outputs = call.gradient.reshape(shape)
    sums = {"bias": outputs.sum(1)} if call.trains("bias") else {}
    if normal is not None:
        sums["weight"] = (outputs * normal.reshape(shape)).sum(1)
    return _dense(call, sums)


def _channels(call: LayerCall, groups: int) -> Gradients:
    """All examples as one, with as many times the channels and a copy of weight and bias for each of them.

    The copies' gradients are the examples' gradients, and one call of the library's kernel gives them all.
    """
    count, channels = call.input.shape[:2]
    trained = [name for name in ("weight", "bias") if call.trains(name)]
    weight, bias = (getattr(call.module, name).detach().repeat(count) for name in ("weight", "bias"))
    wanted = [{"weight": weight, "bias": bias}[name].requires_grad_() for name in trained]
    folded = (1, count * channels, -1)
    with torch.enable_grad():
        output = functional.group_norm(call.input.reshape(folded), count * groups, weight, bias, call.module.eps)
    sums = torch.autograd.grad(output, wanted, call.gradient.reshape(folded))
    return _dense(call, {name: part.view(count, channels) for name, part in zip(trained, sums, strict=True)})


def _dense(call: LayerCall, sums: dict[str, torch.Tensor]) -> Gradients:
    return {tuple(getattr(call.module, name) for name in sums): Dense(tuple(sums.values()))}


register_rule(nn.LayerNorm, layer_norm_rule)
register_rule(nn.RMSNorm, rms_norm_rule)
register_rule(nn.GroupNorm, group_norm_rule)
for _instance_norm in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_rule(_instance_norm, instance_norm_rule)
