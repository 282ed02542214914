"""Branches that a model takes at a batch whose values are not compared: exact, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.coverage import uncovered
from inosgd.gradients.recording import forward
from inosgd.gradients.rules.recorder import Recorder
from inosgd.gradients.task import Task
from tests.gradients.gradient_oracle import (
    assert_close,
    assert_engine_exact,
    by_engine,
    by_loop,
    squared_output,
    unseen_linear,
)

ENGINE = BookkeepingEngine()
USUAL = torch.rand(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
OTHER = -USUAL

pytestmark = pytest.mark.usefixtures("sizes_unprobed")


class Branching(nn.Module):
    """Two linear layers, and something else as soon as an example has a negative number."""

    def __init__(self, branch, first: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.branch = first or nn.Linear(6, 6), nn.Linear(6, 6), branch

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if bool((inputs > 0).all()):
            return self.last(_output(self.first(*_given(self.first, inputs))))
        return self.branch(self, inputs)


def _given(first: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x[:, None],) * 3 if isinstance(first, nn.MultiheadAttention) else (x,)


def _output(values: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return values[0][:, 0] if isinstance(values, tuple) else values


def force(m: Branching, x: torch.Tensor) -> torch.Tensor:
    """A derivative with respect to the input, whose own derivative goes past the layers' outputs."""
    places = x.detach().requires_grad_()
    energy = m.last(m.first(places).tanh()).square().sum()
    return torch.autograd.grad(energy, places, create_graph=True)[0]


def changed_view(m: Branching, x: torch.Tensor) -> torch.Tensor:
    """A change in place of what the output is a view of: the graph no longer leads through the output."""
    output = m.first(x[:, None, None])[:, 0]
    output.mul_(2)
    return output


def written(change):
    """A product with a weight that was computed from parameters, and then changed in place."""

    def branch(m: Branching, x: torch.Tensor) -> torch.Tensor:
        weight = 2 * m.first.weight
        change(m, weight, x)
        return m.first(x) + x @ weight

    return branch


def filled(m: Branching, x: torch.Tensor) -> torch.Tensor:
    weight = torch.zeros(6, 6, dtype=x.dtype)
    weight[:3] = m.last.weight[:3]
    return m.first(x) + x @ weight


RECORDED = {
    "carried, with rows of another": (written(lambda m, w, x: w.__setitem__(0, m.last.weight[0])), None),
    "carried, changed by a view": (written(lambda m, w, x: w[0].mul_(m.last.weight[0])), None),
    "carried, changed by a constant": (written(lambda m, w, x: w[1:].fill_(1)), None),
    "a constant with rows of a parameter": (filled, None),
    "transposed weight": (lambda m, x: F.linear(m.first(x), m.first.weight.t()), None),
    "product": (lambda m, x: m.last(m.first(x)) + x @ m.first.weight, None),
    "rows of a weight": (lambda m, x: m.first(x) + m.first.weight[x.argmax(1)], None),
    "slice of a weight": (lambda m, x: m.first(x) + F.pad(F.linear(x, m.first.weight[:3]), (0, 3)), None),
    "inside a checkpoint": (
        lambda m, x: m.first(x) + checkpoint(lambda x: x @ m.last.weight, x, use_reentrant=False),
        None,
    ),
    "weight of attention": (
        lambda m, x: F.linear(x, m.first.in_proj_weight[:6]),
        nn.MultiheadAttention(6, 2, batch_first=True),
    ),
    "a layer that was never called": (lambda m, x: m.extra(m.first(x)), None),
}

REFUSED = {
    "function of autograd": lambda m, x: m.first(x) + unseen_linear(x, m.first.weight),
    "derivative inside the model": force,
    "vmap": lambda m, x: torch.vmap(m.first)(x),
    "view changed in place": changed_view,
    "other parameters": lambda m, x: torch.func.functional_call(m.first, {"weight": m.first.weight / 10}, (x,)),
    "parameter given to a layer": lambda m, x: m.last(m.first(x)) + m.last(m.first.weight).sum(0),
}


def used_to(model: nn.Module) -> nn.Module:
    """The model after two batches, of which the second is the last that is compared before the fourth."""
    model.double()
    for _ in range(2):
        by_engine(ENGINE, model, USUAL)
    return model


@pytest.mark.parametrize("name", RECORDED)
def test_other_uses_of_parameters_are_exact_at_any_batch(name):
    model = Branching(*RECORDED[name])
    model.extra = nn.Linear(6, 6)
    assert_close(by_engine(ENGINE, used_to(model), OTHER), by_loop(model, OTHER))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_at_any_batch(name):
    model = used_to(Branching(REFUSED[name]))
    with pytest.raises(InvalidArgumentError):
        by_engine(ENGINE, model, OTHER)


def test_other_parameters_for_a_chain():
    chain = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model = Branching(
        lambda m, x: torch.func.functional_call(m.first, {"0.weight": m.first[0].weight / 10}, (x,)), chain
    )
    with pytest.raises(InvalidArgumentError, match="other parameters than its own"):
        by_engine(ENGINE, used_to(model), OTHER)


def test_one_use_of_a_parameter_in_two_places_of_a_layer():
    """The only record that there is."""
    layer = nn.LSTM(6, 6, batch_first=True).double()
    layer.weight_hh_l0 = layer.weight_ih_l0
    assert_engine_exact(layer, USUAL.view(4, 2, 6))
    chain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()
    chain[2].bias = chain[0].bias
    assert_engine_exact(chain, USUAL)


def test_rows_of_other_examples_in_a_layer_that_is_called_for_the_first_time():
    """They are as many as the examples, so that no shape tells."""
    model = Branching(lambda m, x: m.extra(m.first(x).roll(1, 0)).roll(-1, 0))
    model.extra = nn.Linear(6, 6)
    with pytest.raises(InvalidArgumentError, match="per-example gradient"):
        by_engine(ENGINE, used_to(model), OTHER)


def test_as_many_rows_as_examples_where_there_were_more():
    """Half of the places are picked, of some examples both and of others none."""

    def network(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        places = x.view(-1, 3)
        picked = (places[:, 0] > 0).nonzero()[:, 0]
        return places.index_put((picked,), m.extra(places[picked])).view(-1, 6) if len(picked) else x

    model = Branching(network)
    model.extra, model.forward = nn.Linear(3, 3), lambda x: network(model, x)
    picked = OTHER.clone().view(16, 3)
    picked[[0, 1, 2, 5, 6, 11, 12, 13]] *= -1
    with pytest.raises(InvalidArgumentError):
        by_engine(ENGINE, used_to(model), picked.view(8, 6))


def by_itself(m: nn.Module, w: torch.Tensor, x: torch.Tensor) -> None:
    w.mul_(3)


def by_the_batch(m: nn.Module, w: torch.Tensor, x: torch.Tensor) -> None:
    w.view(-1)[: len(x)] = m.last(x)[:, 0]


@pytest.mark.parametrize(("change", "match"), [(by_itself, "after it had used"), (by_the_batch, "values of the batch")])
def test_a_carried_tensor_is_changed_where_all_calls_are_known(change, match):
    """Nothing but the tensor's version tells."""

    def network(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        weight = 2 * m.first.weight
        output = m.last(x) + x @ weight
        if not bool((x > 0).all()):
            change(m, weight, x)
        return output + x @ weight

    model = Branching(network)
    model.forward = lambda x: network(model, x)
    with pytest.raises(InvalidArgumentError, match=match):
        by_engine(ENGINE, used_to(model), OTHER)


@pytest.mark.parametrize("recorded", [True, False])
def test_control_a_use_without_its_record_is_found(recorded):
    model = Branching(None).double()
    task = Task.of(model, squared_output)
    recorder = Recorder(len(USUAL), task.functions)
    losses = forward(task, USUAL, recorder)
    records = recorder.records if recorded else recorder.records[:1]
    found = uncovered(losses, records, task.parameters)
    assert found is None if recorded else found in ("last.weight", "last.bias")
