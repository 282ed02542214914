"""What engines are compared to: plain autograd on batches of one example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from inosgd.gradients import BookkeepingEngine, GradientEngine, trainable_parameters


@dataclass(frozen=True)
class Results:
    losses: np.ndarray
    norms: np.ndarray
    total: np.ndarray


def squared_output(model: nn.Module, examples: object) -> torch.Tensor:
    """A loss for any model: half the squared distance of its output to a pattern, per example."""
    output = model(*examples) if isinstance(examples, tuple) else model(examples)
    output = output[0] if isinstance(output, tuple) else output
    flat = output.flatten(1)
    pattern = torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype)
    return (flat - pattern).square().sum(1) / 2


def by_engine(
    engine: GradientEngine,
    model: nn.Module,
    examples: object,
    losses: Callable = squared_output,
    coefficients: np.ndarray | None = None,
) -> Results:
    count = len(examples[0] if isinstance(examples, tuple) else examples)
    scales = default_coefficients(count) if coefficients is None else coefficients
    with engine.on(model, losses, examples) as gradients:
        measured = gradients.measure()
        total = gradients.weighted_sum(scales)
    return Results(measured.losses, measured.grad_norms, total.numpy())


def by_loop(
    model: nn.Module, examples: object, losses: Callable = squared_output, coefficients: np.ndarray | None = None
) -> Results:
    """One example after the other."""
    parameters = list(trainable_parameters(model).values())
    values, norms = [], []
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    count = len(examples[0] if isinstance(examples, tuple) else examples)
    scales = default_coefficients(count) if coefficients is None else coefficients
    for index in range(count):
        rows = slice(index, index + 1)
        one = tuple(each[rows] for each in examples) if isinstance(examples, tuple) else examples[rows]
        loss = losses(model, one).squeeze(0)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in parts])
        values.append(loss.item())
        norms.append(gradient.norm().item())
        if scales[index]:
            total += scales[index] * gradient
    return Results(np.array(values), np.array(norms), total.numpy())


def default_coefficients(count: int) -> np.ndarray:
    return np.linspace(0.2, 1.3, count) if count else np.zeros(0)


def assert_close(actual: Results, expected: Results, tolerance: float = 1e-7) -> None:
    for name in ("losses", "norms", "total"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert one.shape == other.shape, name
        scale = np.abs(other).max(initial=0) + 1e-30
        assert np.abs(one - other).max(initial=0) <= tolerance * scale, name


def assert_engine_exact(model: nn.Module, examples: object, losses: Callable = squared_output) -> None:
    """The engine on the whole batch gives what autograd gives on each example."""
    expected = by_loop(model, examples, losses)
    assert expected.norms.size == 0 or expected.norms.max() > 0, "the test would pass on an engine of zeros"
    assert_close(by_engine(BookkeepingEngine(), model, examples, losses), expected)


class Unseen(torch.autograd.Function):
    """x W^T in a way that no engine sees: what the comparison of values has to find."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.T

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient @ weight, gradient.flatten(0, -2).T @ inputs.flatten(0, -2)


def unseen_linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return Unseen.apply(inputs, weight)
