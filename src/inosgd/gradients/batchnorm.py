"""GroupNorm in the place of BatchNorm, which mixes the examples of a batch."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from inosgd.errors import InvalidArgumentError

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_AFTER = ("drop", "act")
"""What timm's BatchNorm with an activation does after it has normalised, in this order."""


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by GroupNorm, which looks at one example only.

    Scales and shifts are kept, running statistics are not: train the result, or fine-tune it. Of a subclass whose only
    modules are a dropout ``drop`` and an activation ``act`` (timm's ``BatchNormAct2d``), these are kept too.

    Args:
        model: It is not changed.
        groups: The most groups a layer may have; the largest divisor of its channels up to it is used.

    Raises:
        InvalidArgumentError: A BatchNorm is of another subclass, and what else it does is not known, or it does not
            know its number of channels yet.
    """
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in _PLAIN and tuple(module._modules) != _AFTER:
            raise _unknown(path, module)
    return _replaced(copy.deepcopy(model), groups, {})


def _unknown(path: str, norm: _BatchNorm) -> InvalidArgumentError:
    by_hand = "replace it by hand, by GroupNorm and whatever else it does"
    return InvalidArgumentError(
        f"module {path or 'model'!r} ({type(norm).__name__}): it is not one of torch.nn's own BatchNorm layers, and "
        f"replacing it could leave out what it adds to them; "
        f"{by_hand if norm.num_features else 'pass a batch through the model first'}"
    )


def _replaced(module: nn.Module, groups: int, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module, changed inside, or what comes in its place; the same for every use of it."""
    if module in known:
        return known[module]
    known[module] = _substitute(module, groups) if isinstance(module, _BatchNorm) else module
    if known[module] is module:
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, _replaced(child, groups, known))
    return known[module]


def _substitute(norm: _BatchNorm, groups: int) -> nn.Module:
    after = [child for child in norm._modules.values() if child is not None]
    if not after:
        return _as_group_norm(norm, groups)
    together = nn.Sequential(_as_group_norm(norm, groups), *after)
    together.training = norm.training  # the others keep their own mode
    return together


def _as_group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = max(count for count in range(1, min(groups, channels) + 1) if channels % count == 0)
    result = nn.GroupNorm(fitting, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        result.weight, result.bias = norm.weight, norm.bias
    return result.train(norm.training)
