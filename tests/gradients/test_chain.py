"""Chains of linear layers: the same gradients as layer by layer, and nothing unusual is taken for a chain."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, calls
from inosgd.gradients.rules.chain import ACTIVATIONS, Chain, ChainGradients
from inosgd.gradients.rules.chain_kernel import kernel
from tests.gradients.gradient_oracle import assert_engine_exact, by_engine, by_loop, squared_output
from tests.properties import tries

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

ENGINE = BookkeepingEngine()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True, scope="module", params=["compiled", "torch"])
def way(request):
    """Everything here holds with the chain's kernel and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(calls, "kernel_run", lambda layers, inputs: None)
        elif kernel(torch.float64) is None:
            pytest.skip("there is no compiler")
        yield request.param


def chain(*widths: int, activation: type[nn.Module] = nn.ReLU, bias: bool = True, ends: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
    return nn.Sequential(*layers if ends else layers[:-1]).double()


class Doubled(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the chains that were run as one, in checks and in the batch."""
    runs: list[str] = []
    plain = Chain.recorded

    def recorded(self, *arguments):
        runs.append(self.where)
        return plain(self, *arguments)

    monkeypatch.setattr(Chain, "recorded", recorded)
    return runs


class TestExact:
    @tries(8)
    @given(
        count=st.sampled_from([0, 1, 2, 7]),
        widths=st.lists(st.integers(1, 5), min_size=3, max_size=5),
        activation=st.sampled_from(list(ACTIVATIONS)),
        bias=st.booleans(),
        ends=st.booleans(),
    )
    def test_any_chain(self, count, widths, **options):
        model, examples = chain(*widths, **options), normal(count, widths[0])
        assume(count == 0 or by_loop(model, examples).norms.any())  # a dead network would tell nothing
        assert_engine_exact(model, examples)

    def test_without_activations(self):
        assert_engine_exact(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)).double(), normal(5, 3))

    @pytest.mark.usefixtures("values_unchecked")
    def test_in_the_middle_of_a_model(self, monkeypatch):
        runs = counted(monkeypatch)
        middle = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), chain(4, 3, 4, ends=True), nn.GELU(), nn.Linear(4, 2))
        assert_engine_exact(middle.double(), normal(5, 2, 3))
        assert set(runs) == {"2"}

    @pytest.mark.usefixtures("values_unchecked")
    def test_output_changed_in_place_by_the_model(self, monkeypatch):
        class InPlace(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = chain(3, 4, 4), chain(4, 3, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.head(self.body(inputs).mul_(2)).mul_(3)

        runs = counted(monkeypatch)
        assert_engine_exact(InPlace().double(), normal(5, 3))
        assert set(runs) == {"body", "head"}

    def test_called_twice_and_layers_called_by_themselves(self):
        model = chain(3, 4, 3)

        def losses(model, batch):
            return model(model(batch)).square().sum(1) + model[0](batch).sin().sum(1)

        assert_engine_exact(model, normal(5, 3), losses)

    def test_gradients_that_the_losses_ask_for_themselves(self):
        """Adversarial training: the losses differentiate the model's output before the engine does."""
        model, examples = chain(3, 4, 2), normal(5, 3)

        def losses(model, batch):
            inputs = batch.detach().clone().requires_grad_()
            with torch.enable_grad():
                output = model(inputs)
                (slopes,) = torch.autograd.grad(output.square().sum(), inputs, retain_graph=True)
            return 3 * output.square().sum(1) + (output - model(inputs.detach() + slopes.sign())).square().sum(1)

        assert_engine_exact(model, examples, losses)

    def test_second_derivatives_are_refused(self):
        def losses(model, batch):
            inputs = batch.detach().clone().requires_grad_()
            with torch.enable_grad():
                output = model(inputs).square().sum(1)
                (slopes,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
            return output + slopes.square().sum(1)

        with pytest.raises(InvalidArgumentError, match="ReferenceEngine"):
            by_engine(ENGINE, chain(3, 4, 2), normal(5, 3), losses)

    def test_weights_that_are_replaced_on_the_way(self):
        model, examples = chain(3, 4, 2), normal(5, 3)
        expected = by_engine(ENGINE, model, examples, lambda model, batch: model(batch).square().sum(1))

        def losses(model, batch):
            output = model(batch)
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
            return output.square().sum(1)

        np.testing.assert_allclose(by_engine(ENGINE, model, examples, losses).norms, expected.norms, rtol=1e-12)

    def test_broken_example_breaks_nobody_else(self):
        model, examples = chain(3, 4, 2, activation=nn.ReLU), normal(5, 3)
        coefficients = np.array([0.5, 0.0, 1.0, 0.2, 0.0])
        expected = by_loop(model, examples, coefficients=coefficients)
        examples[1] = np.nan
        examples[4, 0] = np.inf
        actual = by_engine(ENGINE, model, examples, coefficients=coefficients)
        np.testing.assert_allclose(actual.total, expected.total, rtol=1e-12)
        assert np.isfinite(actual.norms).tolist() == [True, False, True, True, False]


class TestWhatIsNoChain:
    @pytest.mark.usefixtures("values_unchecked")
    def test_plain_chain_is_one(self, monkeypatch):
        """The control: what the other cases change is all that keeps them from being one."""
        runs = counted(monkeypatch)
        by_engine(ENGINE, chain(3, 4, 2), normal(5, 3))
        assert set(runs) == {""}

    @pytest.mark.parametrize("case", ["frozen", "hook", "other layer", "subclass", "own forward", "twice", "sequence"])
    def test_layers_are_run_one_by_one(self, case, monkeypatch):
        runs, model, examples = counted(monkeypatch), chain(3, 3, 3), normal(5, 3)
        if case == "frozen":
            model[0].bias.requires_grad_(False)
        elif case == "hook":
            model[1].register_forward_hook(lambda module, arguments, output: 2 * output)
        elif case == "other layer":
            model[1] = nn.GELU()
        elif case == "subclass":
            model[0].__class__ = type(
                "Doubled", (nn.Linear,), {"forward": lambda self, x: 2 * nn.Linear.forward(self, x)}
            )
        elif case == "own forward":
            plain = model[0].forward
            model[0].forward = lambda inputs: plain(inputs).sin()
        elif case == "twice":
            model[2] = model[0]
        elif case == "sequence":
            examples = normal(5, 4, 3)
        assert_engine_exact(model, examples)
        assert not runs
        if case == "own forward":
            assert vars(model[0])["forward"](examples).shape == (5, 3), "the user's own function is back"

    def test_autocast_inside_the_model(self, monkeypatch):
        runs, model, examples = counted(monkeypatch), chain(3, 4, 2).float(), normal(5, 3).float()

        def losses(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return squared_output(model, batch).float()

        with pytest.raises(InvalidArgumentError, match=r"computes with torch\.bfloat16"):
            by_engine(ENGINE, model, examples, losses)
        assert not runs


def test_form_agrees_with_its_layers():
    form = ChainGradients(normal(2 + 4 + 3 + 1, 5), (2, 4, 3, 1), (True, False))
    alone, coefficients, rows = form.apart(), normal(5, seed=1), torch.tensor([3, 1])
    assert torch.allclose(form.bounds().norms, sum(each.bounds().norms for each in alone), rtol=1e-12)
    for get in (lambda each: each.weighted_sum(coefficients, single=True), lambda each: each.materialise()):
        expected = [part for each in alone for part in get(each)]
        for actual, wanted in zip(get(form), expected, strict=True):
            assert torch.allclose(actual, wanted, rtol=1e-12)
    assert torch.equal(form.select(rows).bounds().norms, form.bounds().norms[rows])
