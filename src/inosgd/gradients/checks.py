"""What is checked before a model's first batch: layers that break per-example gradients, and the engine itself."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree as pytree

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import ExampleLosses, Examples, count_examples
from inosgd.gradients.recording import Task, flatten, forward, read_page, record_pass
from inosgd.gradients.rules.recorder import Recorder

_PROBED = 3
"""How many examples are compared to plain autograd before the first batch."""

_checked: WeakKeyDictionary[nn.Module, WeakKeyDictionary[ExampleLosses, set[tuple[object, ...]]]] = WeakKeyDictionary()
"""For every model alive, with which losses and in which states (mode, trainable parameters) it has been checked."""


def check_once(task: Task, examples: Examples) -> None:
    """`check_model` and `check_gradients`, unless the model has passed both with these losses in the state it is in."""
    state = (task.model.training, *map(id, task.parameters.values()))
    passed = _checked.setdefault(task.model, WeakKeyDictionary()).setdefault(task.losses, set())
    if state in passed:
        return
    check_model(task.model)
    if check_gradients(task, examples):
        check_independence(task, examples)
        passed.add(state)


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix examples, and uses of parameters that the engine would get wrong.

    Raises:
        InvalidArgumentError: It names the module and what to do about it.
    """
    check_layers(model)
    owners: dict[int, str] = {}
    for path, module in model.named_modules():
        if getattr(module, "inplace", False):
            problem = "it overwrites values that gradients are computed from; set inplace=False"
            raise InvalidArgumentError(f"{_name(path, module)}: {problem}")
        for name, parameter in module.named_parameters(recurse=False):
            earlier = owners.setdefault(id(parameter), f"{path}.{name}")
            if parameter.requires_grad and earlier != f"{path}.{name}":
                raise InvalidArgumentError(
                    f"{_name(path, module)}: its parameter {name} is shared with {earlier!r}; give each module its own "
                    "parameter, or use ReferenceEngine"
                )


def check_layers(model: nn.Module) -> None:
    """Refuse layers that mix examples or keep statistics of them, whatever the engine.

    Raises:
        InvalidArgumentError: It names the module and what to do about it.
    """
    for path, module in model.named_modules():
        problem = _problem(module)
        if problem is not None:
            raise InvalidArgumentError(f"{_name(path, module)}: {problem}")


@torch.no_grad()
def check_independence(task: Task, examples: Examples) -> None:
    """Compare the losses of a few examples together and one by one, and see that no buffer is written.

    Together with `check_gradients` this finds mixing that autograd cannot see: class weights counted in the batch,
    a division by the mean loss, ranks. Where the model draws random numbers (dropout) the losses cannot be compared.

    Raises:
        InvalidArgumentError: The losses of a batch are not those of its examples, or a buffer changed.
    """
    few = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[:_PROBED], examples)
    buffers = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        before = torch.get_rng_state()
        together = task.losses(task.model, few)
        drew = not torch.equal(before, torch.get_rng_state())
        alone = [] if drew else [_loss_alone(task, few, index) for index in range(count_examples(few))]
    for name, buffer in task.model.named_buffers():
        if not torch.equal(buffer, buffers[name]) and not buffer.isnan().any():
            raise InvalidArgumentError(
                f"buffer {name!r} changed during a forward pass: it would carry private data out of training, past "
                "clipping and noise; stop updating it, or call model.eval() on its module"
            )
    tolerance = torch.finfo(together.dtype).eps ** 0.25  # 2% in float32: rounding may differ with the batch
    if alone and not torch.allclose(together, torch.stack(alone), tolerance, tolerance, equal_nan=True):
        raise InvalidArgumentError(
            "losses: an example has another loss in a batch than alone, so it depends on the others and no clipping "
            "bounds what one of them does; compute each loss from its own example (weights by class must be constants)"
        )


def _loss_alone(task: Task, examples: Examples, index: int) -> torch.Tensor:
    one = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[index : index + 1], examples)
    return task.losses(task.model, one).reshape(-1)[0]


@torch.enable_grad()
def check_gradients(task: Task, examples: Examples) -> bool:
    """Compare the gradients of a few examples to plain autograd; False if there were too few finite ones to tell.

    On one graph, and so with the same dropout, the gradient of each loss alone must be what the engine says it
    is, and no loss may depend on the input of another example. The same must come of a pass as training does it.

    Raises:
        InvalidArgumentError: The engine would be wrong on this model.
    """
    if count_examples(examples) < 2:
        return False
    few = pytree.tree_map_only(torch.Tensor, _leaf, examples)
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        recorder = Recorder(count_examples(few), task.functions, differentiable=True)
        losses = forward(task, few, recorder)
        floats = [leaf for leaf in pytree.tree_leaves(few) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        alone = [_gradients_of_one(task, losses, index, floats) for index in range(len(losses))]
        pages = [read_page(task, losses, recorder.records)]
    with torch.random.fork_rng(devices=devices):  # from where the other pass began
        pages.append(record_pass(task, pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, few)))
    _check_losses(*[page.losses for page in pages])
    finite = 0
    for index, (expected, of_inputs) in enumerate(alone):
        norms = [float(page.norms[index]) for page in pages]
        if np.isfinite(norms).all() and all(part.isfinite().all() for part in expected):
            finite += 1
            _check_inputs(of_inputs, index)
            coefficients = torch.nn.functional.one_hot(torch.tensor(index), len(losses)).double().numpy()
            for page, norm in zip(pages, norms, strict=True):
                _check_parts(task, expected, page.weighted_sum(coefficients), norm)
    return finite >= 2


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by GroupNorm, which looks at one example only.

    Scales and shifts are kept, running statistics are not: train the result, or fine-tune it.

    Args:
        model: It is not changed.
        groups: The most groups a layer may have; the largest divisor of its channels up to it is used.
    """
    return _replaced(copy.deepcopy(model), groups)


def _replaced(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return _as_group_norm(module, groups)
    for name, child in module.named_children():
        setattr(module, name, _replaced(child, groups))
    return module


def _as_group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = max(count for count in range(1, min(groups, channels) + 1) if channels % count == 0)
    result = nn.GroupNorm(fitting, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        result.weight, result.bias = norm.weight, norm.bias
    return result.train(norm.training)


def _problem(module: nn.Module) -> str | None:
    """What is wrong with a module by itself, and what to do about it."""
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "it mixes the examples of a batch; use replace_batchnorm(model), which puts GroupNorm in its place"
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return "its running statistics would carry private data out of training; set track_running_stats=False"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return "it rescales rows during the forward pass, outside any privacy guarantee; leave max_norm=None"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        return "an example's gradient would depend on the others' words; leave scale_grad_by_freq=False"
    return None


def _name(path: str, module: nn.Module) -> str:
    return f"module {path or 'model'!r} ({type(module).__name__})"


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    few = tensor[:_PROBED].detach().clone()
    return few.requires_grad_() if few.is_floating_point() else few


def _gradients_of_one(
    task: Task, losses: torch.Tensor, index: int, inputs: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Plain gradients of one loss, with respect to the parameters and to the inputs of all examples."""
    wanted = [*task.parameters.values(), *inputs]
    found = torch.autograd.grad(losses[index], wanted, retain_graph=True, allow_unused=True)
    filled = [torch.zeros_like(like) if part is None else part for part, like in zip(found, wanted, strict=True)]
    return filled[: len(task.parameters)], filled[len(task.parameters) :]


def _check_losses(first: torch.Tensor, second: torch.Tensor) -> None:
    tolerance = torch.finfo(first.dtype).eps ** 0.5
    if not torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise InvalidArgumentError(
            "losses: two passes over the same examples gave other losses, so that what is measured is not what is "
            "summed: the model changes between passes, or draws random numbers that torch.manual_seed does not govern; "
            "draw them by torch"
        )


def _check_inputs(of_inputs: list[torch.Tensor], index: int) -> None:
    for part in of_inputs:
        others = [row for row in range(len(part)) if row != index]
        if part[others].abs().sum() > 1e-6 * part[index].abs().sum():
            raise InvalidArgumentError(
                "the loss of one example depends on the input of another: the model or its losses mix the examples of "
                "a batch, so that no clipping bounds what one of them does; remove the operation that mixes them"
            )


def _check_parts(task: Task, expected: list[torch.Tensor], actual: torch.Tensor, norm: float) -> None:
    actual = actual.to(expected[0].dtype)
    tolerance = torch.finfo(actual.dtype).eps ** 0.5
    size = flatten(expected, list(task.parameters.values())).norm()
    pieces = torch.split(actual, [part.numel() for part in expected])
    for (name, _), wanted, given in zip(task.parameters.items(), expected, pieces, strict=True):
        distance = (wanted.flatten() - given).norm()
        if not distance <= tolerance * (wanted.norm() + 0.1 * size):
            raise InvalidArgumentError(
                f"parameter {name!r}: its per-example gradient is not what autograd gives; the parameter is used "
                "outside a call of its module, or the examples are mixed or not in the first dimension: change that, "
                "or use ReferenceEngine"
            )
    smallest = torch.finfo(actual.dtype).tiny ** 0.5  # squares of what is shorter are not told from 0
    if size > smallest / tolerance and not norm >= (1 - tolerance) * float(size):
        raise InvalidArgumentError(
            f"the engine takes an example's gradient of norm {float(size):g} for one of norm {norm:g}: it would be "
            "clipped too little; use ReferenceEngine"
        )
