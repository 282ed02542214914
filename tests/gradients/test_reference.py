"""The reference engine against one backward pass per example."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import ReferenceEngine, supervised, trainable_parameters

LOSSES = supervised(F.cross_entropy)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(count: int):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 5, generator=generator, dtype=torch.float64), torch.arange(count) % 3


def one_by_one(network: nn.Module, examples) -> tuple[np.ndarray, torch.Tensor]:
    """Losses and gradient rows by plain autograd, one example at a time."""
    losses, rows = [], []
    for x, y in zip(*examples, strict=True):
        loss = F.cross_entropy(network(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]))
        losses.append(float(loss.detach()))
    return np.array(losses), torch.stack(rows) if rows else torch.zeros(0, 39, dtype=torch.float64)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_losses_norms_and_sums(count):
    network, examples = model(), batch(count)
    losses, rows = one_by_one(network, examples)
    coefficients = np.linspace(0.5, -1.5, count)
    with ReferenceEngine().on(network, LOSSES, examples) as gradients:
        measured = gradients.measure()
        total = gradients.weighted_sum(coefficients)
    np.testing.assert_allclose(measured.losses, losses, atol=1e-14)
    np.testing.assert_allclose(measured.grad_norms, rows.norm(dim=1), atol=1e-14)
    np.testing.assert_allclose(total, torch.from_numpy(coefficients) @ rows, atol=1e-14)


def test_frozen_parameters_are_left_out():
    network = model()
    network[0].requires_grad_(False)
    with ReferenceEngine().on(network, LOSSES, batch(4)) as gradients:
        assert gradients.weighted_sum(np.ones(4)).shape == (15,)
    network.requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match="none of its parameters requires a gradient"):
        trainable_parameters(network)


def test_nothing_is_left_on_the_model():
    network = model()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with ReferenceEngine().on(network, LOSSES, batch(4)) as gradients:
        gradients.measure()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_an_example_of_nan_stays_alone():
    examples = batch(4)
    examples[0][2] = float("nan")
    network = model()
    _, rows = one_by_one(network, examples)
    with ReferenceEngine().on(network, LOSSES, examples) as gradients:
        measured = gradients.measure()
        total = gradients.weighted_sum(np.array([1.0, 1.0, 0.0, 1.0]))
    assert measured.not_finite.tolist() == [False, False, True, False]
    np.testing.assert_allclose(total, rows[0] + rows[1] + rows[3], atol=1e-14)


def test_dictionaries_tuples_and_losses_per_token():
    network = model()

    def losses(module, examples):
        return F.cross_entropy(module(examples["x"]), examples["more"][0], reduction="none")

    x, y = batch(3)
    with ReferenceEngine().on(network, losses, {"x": x, "more": (y,)}) as gradients:
        assert gradients.measure().losses.shape == (3,)
    per_token = supervised(lambda output, target, reduction: (output - target) ** 2)
    with ReferenceEngine().on(nn.Linear(2, 3), per_token, (torch.ones(4, 2), torch.zeros(4, 3))) as gradients:
        assert gradients.measure().losses.shape == (4,)


def test_a_mean_loss_and_uneven_tensors_are_refused():
    mean = lambda module, examples: F.cross_entropy(module(examples[0]), examples[1])  # noqa: E731
    with (
        pytest.raises(InvalidArgumentError, match="one floating-point loss per example"),
        ReferenceEngine().on(model(), mean, batch(3)),
    ):
        pass
    x, y = batch(3)
    with (
        pytest.raises(InvalidArgumentError, match=r"first dimensions \[2, 3\]"),
        ReferenceEngine().on(model(), LOSSES, (x, y[:2])),
    ):
        pass
