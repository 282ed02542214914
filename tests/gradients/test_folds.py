"""Layers that see several rows per example: (B k, ...) with the rows of an example one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, LayerCall, ReferenceEngine, register_rule
from inosgd.gradients.rules import Dense, OuterProducts, convolution, rule
from inosgd.gradients.rules.forms import Summed, folded
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, by_loop, squared_output
from tests.gradients.test_engine_rules import Scale, build

ENGINE = BookkeepingEngine()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Folded(nn.Module):
    """A network on all rows of all units, whose outputs are a weighted mean of the rows of a unit."""

    def __init__(self, network: nn.Module, flatten=lambda x: x.flatten(0, 1)) -> None:
        super().__init__()
        self.network, self.flatten = network, flatten

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.network(self.flatten(inputs))
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        rows = torch.tanh(outputs).unflatten(0, inputs.shape[:2])
        weights = torch.linspace(1, 2, inputs.shape[1], dtype=rows.dtype)
        return torch.einsum("bk...,k->b...", rows, weights / weights.sum())


class Encoder(nn.Module):
    """Words, with positions that all rows share, and a layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, 4), nn.Embedding(5, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.register_buffer("places", torch.arange(5)[None])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(ids) + self.positions(self.places))[:, 0]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(2))


LAYERS = {
    "linear": (lambda: nn.Linear(3, 2), normal(7, 4, 3)),
    "linear without bias": (lambda: nn.Linear(30, 40, bias=False), normal(7, 4, 30)),
    "linear on sequences": (lambda: nn.Linear(3, 2), normal(7, 2, 5, 3)),
    "linear on short sequences": (lambda: nn.Linear(30, 40), normal(7, 3, 2, 30)),
    "chain by the kernel": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(7, 4, 3)),
    "chain": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), normal(7, 4, 3)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), normal(7, 3, 2, 5, 6)),
    "strided convolution": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2)), normal(7, 3, 2, 8, 9)),
    "dilated convolution": (lambda: nn.Conv2d(2, 3, 2, stride=3, dilation=2), normal(7, 4, 2, 10, 9)),
    "convolution in groups": (lambda: nn.Conv2d(4, 6, 3, padding=2, groups=2), normal(5, 3, 4, 6, 5)),
    "depthwise convolution": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), normal(5, 3, 4, 6, 5)),
    "convolution of one pixel": (lambda: nn.Conv2d(2, 3, 1, stride=2), normal(7, 3, 2, 5, 6)),
    "convolution in a line": (lambda: nn.Conv1d(2, 3, 3, padding=1), normal(7, 3, 2, 9)),
    "reflected padding": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), normal(7, 3, 2, 5, 6)),
    "layer norm": (lambda: nn.LayerNorm(4), normal(7, 3, 5, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), normal(7, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), normal(7, 3, 4, 5)),
    "instance norm": (lambda: nn.InstanceNorm1d(4, affine=True), normal(7, 3, 4, 5)),
    "embedding": (lambda: nn.Embedding(11, 3, padding_idx=1), words(7, 4, 5)),
    "large embedding": (lambda: nn.Embedding(400, 3), words(7, 4, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), normal(7, 3, 5, 4)),
    "shared positions": (Encoder, words(7, 3, 5)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), normal(7, 3, 5, 3)),
    "projected lstm": (lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True), normal(7, 3, 5, 3)),
    "gru": (lambda: nn.GRU(3, 4, batch_first=True), normal(7, 3, 5, 3)),
    "no rule": (lambda: Scale(3), normal(7, 3, 3)),
    "called twice": (lambda: _Twice(nn.Conv2d(2, 2, 3, padding=1)), normal(7, 3, 2, 5, 4)),
    "chain and its first layer": (lambda: _Both(), normal(7, 3, 3)),
}


class _Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(inputs)))


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.chain(inputs) * self.chain[0](inputs)


@pytest.mark.usefixtures("sizes_unprobed")
class TestEveryRule:
    @pytest.mark.parametrize("name", LAYERS)
    def test_against_a_loop(self, name):
        make, inputs = LAYERS[name]
        model = Folded(build(make()))
        assert_engine_exact(model, inputs)
        assert_engine_exact(model, inputs[:1])

    @pytest.mark.parametrize("name", ["linear", "convolution", "embedding", "attention", "chain by the kernel"])
    def test_against_the_reference_engine(self, name):
        make, inputs = LAYERS[name]
        model = Folded(build(make()))
        assert_close(by_engine(ENGINE, model, inputs), by_engine(ReferenceEngine(), model, inputs), 1e-10)

    @pytest.mark.parametrize(("gram", "held"), [(True, 0), (False, 0), (False, 1000)])
    def test_all_ways_of_convolutions(self, gram, held, monkeypatch):
        monkeypatch.setattr(convolution, "_prefers_gram", lambda *_: gram)
        monkeypatch.setattr(convolution, "HELD_PIXELS", held)
        for stride in (1, 2):
            layer = build(nn.Conv2d(4, 6, 3, stride=stride, padding=1, dilation=2))
            assert_engine_exact(Folded(layer), normal(5, 3, 4, 8, 7))

    def test_single_precision_against_a_loop_in_double(self):
        for name in ("linear on short sequences", "convolution", "chain by the kernel", "lstm"):
            make, inputs = LAYERS[name]
            model = Folded(make()).float()
            found = by_engine(ENGINE, model, inputs.float())
            expected = by_loop(model.double(), inputs)
            assert_close(found, expected, 5e-5)  # Gram matrices are rounded up
            assert (found.norms >= expected.norms * (1 - 1e-6)).all()

    def test_a_rule_of_ones_own_needs_to_know_nothing(self, monkeypatch):
        class Gain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.gain * inputs

        monkeypatch.setattr(rule, "_RULES", dict(rule._RULES))
        seen: list[LayerCall] = []

        def gain_rule(call: LayerCall):
            seen.append(call)
            return {(call.module.gain,): Dense((call.input * call.gradient,))}

        register_rule(Gain, gain_rule)
        assert_engine_exact(Folded(build(Gain())), normal(7, 4, 3))
        assert seen[-1].places == 4


class TestForms:
    def test_rows_are_uses_for_forms_that_know_no_better(self):
        class Plain:
            """Outer products without a way of their own."""

            def __init__(self, form: OuterProducts) -> None:
                self.form, self.materialise, self.bounds = form, form.materialise, form.bounds

            def select(self, rows):
                return Plain(self.form.select(rows))

        form = OuterProducts(normal(12, 3), (normal(12, 2),), 1)
        by_uses, by_itself = folded(Plain(form), 3, 4), folded(form, 3, 4)
        assert isinstance(by_uses, Summed)
        scales = normal(4)
        assert torch.allclose(by_uses.bounds().norms, by_itself.bounds().norms, rtol=1e-12)
        for one, other in zip(
            by_uses.weighted_sum(scales, single=True), by_itself.weighted_sum(scales, single=True), strict=True
        ):
            assert torch.allclose(one, other, rtol=1e-12)

    def test_one_row_each_changes_nothing(self):
        form = Dense((normal(4, 2),))
        assert folded(form, 1, 4) is form


class TestBatches:
    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 8), nn.ReLU(), nn.Linear(8, 3))

    def test_in_pieces(self):
        model, inputs = Folded(self.network().double()), normal(40, 3, 1, 5, 5)
        assert_close(by_engine(BookkeepingEngine(physical_batch_size=8), model, inputs), by_loop(model, inputs))

    def test_a_unit_has_the_same_bits_in_every_batch(self):
        model, inputs = Folded(self.network()), normal(30, 4, 1, 5, 5).float()
        whole, part = by_engine(ENGINE, model, inputs), by_engine(ENGINE, model, inputs[3:14])
        np.testing.assert_array_equal(whole.losses[3:14], part.losses)
        np.testing.assert_array_equal(whole.norms[3:14], part.norms)

    def test_other_numbers_of_rows_from_batch_to_batch(self, sizes_unprobed):
        model = Folded(nn.Linear(3, 2).double())
        for places in (4, 2, 4, 3, 1, 5, 2, 7, 6):
            assert_engine_exact(model, normal(6, places, 3))

    def test_a_row_that_is_not_finite(self):
        torch.manual_seed(0)
        chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        for network in (chain, nn.Linear(3, 2)):
            model, inputs = Folded(network.double()), normal(8, 4, 3)
            by_engine(ENGINE, model, inputs)
            inputs[2, 1] = np.nan
            scales = np.linspace(0.2, 1.3, 8)
            scales[2] = 0
            found = by_engine(ENGINE, model, inputs, coefficients=scales)
            assert np.flatnonzero(~np.isfinite(found.norms)).tolist() == [2]
            np.testing.assert_allclose(found.total, by_loop(model, inputs, coefficients=scales).total, rtol=1e-9)

    def test_weighted_means_of_losses(self):
        """A unit's loss is a weighted mean over its rows, of which some do not count."""
        torch.manual_seed(0)
        network = self.network().double()
        inputs, targets = normal(9, 4, 1, 5, 5), torch.randint(0, 3, (9, 4))
        weights = torch.rand(9, 4, dtype=torch.float64) * (torch.rand(9, 4) < 0.7)

        def losses(model, batch):
            inputs, targets, weights = batch
            rows = functional.cross_entropy(model(inputs.flatten(0, 1)), targets.flatten(), reduction="none")
            return (rows.view(weights.shape) * weights).sum(1) / weights.sum(1).clamp_min(1e-6)

        assert_engine_exact(network, (inputs, targets, weights), losses)


class TestRefused:
    """What only looks like several rows per example."""

    @pytest.mark.parametrize("network", ["linear", "convolution", "chain", "attention", "lstm"])
    @pytest.mark.parametrize("count", [2, 4, 6])
    def test_rows_of_all_examples_side_by_side(self, network, count):
        """One row of every example, then the next: the right shape, and the wrong examples."""
        make, inputs = LAYERS[network]

        class PlaceFirst(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = make()

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                outputs = self.network(inputs.transpose(0, 1).flatten(0, 1))
                outputs = outputs[0] if isinstance(outputs, tuple) else outputs
                return torch.tanh(outputs).unflatten(0, (inputs.shape[1], inputs.shape[0])).mean(0)

        torch.manual_seed(0)
        with pytest.raises(InvalidArgumentError, match=r"not what autograd gives|clipped too little"):
            by_engine(ENGINE, PlaceFirst().double(), inputs[:count])

    @pytest.mark.parametrize(
        "mix",
        [
            lambda z: z - z.mean(0),
            lambda z: z + z.roll(1, 0),
            lambda z: z.flip(0),
            lambda z: functional.softmax(z, dim=0),
        ],
        ids=["centred", "neighbours", "flipped", "softmax"],
    )
    def test_examples_mixed_through_the_rows(self, mix):
        class Mixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.last(mix(torch.tanh(self.first(inputs))))

        torch.manual_seed(0)
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, Folded(Mixed().double()), normal(6, 3, 3))

    def test_rows_may_be_mixed_within_an_example(self):
        """The control of the test above: what the rows of one example do to each other is its own affair."""

        class Mixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                hidden = torch.tanh(self.first(inputs)).unflatten(0, (-1, 3))
                return self.last((hidden - hidden.mean(1, keepdim=True)).flatten(0, 1))

        torch.manual_seed(0)
        assert_engine_exact(Folded(Mixed().double()), normal(6, 3, 3))

    def test_rows_that_were_picked_in_a_later_batch(self, sizes_unprobed):
        """Twice as many rows as examples by chance, out of turn."""

        class Picks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.layer, self.rare = nn.Linear(3, 2), nn.Linear(3, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                outputs = self.layer(inputs)
                at = (inputs > 100).any(2)
                extra = torch.zeros_like(outputs)
                if at.any():
                    extra[at] = self.rare(inputs[at])
                return (outputs + extra).sum(1)

        model, inputs = Picks().double(), normal(8, 5, 3)
        for _ in range(2):
            by_engine(ENGINE, model, inputs)
        inputs[0, :, 0] = inputs[1, :, 0] = inputs[2, :, 0] = 200.0
        inputs[3, 0, 0] = 200.0
        with pytest.raises(InvalidArgumentError, match=r"'rare\.weight'"):
            by_engine(ENGINE, model, inputs)

    def test_other_numbers_of_rows_say_so(self):
        class Some(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.layer(inputs.flatten(0, 1)[:-1]).sum() + inputs.sum((1, 2))

        with pytest.raises(InvalidArgumentError, match=r"\(17, 2\) for 6 examples.*one example after the other"):
            by_engine(ENGINE, Some().double(), normal(6, 3, 3), lambda model, batch: model(batch))


def test_a_loss_of_the_rows_alone_would_not_do():
    """Norms of rows are not norms of examples: what folding is for."""
    model, inputs = build(nn.Linear(3, 2)), normal(5, 4, 3)
    rows = by_engine(ENGINE, model, inputs.flatten(0, 1)).norms.reshape(5, 4)

    def together(model, batch):
        return squared_output(model, batch.flatten(0, 1)).view(5 if len(batch) == 5 else -1, 4).sum(1)

    found = by_engine(ENGINE, model, inputs, together).norms
    assert (np.abs(found - np.sqrt((rows**2).sum(1))) > 1e-3 * found).any()
    assert (found <= rows.sum(1) + 1e-9).all()
