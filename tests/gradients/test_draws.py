"""Draws that are held fixed: allowed values, the same for every example, in every batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from inosgd.gradients.draws import HeldDraws

pytestmark = pytest.mark.usefixtures("sizes_unprobed")


def drop_path(inputs: torch.Tensor) -> torch.Tensor:
    """As timm has it."""
    mask = inputs.new_empty(len(inputs), 1).bernoulli_(0.75)
    return inputs * mask.div_(0.75)


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "certain dropout": lambda x: F.dropout(x, 1.0),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout of features": lambda x: F.dropout1d(x[:, None], 0.5)[:, 0],
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
    "native dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "drop path": drop_path,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli by tensor": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "bernoulli by number": lambda x: torch.bernoulli(x, 0.5),
    "rand": lambda x: torch.rand(x.shape),
    "rand_like": torch.rand_like,
    "uniform": lambda x: torch.empty_like(x).uniform_(2, 4),
    "randn": lambda x: torch.randn(len(x), 4, dtype=torch.float64),
    "randn_like": torch.randn_like,
    "normal in place": lambda x: torch.empty_like(x).normal_(1, 2),
    "normal": lambda x: torch.normal(x, x.abs()),
    "normal by mean": lambda x: torch.normal(x, 2.0),
    "normal by deviation": lambda x: torch.normal(0.0, x.abs()),
    "normal by numbers": lambda x: torch.normal(0.0, 1.0, x.shape),
    "log normal": lambda x: torch.empty_like(x).log_normal_(),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.5),
    "randint": lambda x: torch.randint(3, 9, x.shape),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "random": lambda x: torch.empty_like(x).random_(2, 7),
    "multinomial": lambda x: torch.multinomial(x.softmax(1), 2),
    "multinomial with replacement": lambda x: torch.multinomial(x.softmax(1), 9, replacement=True),
    "poisson": lambda x: torch.poisson(x.exp()),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9.0), x.sigmoid()),
    "gamma": lambda x: torch.distributions.Gamma(x.exp(), 1.0).rsample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(x.exp()).rsample(),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu_(x.clone(), training=True),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[:, None, :, None]] * 3, dropout_p=0.5).flatten(1),
    "multi-head attention": lambda x: nn.MultiheadAttention(1, 1, 0.5, batch_first=True)(*[x[:, :, None]] * 3)[0],
    "lstm": lambda x: nn.LSTM(1, 2, 2, dropout=0.5, batch_first=True)(x[:, :, None])[0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_an_example_has_the_same_draws_in_any_batch_and_no_generator_moves(name):
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    results = []
    for rows in (slice(None), slice(2, 5)):
        torch.manual_seed(0)
        built, state = DRAWS[name](inputs[rows]), torch.get_rng_state()
        torch.manual_seed(0)
        with HeldDraws() as draws:
            held = DRAWS[name](inputs[rows])
        assert (held.shape, held.dtype) == (built.shape, built.dtype)
        assert not torch.equal(state, torch.get_rng_state()) or name == "certain dropout"
        assert draws.asked or name == "certain dropout"
        results.append(held)
    assert torch.allclose(results[0][2:5], results[1], rtol=1e-6)
    assert results[0].isfinite().all()


def test_values_are_ones_that_could_be_drawn():
    inputs = torch.randn(5, 3)
    with HeldDraws():
        assert torch.equal(F.dropout(inputs, 0.5), 2 * inputs)
        assert torch.equal(torch.bernoulli(torch.tensor([0.0, 0.1, 1.0])), torch.tensor([0.0, 1.0, 1.0]))
        assert torch.equal(torch.randperm(4), torch.tensor([3, 2, 1, 0]))
        assert torch.equal(torch.randint(3, 5, (2,)), torch.tensor([3, 3]))
        assert torch.equal(torch.normal(torch.zeros(2), torch.ones(2)), torch.ones(2))
        assert torch.equal(torch.rand(2, out=torch.empty(2)), torch.full((2,), 0.5))
        assert torch.equal(torch.multinomial(torch.tensor([0.1, 0.6, 0.3]), 2), torch.tensor([1, 2]))


def test_gradients_pass_through_held_draws():
    inputs = torch.randn(5, 3, requires_grad=True)
    with HeldDraws():
        F.rrelu(F.dropout(inputs, 0.5), 0.1, 0.3, training=True).sum().backward()
    torch.testing.assert_close(inputs.grad, torch.where(inputs > 0, 2.0, 0.4))


def test_a_generator_of_the_models_own_is_not_held():
    generator = torch.Generator().manual_seed(0)
    with HeldDraws() as draws:
        first, second = torch.rand(2, generator=generator), torch.rand(2, generator=generator)
    assert not draws.asked
    assert not torch.equal(first, second)
