"""Modules with ``inplace=True``: the same bits as without, and a model that is as before."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, check_model
from inosgd.gradients.inplace import _TYPES, out_of_place
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, by_loop, squared_output

ENGINES = [BookkeepingEngine(), BookkeepingEngine(physical_batch_size=8), ReferenceEngine()]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual block as image models have it, with one activation for all places, and a bottleneck that gates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.relu = nn.ReLU(inplace=True)
        self.gate = nn.Sequential(nn.Conv2d(4, 2, 1), nn.SiLU(inplace=True), nn.Conv2d(2, 4, 1), nn.Hardsigmoid(True))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(inputs)))
        out = self.norm2(self.conv2(out))
        out = out * self.gate(out.mean((2, 3), keepdim=True))
        out += inputs
        return self.relu(out)


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Hardswish(inplace=True))
    last = [nn.Flatten(), nn.Linear(36, 5), nn.ReLU6(inplace=True), nn.Dropout(dropout, inplace=True), nn.Linear(5, 3)]
    return nn.Sequential(nn.LeakyReLU(0.3, inplace=True), first, Block(), Block(), *last).double()


def without_flags(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    for module in other.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return other


def flags(model: nn.Module) -> list[object]:
    return [vars(module).get("inplace") for module in model.modules()]


@pytest.mark.parametrize("engine", ENGINES, ids=["whole", "split", "reference"])
@pytest.mark.parametrize("count", [1, 11])
def test_same_bits_as_out_of_place(engine, count):
    model, examples = network(), normal(count, 1, 5, 5)
    before, kept = flags(model), examples.clone()
    found = by_engine(engine, model, examples)
    expected = by_engine(engine, without_flags(model), examples)
    for name in ("losses", "norms", "total"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert flags(model) == before
    assert torch.equal(examples, kept)
    assert_close(found, by_loop(without_flags(model), examples))


def test_dropout_draws_what_it_draws_out_of_place():
    results = []
    for model in (network(0.4), without_flags(network(0.4))):
        torch.manual_seed(1)
        results.append(by_engine(BookkeepingEngine(), model, normal(6, 1, 5, 5)))
    np.testing.assert_array_equal(results[0].total, results[1].total)


@pytest.mark.parametrize("kind", sorted(_TYPES, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_type_is_exact(kind, sizes_unprobed):
    torch.manual_seed(0)
    options = {"threshold": 0.1, "value": 0.2} if kind is nn.Threshold else {}
    layer = kind(**options, inplace=True).eval()
    shape = {nn.Dropout2d: (2, 2, 2), nn.Dropout3d: (2, 2, 2, 1)}.get(kind, (2, 4))
    shaped = nn.Sequential(nn.Unflatten(1, shape), layer, nn.Flatten())
    model = nn.Sequential(nn.Linear(3, 8), shaped, nn.Linear(8, 2)).double()
    check_model(model)
    assert_engine_exact(model, normal(5, 3))
    assert layer.inplace is True


def test_modules_that_are_computed_again_by_the_fallback():
    """The rule of a module without one of its own calls its children a second time."""

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.act = nn.Parameter(torch.linspace(0.5, 2, 3)), nn.Hardswish(inplace=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.act(inputs) * self.gain

    torch.manual_seed(0)
    assert_engine_exact(nn.Sequential(nn.Linear(3, 3), Gain(), nn.Linear(3, 2)).double(), normal(5, 3))


@pytest.mark.parametrize("engine", ENGINES, ids=["whole", "split", "reference"])
def test_flags_are_restored_after_a_failure(engine):
    model = network()
    model[0].inplace = 1  # true, and not True
    before = flags(model)

    def losses(model, batch):
        assert not any(flags(model))
        model(batch)
        raise KeyError("of the model's own")

    with pytest.raises(KeyError, match="own"):
        by_engine(engine, model, normal(4, 1, 5, 5), losses)
    assert flags(model) == before
    assert model[0].inplace == 1
    assert model[0].inplace is not True


def test_blocks_inside_blocks():
    act = nn.ReLU(inplace=True)
    with out_of_place([act]):
        with out_of_place([act]):
            assert not act.inplace
        assert not act.inplace
    assert act.inplace


@pytest.mark.parametrize("engine", ENGINES, ids=["whole", "split", "reference"])
def test_a_value_that_is_used_again_is_refused(engine):
    """relu_(z) + z is 2 relu(z), and relu(z) + z is not: the engine may not train another model than the user has."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.act = nn.Linear(3, 3), nn.Linear(3, 2), nn.ReLU(inplace=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            return self.last(self.act(hidden) + hidden)

    torch.manual_seed(0)
    model = Again().double()
    with pytest.raises(InvalidArgumentError, match=r"\['act'\].*uses again.*inplace=False"):
        by_engine(engine, model, normal(6, 3))
    assert model.act.inplace
    model.act.inplace = False
    by_engine(engine, model, normal(6, 3), squared_output)
