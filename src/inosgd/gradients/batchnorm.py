"""What comes in the place of BatchNorm, which mixes the examples of a batch: GroupNorm, or fixed statistics."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import Dense
from inosgd.gradients.rules.rule import Gradients, LayerCall, register_rule

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_AFTER = ("drop", "act")
"""What timm's BatchNorm with an activation does after it has normalised, in this order."""


_FEWEST, _FEWEST_OF_VECTORS = 4, 16
"""How many channels a group has at least: with one, a value would be normalised by itself and vanish."""


class FixedNorm(nn.Module):
    """BatchNorm whose statistics are constants: y = weight * (a - mean) / sqrt(variance + eps) + bias, in any mode.

    Guarantee:
        An output is a function of one example, of weight and bias, and of ``running_mean`` and ``running_var``, which
        no pass changes. They are part of the model from the start, and therefore have to be public: those of a network
        that was trained on public data are; those of a network that has seen private examples are not.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_parameter("weight", norm.weight)
        self.register_parameter("bias", norm.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs, normalised, scaled and shifted; channels are in the second dimension."""
        return functional.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def fixed_norm_rule(call: LayerCall) -> Gradients:
    """d weight = sum over places of d * n(a), d bias = the same sum of d."""
    layer: FixedNorm = call.module
    outputs = call.gradient.flatten(2) if call.gradient.dim() > 2 else call.gradient[..., None]
    sums = {"bias": outputs.sum(2)} if call.trains("bias") else {}
    if call.trains("weight"):
        normal = functional.batch_norm(call.input, layer.running_mean, layer.running_var, eps=layer.eps)
        sums["weight"] = (normal.to(outputs.dtype).reshape(outputs.shape) * outputs).sum(2)
    return {tuple(getattr(layer, name) for name in sums): Dense(tuple(sums.values()))}


register_rule(FixedNorm, fixed_norm_rule)


def replace_batchnorm(model: nn.Module, groups: int = 32, *, fixed: bool = False) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by a layer that looks at one example only.

    By default that is GroupNorm: scales and shifts are kept, running statistics are not, so train the result, or
    fine-tune it for long enough to make up for that. With ``fixed`` it is `FixedNorm`, which computes what the model
    computes in evaluation mode: for pretrained networks.

    Of a subclass whose only modules are a dropout ``drop`` and an activation ``act`` (timm's ``BatchNormAct2d``), these
    are kept too.

    Args:
        model: It is not changed.
        groups: The most groups a layer may have. The largest divisor of its channels up to it is used for which a
            group has at least 4 channels (16 in ``BatchNorm1d``, which may get vectors), or 1.
        fixed: Whether running statistics become constants. They must not come from private data.

    Raises:
        InvalidArgumentError: A BatchNorm is of another subclass, and what else it does is not known; or it does not
            know its number of channels yet; or it has no running statistics to fix.
    """
    _validate.whole(1, groups=groups)
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in _PLAIN and tuple(module._modules) != _AFTER:
            raise _unknown(path, module)
        if fixed and isinstance(module, _BatchNorm) and module.running_mean is None:
            raise InvalidArgumentError(
                f"module {path or 'model'!r} ({type(module).__name__}): it keeps no running statistics that could be "
                "fixed; leave fixed=False, for GroupNorm"
            )
    return _replaced(copy.deepcopy(model), None if fixed else groups, {})


def _unknown(path: str, norm: _BatchNorm) -> InvalidArgumentError:
    by_hand = "replace it by hand, by GroupNorm and whatever else it does"
    return InvalidArgumentError(
        f"module {path or 'model'!r} ({type(norm).__name__}): it is not one of torch.nn's own BatchNorm layers, and "
        f"replacing it could leave out what it adds to them; "
        f"{by_hand if norm.num_features else 'pass a batch through the model first'}"
    )


def _replaced(module: nn.Module, groups: int | None, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module, changed inside, or what comes in its place; the same for every use of it."""
    if module in known:
        return known[module]
    known[module] = _substitute(module, groups) if isinstance(module, _BatchNorm) else module
    if known[module] is module:
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, _replaced(child, groups, known))
    return known[module]


def _substitute(norm: _BatchNorm, groups: int | None) -> nn.Module:
    after = [child for child in norm._modules.values() if child is not None]
    alone = (FixedNorm(norm) if groups is None else _as_group_norm(norm, groups)).train(norm.training)
    if not after:
        return alone
    together = nn.Sequential(alone, *after)
    together.training = norm.training  # the others keep their own mode
    return together


def _as_group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    fewest = _FEWEST_OF_VECTORS if isinstance(norm, nn.BatchNorm1d) else _FEWEST
    most = max(min(groups, channels // fewest), 1)
    fitting = max(count for count in range(1, most + 1) if channels % count == 0)
    result = nn.GroupNorm(fitting, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        result.weight, result.bias = norm.weight, norm.bias
    return result
