"""The reference engine against one backward pass per example."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import ReferenceEngine, reference, supervised, trainable_parameters
from tests.gradients.gradient_oracle import assert_close, by_engine, by_loop

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


class Cube(torch.autograd.Function):
    """An operation that torch cannot map."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def by_value(z: torch.Tensor) -> torch.Tensor:
    """Control flow that looks at numbers."""
    return torch.stack([2 * row if row.sum().item() > 0 else row.tanh() for row in z])


def in_place(z: torch.Tensor) -> torch.Tensor:
    """Writes into a tensor that is not mapped."""
    rows = [torch.ones(4, dtype=z.dtype) for _ in z]
    return torch.stack([row.add_(each) for row, each in zip(rows, z, strict=True)]) ** 2


class Around(nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.act = nn.Linear(5, 4), nn.Linear(4, 3), act

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(inputs)))


@pytest.fixture
def mapped(monkeypatch) -> list[int]:
    """How many rows every attempt to map a block had."""
    attempts, plain = [], reference._per_example

    def counted(network, losses, examples):
        attempts.append(len(examples[0]))
        return plain(network, losses, examples)

    monkeypatch.setattr(reference, "_per_example", counted)
    return attempts


class TestModelsThatCannotBeMapped:
    @pytest.mark.parametrize("act", [by_value, Cube.apply, in_place], ids=["branches", "no rule", "in place"])
    @pytest.mark.parametrize("count", [1, 9])
    def test_pass_one_by_one(self, act, count, mapped):
        network, examples = Around(act).double(), batch(count)
        assert_close(by_engine(ReferenceEngine(), network, examples, LOSSES), by_loop(network, examples, LOSSES), 1e-14)
        assert mapped, "it was tried"
        mapped.clear()
        by_engine(ReferenceEngine(), network, examples, LOSSES)
        assert mapped == [], "what was found is remembered"

    def test_an_example_has_the_same_bits_in_every_batch(self):
        network, examples = Around(by_value).double(), batch(9)
        whole = by_engine(ReferenceEngine(), network, examples, LOSSES)
        part = by_engine(ReferenceEngine(), network, tuple(each[4:] for each in examples), LOSSES)
        np.testing.assert_array_equal(whole.norms[4:], part.norms)

    def test_also_if_that_changes_between_batches(self, mapped):
        """In a way that no module shows."""
        network, examples = Around(torch.tanh).double(), batch(9)
        by_engine(ReferenceEngine(), network, examples, LOSSES)
        network.act = by_value
        assert_close(by_engine(ReferenceEngine(), network, examples, LOSSES), by_loop(network, examples, LOSSES), 1e-14)
        mapped.clear()
        by_engine(ReferenceEngine(), network, examples, LOSSES)
        assert mapped == []

    def test_an_error_of_the_model_is_passed_on(self):
        network, examples = Around(torch.tanh).double(), batch(9)
        for _ in range(2):  # values are not compared at the third batch
            by_engine(ReferenceEngine(), network, examples, LOSSES)
        for model_of in (Around, lambda act: setattr(network, "act", act) or network):
            with pytest.raises(KeyError, match="of its own"):
                by_engine(ReferenceEngine(), model_of(lambda z: {}["of its own"]).double(), examples, LOSSES)

    def test_what_can_be_mapped_is(self, mapped):
        by_engine(ReferenceEngine(), Around(torch.tanh).double(), batch(9), LOSSES)
        assert mapped[-1] > 1
