"""Normalisation within an example: scale and shift of LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

All of them are y = weight * n(a) + bias with n(a) the normalised input, so that per example

    d weight = sum over the places that share an entry of d * n(a),    d bias = the same sum of d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from inosgd.gradients.rules.forms import Dense
from inosgd.gradients.rules.rule import Gradients, LayerCall, register_named_rule, register_rule
from inosgd.gradients.rules.sums import normal_sums

_group_norm_backward = torch.ops.aten.native_group_norm_backward


def layer_norm_rule(call: LayerCall) -> Gradients:
    """Entries lie in the last dimensions; every place before them shares the same weight and bias."""
    layer: nn.LayerNorm = call.module
    if not call.trains("weight"):
        return _trailing(call, None)
    if call.noted is None:
        return _trailing(call, functional.layer_norm(call.input, layer.normalized_shape, eps=layer.eps))
    means, scales = call.noted
    width = math.prod(layer.normalized_shape)
    shape = (len(call.gradient), call.gradient.shape[1:].numel() // width, width)
    found = normal_sums(call.input.reshape(shape), call.gradient.reshape(shape), means, scales, over_pixels=False)
    if found is None:
        return _trailing(call, (call.input - means).mul_(scales))
    return _named(call, [each.view(-1, *layer.normalized_shape) for each in found])


def rms_norm_rule(call: LayerCall) -> Gradients:
    """Like LayerNorm, without a mean and without a bias."""
    layer: nn.RMSNorm = call.module
    return _trailing(call, functional.rms_norm(call.input, layer.normalized_shape, eps=layer.eps))


def language_norm_rule(call: LayerCall) -> Gradients:
    """The RMSNorm of language models, which have modules of their own for it, over the last dimension."""
    weight = call.module.weight
    shown = call._replace(module=SimpleNamespace(weight=weight, normalized_shape=weight.shape))
    return _trailing(shown, functional.rms_norm(call.input, weight.shape, eps=call.module.variance_epsilon))


def group_norm_rule(call: LayerCall) -> Gradients:
    """Channels are normalised in groups; every pixel of a channel shares one weight and bias."""
    return _channels(call, call.module.num_groups)


def instance_norm_rule(call: LayerCall) -> Gradients:
    """GroupNorm with one channel per group."""
    return _channels(call, call.module.num_features)


def _trailing(call: LayerCall, normal: torch.Tensor | None) -> Gradients:
    """From n(a), whose memory is used up; None if there is no weight to train."""
    shape = (len(call.gradient), -1, *call.module.normalized_shape)
    outputs = call.gradient.reshape(shape)
    sums = {"bias": outputs.sum(1)} if call.trains("bias") else {}
    if normal is not None:
        sums["weight"] = normal.to(outputs.dtype).reshape(shape).mul_(outputs).sum(1)
    return _dense(call, sums)


def _channels(call: LayerCall, groups: int) -> Gradients:
    """All examples as one, with as many times the channels and a copy of weight and bias for each of them.

    The copies' gradients are the examples' gradients, and one call of the library's kernel gives them all.
    """
    count, channels = call.input.shape[:2]
    if call.noted is not None:
        apart = [each.reshape(count, channels, each.shape[2:].numel()) for each in (call.input, call.gradient)]
        found = normal_sums(*apart, *call.noted, over_pixels=True)
        if found is not None:
            return _named(call, found)
    outputs = call.gradient.reshape(1, count * channels, -1)
    inputs = call.input.to(outputs.dtype).reshape(outputs.shape)
    shape = (1, count * channels, outputs.shape[2], count * groups)
    statistics = call.noted or torch.native_group_norm(inputs, None, None, *shape, call.module.eps)[1:]
    means, scales = (each.to(outputs.dtype).reshape(1, -1) for each in statistics)
    copies = call.module.weight.detach().to(outputs.dtype).repeat(count)
    _, *sums = _group_norm_backward(outputs, inputs, means, scales, copies, *shape, [False, True, True])
    return _named(call, [part.view(count, channels) for part in sums])


def _statistics(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The mean and 1 / standard deviation behind every n(a), which autograd has kept for the backward pass.

    They save the rule a second look at the whole input. None if autograd has not kept them, or not here, or where
    hooks have a say in what it keeps: a checkpoint would compute them anew.
    """
    node: Any = output.grad_fn
    if type(node).__name__ not in ("NativeGroupNormBackward0", "NativeLayerNormBackward0") or _hooks_on_kept_tensors():
        return None
    found = [getattr(node, name, None) for name in ("_saved_result1", "_saved_result2")]
    kept = [each.detach() for each in found if isinstance(each, torch.Tensor)]
    return (kept[0], kept[1]) if len(kept) == 2 else None


def _named(call: LayerCall, sums: Sequence[torch.Tensor]) -> Gradients:
    """The gradients of weight and bias, of those that are trained."""
    named = zip(("weight", "bias"), sums, strict=True)
    return _dense(call, {name: part for name, part in named if call.trains(name)})


def _dense(call: LayerCall, sums: dict[str, torch.Tensor]) -> Gradients:
    return {tuple(getattr(call.module, name) for name in sums): Dense(tuple(sums.values()))}


def _hooks_on_kept_tensors() -> bool:
    """Whether ``saved_tensors_hooks`` are active; yes if torch does not tell."""
    active: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return active is None or active(True) is not None


register_rule(nn.LayerNorm, layer_norm_rule, note=_statistics)
register_rule(nn.RMSNorm, rms_norm_rule)
register_named_rule("timm.layers.norm.LayerNorm", layer_norm_rule)
for _family in ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3", "Granite"):
    _place = f"transformers.models.{_family.lower()}.modeling_{_family.lower()}"
    register_named_rule(f"{_place}.{_family}RMSNorm", language_norm_rule)
register_rule(nn.GroupNorm, group_norm_rule, note=_statistics)
for _instance_norm in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_rule(_instance_norm, instance_norm_rule)
