"""The interface of gradient engines: what a training step asks of per-example gradients.

A step needs each example's loss and gradient norm, and then one weighted sum of the gradients; it never needs
the gradients themselves. An engine is used inside a ``with`` block, after which nothing of it is left on the
model:

    with engine.on(model, losses, examples) as gradients:
        measured = gradients.measure()
        total = gradients.weighted_sum(coefficients, error)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from inosgd._arrays import BoolArray, FloatArray
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.outputs import classes_second, inputs_and_targets, logits_of

Examples = Any
"""A tensor, or a tuple, list or dictionary of them; the first dimension of each counts the examples."""

ExampleLosses = Callable[[nn.Module, Examples], torch.Tensor]
"""From a model and a batch to one loss per example; an example's loss depends on that example alone."""


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """The loss and the gradient norm of each example of a batch, in float64. Sensitive."""

    losses: FloatArray
    grad_norms: FloatArray

    @property
    def not_finite(self) -> BoolArray:
        """Which examples have a gradient with NaN or infinity in it: they count as zero."""
        return ~np.isfinite(self.grad_norms)


class BatchGradients(Protocol):
    """The per-example gradients of one batch, with respect to all trainable parameters."""

    def measure(self) -> Measured:
        """Each example's loss, and a bound on the 2-norm of its gradient over all trainable parameters.

        Both are functions of the example and the model alone, to the last bit, whatever else is in the batch.
        """

    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """sum_i coefficients[i] g_i, flat, in the order of `trainable_parameters`, in float64.

        Guarantee:
            The 2-norm of its error is at most ``error``, and what float64 rounds (`inosgd.rounding`): sums are in
            float64 unless those in the type of the model are known to be that exact. An example with coefficient 0
            contributes exactly nothing, even if its gradient holds NaN.
        """


class GradientEngine(Protocol):
    """A way to compute `BatchGradients`. Engines differ in cost, never in result."""

    def on(self, model: nn.Module, losses: ExampleLosses, examples: Examples) -> AbstractContextManager[BatchGradients]:
        """The gradients of ``losses`` at ``model`` for a batch of ``examples``, possibly an empty one."""


@runtime_checkable
class OffsetLosses(Protocol):
    """Losses of logits, one per class, to which an offset can be added."""

    def __call__(self, model: nn.Module, examples: Examples) -> torch.Tensor:
        """One loss per example."""

    def with_offsets(self, offsets: FloatArray) -> ExampleLosses:
        """The same losses with a number added to the logit of each class."""


@dataclass(frozen=True, eq=False)
class Supervised:
    """Losses for ``(inputs, targets)`` batches; see `supervised`."""

    loss: Callable[..., torch.Tensor]
    offsets: Mapping[torch.dtype, torch.Tensor] | None = None
    classes_last: bool = False
    targets: str = "labels"

    def __call__(self, model: nn.Module, examples: Examples) -> torch.Tensor:
        """One loss per example."""
        inputs, targets = inputs_and_targets(examples, self.targets)
        try:
            outputs = logits_of(model, inputs)
            if self.classes_last:
                outputs = classes_second(outputs)
            if self.offsets is not None:
                outputs = outputs + _along_classes(self.offsets[outputs.dtype], outputs)
            values = self._values(outputs, targets)
        except RuntimeError:
            _refuse_other_device(model, examples)
            raise
        return values.flatten(1).mean(1) if values.dim() > 1 else values

    def with_offsets(self, offsets: FloatArray) -> Supervised:
        """The same losses with a number added to the logit of each class: in the last or second dimension."""
        exact = torch.from_numpy(offsets.copy())
        return replace(self, offsets={exact.dtype: exact, torch.float32: exact.float()})

    def _values(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        try:
            return self.loss(outputs, targets, reduction="none")
        except (RuntimeError, ValueError) as error:
            if outputs.dim() > 2 and not self.classes_last:
                error.add_note(
                    f"Outputs have the shape {tuple(outputs.shape)}. If their last dimension counts the classes: "
                    "supervised(loss, classes_last=True)."
                )
            raise


def supervised(loss: Callable[..., torch.Tensor], *, classes_last: bool = False, targets: str = "labels") -> Supervised:
    """Losses for batches of inputs and targets, from a function such as ``torch.nn.functional.cross_entropy``.

    ``loss`` is called as ``loss(model(inputs), targets, reduction="none")``; what it returns beyond the first
    dimension (a loss per token, say) is averaged within each example, places that it ignores included as 0. A module
    such as ``torch.nn.CrossEntropyLoss()`` is taken without its reduction. Weights of classes then multiply each
    example's loss, and are not divided by their sum over the batch, as torch does for a mean.

    A batch is a pair ``(inputs, targets)``, whose inputs are given to the model as they are, or a dictionary. What a
    dictionary has beside the targets is passed by name, ``model(**inputs)``; the targets are not, so that no model
    computes a mean over the batch. A model may return a tensor, or an object or dictionary with ``logits``.

    Args:
        loss: The function or module.
        classes_last: Whether outputs have the shape (examples, places, classes); torch's losses have classes second.
        targets: What the targets are called in batches that are dictionaries.

    Raises:
        InvalidArgumentError: If the loss cannot be had for each example.
    """
    if isinstance(loss, nn.Module):
        loss = _without_reduction(loss)
    elif not _takes_reduction(loss):
        raise InvalidArgumentError(
            f"loss: {getattr(loss, '__name__', loss)} is not called with reduction='none'; give a function of outputs, "
            "targets and reduction, or write losses of a model and a batch yourself"
        )
    return Supervised(loss, classes_last=classes_last, targets=targets)


def _without_reduction(loss: nn.Module) -> Callable[..., torch.Tensor]:
    if not hasattr(loss, "reduction"):
        raise InvalidArgumentError(
            f"loss: {type(loss).__name__} has no reduction to be left out; give a loss of torch.nn, or a function"
        )
    each = copy(loss)
    vars(each)["reduction"] = "none"

    def called(outputs: torch.Tensor, targets: Any, reduction: str) -> torch.Tensor:
        values: torch.Tensor = each(outputs, targets)
        return values

    return called


def _takes_reduction(loss: Callable[..., torch.Tensor]) -> bool:
    try:
        inspect.signature(loss).bind(None, None, reduction="none")
    except TypeError:
        return False
    except ValueError:  # one of torch's that is not written in Python
        return True
    return True


def _refuse_other_device(model: nn.Module, examples: Examples) -> None:
    """Raise if a batch is not where the model is."""
    here = {parameter.device for parameter in model.parameters()}
    elsewhere = [tensor.device for tensor in tensors_of(examples) if tensor.device not in here]
    if len(here) == 1 and elsewhere:
        raise InvalidArgumentError(
            f"examples: they are on the device {str(elsewhere[0])!r} and the model is on {str(*here)!r}; move one to "
            "the other"
        ) from None


def _along_classes(offsets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    if outputs.dim() < 2 or outputs.shape[1] != len(offsets):
        raise InvalidArgumentError(
            f"outputs of shape {tuple(outputs.shape)}: an adjusted loss needs one logit for each of {len(offsets)} "
            "classes, in the second dimension (in the last with classes_last=True); give class shares for the classes "
            "of the model"
        )
    offsets = offsets.to(outputs.device)
    return offsets if outputs.dim() == 2 else offsets.view(-1, *[1] * (outputs.dim() - 2))


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name, in the model's order, each once."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise InvalidArgumentError("model: none of its parameters requires a gradient; unfreeze what should be trained")
    return found


def parameter_count(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in trainable_parameters(model).values())


def tensors_of(examples: Examples) -> list[torch.Tensor]:
    """The tensors of a batch, in the order of pytrees, which take long over the usual tuples of tensors."""
    if isinstance(examples, torch.Tensor):
        return [examples]
    if type(examples) is tuple:
        return [leaf for part in examples for leaf in tensors_of(part)]
    return [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor], examples: Examples) -> Examples:
    """The batch with each of its tensors changed."""
    if isinstance(examples, torch.Tensor):
        return change(examples)
    if type(examples) is tuple:
        return tuple([with_tensors(change, part) for part in examples])
    return pytree.tree_map_only(torch.Tensor, change, examples)


def count_examples(examples: Examples) -> int:
    """The number of examples in a batch; all tensors of the batch must agree on it."""
    lengths = {len(leaf) for leaf in tensors_of(examples)}
    if len(lengths) != 1:
        raise InvalidArgumentError(
            f"examples: its tensors have first dimensions {sorted(lengths)}; give every tensor one row per example"
        )
    return int(lengths.pop())


def check_losses(losses: torch.Tensor, count: int) -> torch.Tensor:
    """``losses`` if it holds one floating-point number per example; an error otherwise."""
    if losses.shape != (count,) or not losses.is_floating_point():
        raise InvalidArgumentError(
            f"losses of shape {tuple(losses.shape)} and type {losses.dtype} for {count} examples: return one "
            "floating-point loss per example (reduction='none'), not their mean"
        )
    return losses
