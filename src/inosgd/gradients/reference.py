"""The reference engine: one gradient per example by ``torch.func``. Slow, hungry, and short enough to trust.

Every faster engine is tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils import _pytree as pytree

from inosgd._arrays import FloatArray
from inosgd.gradients.checks import check_structure
from inosgd.gradients.engine import (
    ExampleLosses,
    Examples,
    Measured,
    check_losses,
    count_examples,
    trainable_parameters,
)
from inosgd.gradients.inplace import out_of_place
from inosgd.gradients.invariance import laid_out, pass_one_by_one, rows_of_block
from inosgd.gradients.precision import full_precision
from inosgd.gradients.recording import take
from inosgd.gradients.task import Task
from inosgd.gradients.written import unwritten
from inosgd.mechanism import combine, row_norms


@dataclass(frozen=True)
class ReferenceEngine:
    """Materialises the gradient of every example; memory grows with examples times parameters.

    Examples are mapped (vmap) in blocks of as many rows as give each of them the same bits wherever it stands
    (`inosgd.gradients.invariance`). They pass one by one, with one backward pass for each, where there is no such block
    or the model cannot be mapped: recurrent layers, branches that look at values, operations without a batching rule.
    Which of the two is found out once for a model in one state, and depends on nothing that an example holds.

    Attributes:
        allow_untested_device: See `BookkeepingEngine`.
    """

    allow_untested_device: str | None = None

    @contextmanager
    def on(self, model: nn.Module, losses: ExampleLosses, examples: Examples) -> Iterator[_ReferenceGradients]:
        """See `GradientEngine.on`. Nothing is written onto the model at any time."""
        task = Task.of(model, losses)
        with full_precision(task.device, allow_untested_device=self.allow_untested_device):
            yield self._passed(task, laid_out(examples))

    def _passed(self, task: Task, examples: Examples) -> _ReferenceGradients:
        count = count_examples(examples)
        check_structure(task, examples, recorded=False).values(task, examples)
        if count == 0:
            return _empty(task.model)
        with out_of_place(task.inplace):
            rows = 1 if _recurrent(task.model) else rows_of_block(task, examples, _measured_in_one)
            with unwritten(task.model, task.tables):
                found = _gradients(task, examples, rows)
        return _ReferenceGradients(check_losses(found[0], count), found[1])


def _gradients(task: Task, examples: Examples, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `_per_example`, in blocks of so many rows or one by one.

    A mapped pass cannot branch on values: if it fails after blocks were tried, the model has changed in a way that its
    modules do not show, or fails by itself, which one example at a time shows as it is.
    """
    if rows > 1:
        try:
            return _in_blocks(task, examples, rows)
        except Exception:
            found = _one_by_one(task.model, task.losses, examples)
            pass_one_by_one(task, examples, _measured_in_one)
            return found
    return _one_by_one(task.model, task.losses, examples)


def _recurrent(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def _measured_in_one(task: Task, examples: Examples) -> _ReferenceGradients:
    return _ReferenceGradients(*_per_example(task.model, task.losses, examples))


def _in_blocks(task: Task, examples: Examples, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `_per_example`, with so many rows at a time; the last example is repeated to fill the last block."""
    count = count_examples(examples)
    blocks = torch.split(torch.arange(-(-count // rows) * rows, device="cpu").clamp_max(count - 1), rows)
    parts = [_per_example(task.model, task.losses, take(examples, block)) for block in blocks]
    values, gradients = (torch.cat(each)[:count] for each in zip(*parts, strict=True))
    return values, gradients


@dataclass(frozen=True, eq=False, repr=False)
class _ReferenceGradients:
    losses: torch.Tensor
    gradients: torch.Tensor

    def measure(self) -> Measured:
        return Measured(self.losses.double().cpu().numpy(), row_norms(self.gradients))

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        return combine(self.gradients, coefficients)


class _LossModule(nn.Module):
    """The model and its loss as one module, so that ``functional_call`` reaches every use of the model."""

    def __init__(self, model: nn.Module, losses: ExampleLosses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, examples: Examples) -> torch.Tensor:
        return self._losses(self.model, examples)


def _per_example(model: nn.Module, losses: ExampleLosses, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """One loss per example, and one row per example of all trainable gradients side by side."""
    module = _LossModule(model, losses)
    parameters = {f"model.{name}": value.detach() for name, value in trainable_parameters(model).items()}

    def loss(values: dict[str, torch.Tensor], example: Examples) -> torch.Tensor:
        batch_of_one = pytree.tree_map(lambda leaf: leaf.unsqueeze(0), example)
        result: torch.Tensor = functional_call(module, values, (batch_of_one,))
        return check_losses(result, 1).squeeze(0)

    per_example = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
    gradients, values = per_example(parameters, examples)
    return values.detach(), torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)


@torch.enable_grad()
def _one_by_one(model: nn.Module, losses: ExampleLosses, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `_per_example`, by plain autograd on batches of one."""
    parameters = list(trainable_parameters(model).values())
    values, rows = [], []
    for index in range(count_examples(examples)):
        one = take(examples, torch.tensor([index]))  # not a slice, whose address depends on the batch
        loss = check_losses(losses(model, one), 1).squeeze(0)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        values.append(loss.detach())
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(values), torch.stack(rows)


def _empty(model: nn.Module) -> _ReferenceGradients:
    parameters = list(trainable_parameters(model).values())
    width = sum(parameter.numel() for parameter in parameters)
    return _ReferenceGradients(parameters[0].new_zeros(0), parameters[0].new_zeros(0, width))
