"""The engine as a whole: what it leaves behind, what it isolates, and batches that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, trainable_parameters
from inosgd.gradients.rules import OuterProducts
from tests.gradients.gradient_oracle import assert_close, assert_engine_exact, by_engine, by_loop, squared_output

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

ENGINE = BookkeepingEngine()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def small_cnn(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(48, 4),
        nn.Tanh(),
        nn.Linear(4, 2),
    ).double()


def sequence_model() -> nn.Module:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm = nn.Embedding(5, 3), nn.LSTM(3, 4, batch_first=True)
            self.mix, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            hidden = self.lstm(self.table(words))[0]
            return self.head(self.mix(hidden, hidden, hidden)[0].mean(1))

    torch.manual_seed(0)
    return Sequence().double()


def snapshot(model: nn.Module) -> dict:
    """Everything a module or its parameters could carry away from a step."""
    found = {}
    for path, module in model.named_modules():
        found[path] = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(module).items()}
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = (parameter.requires_grad, parameter.grad, dict(vars(parameter)))
    return found


class TestNothingIsLeftBehind:
    @pytest.mark.parametrize(
        ("model", "examples"),
        [(small_cnn(), normal(5, 1, 4, 4)), (sequence_model(), torch.arange(20).view(4, 5) % 5)],
        ids=["cnn", "sequence"],
    )
    def test_model_is_as_before(self, model, examples):
        next(model.parameters()).requires_grad_(False)
        before = snapshot(model)
        with ENGINE.on(model, squared_output, examples) as gradients:
            assert snapshot(model) == before, "hooks are gone even inside the block"
            gradients.weighted_sum(np.ones(len(examples)))
        assert snapshot(model) == before

    @pytest.mark.parametrize("where", ["forward", "losses", "block"])
    def test_also_after_an_exception(self, where):
        model, examples = small_cnn(), normal(4, 1, 4, 4)
        before = snapshot(model)

        def losses(model, batch):
            values = squared_output(model, batch[:, :, :3] if where == "forward" else batch)
            if where == "losses":
                raise RuntimeError("on purpose")
            return values

        with pytest.raises(RuntimeError), ENGINE.on(model, losses, examples):
            raise RuntimeError("on purpose")
        assert snapshot(model) == before

    def test_random_numbers_are_drawn_as_in_a_plain_pass(self):
        model, examples = small_cnn(dropout=0.5), normal(8, 1, 4, 4)  # as many as pass, so that none is repeated
        with ENGINE.on(model, squared_output, examples):  # checks the model first, which must not show
            pass
        states = []
        for step in (lambda: by_engine(ENGINE, model, examples), lambda: model(examples)):
            torch.manual_seed(5)
            step()
            states.append(torch.get_rng_state())
        assert torch.equal(*states)

    def test_inside_no_grad(self):
        model, examples = small_cnn(), normal(3, 1, 4, 4)
        expected = by_loop(model, examples)
        with torch.no_grad():
            actual = by_engine(ENGINE, model, examples)
        assert_close(actual, expected)


class TestBrokenExamples:
    """An example with coefficient 0 contributes nothing; a broken one breaks nobody else."""

    @pytest.mark.parametrize("poison", [np.nan, np.inf, 1e300])
    @pytest.mark.parametrize("engine", [ENGINE, BookkeepingEngine(2)], ids=["whole", "split"])
    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_isolated(self, poison, engine, dropout):
        model, examples = small_cnn(dropout), normal(7, 1, 4, 4)
        coefficients = np.array([0.0, 1.0, 0.0, 0.5, 0.7, 2.0, 0.3])
        torch.manual_seed(1)
        clean = by_engine(engine, model, examples, coefficients=coefficients)
        examples[0] = poison
        examples[2, 0, 1, 1] = poison
        torch.manual_seed(1)
        broken = by_engine(engine, model, examples, coefficients=coefficients)
        others = coefficients != 0
        np.testing.assert_allclose(broken.norms[others], clean.norms[others], rtol=1e-12)
        np.testing.assert_allclose(broken.total, clean.total, rtol=1e-12, atol=1e-15)
        if not np.isfinite(poison):
            assert not np.isfinite(broken.norms[~others]).any()

    def test_negative_control(self):
        """With any coefficient but 0 the broken example does show."""
        model, examples = small_cnn(), normal(3, 1, 4, 4)
        examples[0] = np.nan
        assert np.isnan(by_engine(ENGINE, model, examples, coefficients=np.ones(3)).total).any()

    def test_broken_sequence(self):
        model = sequence_model()
        words = torch.arange(20).view(4, 5) % 4
        words[2] = 4
        with torch.no_grad():
            model.table.weight[4] = np.inf
        coefficients = np.array([1.0, 0.5, 0.0, 2.0])
        broken = by_engine(ENGINE, model, words, coefficients=coefficients)
        assert np.isfinite(broken.norms).tolist() == [True, True, False, True]
        expected = by_loop(model, words, coefficients=coefficients)
        np.testing.assert_allclose(broken.total, expected.total, rtol=1e-7, atol=1e-12)

    def test_few_nonzero_coefficients(self):
        model, examples = small_cnn(), normal(9, 1, 4, 4)
        coefficients = np.zeros(9)
        coefficients[[2, 7]] = 0.5, 1.5
        for engine in (ENGINE, BookkeepingEngine(2)):
            actual = by_engine(engine, model, examples, coefficients=coefficients)
            assert_close(actual, by_loop(model, examples, coefficients=coefficients))
            assert not by_engine(engine, model, examples, coefficients=np.zeros(9)).total.any()


class TestSplitBatches:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
    def test_exact(self, size):
        model, examples = small_cnn(), normal(7, 1, 4, 4)
        assert_close(by_engine(BookkeepingEngine(size), model, examples), by_loop(model, examples))

    def test_structured_examples_and_frozen_parameters(self):
        model, words = sequence_model(), torch.arange(35).view(7, 5) % 5
        model.lstm.requires_grad_(False)
        targets = normal(7, 2)

        def losses(model, batch):
            return (model(batch["words"]) - batch["targets"]).square().sum(1)

        results = []
        for engine in (ENGINE, BookkeepingEngine(3)):
            with engine.on(model, losses, {"words": words, "targets": targets}) as gradients:
                results.append((gradients.measure().grad_norms, gradients.weighted_sum(np.linspace(0, 1, 7))))
        np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-10)
        assert torch.allclose(results[0][1], results[1][1], rtol=1e-10)

    def test_dropout_masks_are_those_that_were_measured(self):
        """A one-hot sum has the norm that was measured: with new masks in the second pass it would not."""
        model, examples = small_cnn(dropout=0.5), normal(7, 1, 4, 4)
        for index in range(7):
            alone = by_engine(BookkeepingEngine(3), model, examples, coefficients=np.eye(7)[index])
            assert np.linalg.norm(alone.total) == pytest.approx(alone.norms[index], rel=1e-10)

    def test_dropout_leaves_the_generator_after_the_first_pass(self):
        model, examples = small_cnn(dropout=0.5), normal(7, 1, 4, 4)
        states = []
        for coefficients in (np.zeros(7), np.ones(7)):
            torch.manual_seed(3)
            by_engine(BookkeepingEngine(2), model, examples, coefficients=coefficients)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)

    @pytest.mark.usefixtures("values_unchecked")
    def test_randomness_that_cannot_be_replayed_is_refused(self):
        generator = np.random.default_rng(0)

        def losses(model, batch):
            return squared_output(model, batch) * generator.uniform(1, 2)

        engine = BookkeepingEngine(8)
        with (
            pytest.raises(InosgdError, match="physical_batch_size"),
            engine.on(small_cnn(), losses, normal(12, 1, 4, 4)) as gradients,
        ):
            gradients.weighted_sum(np.ones(12))

    @pytest.mark.parametrize("size", [0, -1, 1.5, True])
    def test_sizes_are_whole(self, size):
        with pytest.raises(InvalidArgumentError, match="physical_batch_size"):
            BookkeepingEngine(size)

    def test_second_pass_leaves_out_examples_without_weight(self):
        model, examples, seen = small_cnn(), normal(24, 1, 4, 4), []

        def losses(model, batch):
            seen.append(len(batch.flatten(1).unique(dim=0)))
            return squared_output(model, batch)

        with BookkeepingEngine(8).on(model, losses, examples) as gradients:
            seen.clear()
            coefficients = np.zeros(24)
            coefficients[[3, 16, 17]] = 1.0
            gradients.weighted_sum(coefficients)
        assert seen == [1, 2], "who is left out does not move the others from one piece to another"


class TestShapesOfUse:
    def test_empty_batch(self):
        model = small_cnn()
        result = by_engine(ENGINE, model, normal(0, 1, 4, 4))
        assert result.losses.shape == result.norms.shape == (0,)
        width = sum(parameter.numel() for parameter in trainable_parameters(model).values())
        assert result.total.shape == (width,)
        assert not result.total.any()

    def test_wrong_number_of_coefficients(self):
        with (
            pytest.raises(InvalidArgumentError, match="coefficients"),
            ENGINE.on(small_cnn(), squared_output, normal(3, 1, 4, 4)) as gradients,
        ):
            gradients.weighted_sum(np.ones(2))

    def test_layer_that_no_loss_depends_on(self):
        class Idle(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.called, self.idle = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                self.called(inputs)
                return self.used(inputs)

        assert_engine_exact(Idle().double(), normal(3, 2))

    def test_losses_may_call_parts_of_the_model(self):
        model = small_cnn()

        def losses(model, batch):
            hidden = model[:3](batch)
            return model[4:](hidden).square().sum(1) + hidden.square().mean((1, 2, 3))

        assert_engine_exact(model, normal(4, 1, 4, 4), losses)

    def test_trainable_parameters_may_change_between_batches(self):
        model, examples = small_cnn(), normal(4, 1, 4, 4)
        assert_engine_exact(model, examples)
        model[0].requires_grad_(False)
        assert_engine_exact(model, examples)
        model.requires_grad_(True)
        assert_engine_exact(model, examples)

    def test_frozen_layers_are_not_recorded(self, monkeypatch):
        from inosgd.gradients.rules import convolution

        model = small_cnn()
        model[0].requires_grad_(False)
        monkeypatch.setattr(convolution, "_planar", None)
        by_engine(ENGINE, model, normal(3, 1, 4, 4))


def cancelling(size: float) -> OuterProducts:
    """Two places whose contributions cancel: float32 Gram matrices lose every digit of what is left."""
    generator = torch.Generator().manual_seed(0)
    inputs = size * torch.randn(64, 1, 64, generator=generator)
    left = 0.1 * torch.randn(64, 1, 64, generator=generator)
    return OuterProducts(torch.ones(64, 2, 64), (torch.cat([inputs, left - inputs], dim=1),), biases=1)


def exact_norms(form: OuterProducts) -> torch.Tensor:
    exact = OuterProducts(form.outputs.double(), tuple(each.double() for each in form.inputs), form.biases)
    return torch.cat([part.flatten(1) for part in exact.materialise()], dim=1).norm(dim=1)


@pytest.mark.parametrize("size", [1.0, 100.0, 1000.0, 1e5])
def test_norms_of_cancelling_contributions_are_never_too_small(size):
    form = cancelling(size)
    assert (form.bounds().norms.sqrt() >= exact_norms(form)).all()


def test_without_the_margin_they_would_be():
    form = cancelling(1000.0)
    (places,) = form.inputs
    naive = ((form.outputs @ form.outputs.mT) * (places @ places.mT + 1)).sum((1, 2)).clamp_min(0).sqrt()
    assert (naive.double() < 0.7 * exact_norms(form)).any()
