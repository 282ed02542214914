"""Models that the engine refuses, each by the name of the module and with a fix."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import functional

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, check_model, supervised
from inosgd.gradients.rules.chain import ChainGradients
from inosgd.gradients.rules.forms import Bounds
from inosgd.gradients.rules.recorder import READINGS
from tests.gradients.gradient_oracle import assert_engine_exact, by_engine, squared_output, unseen_linear

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

ENGINE = BookkeepingEngine()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Around(nn.Module):
    """A model with a linear layer and one thing done to its output."""

    def __init__(self, act) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(3, 3), nn.Linear(3, 3), act

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self, self.first(inputs)))


class Moved(nn.Module):
    """A linear layer that sees the examples in another dimension than the first."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layer, self.norm, self.dimension = nn.Linear(2, 3), nn.LayerNorm(3), dimension

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.layer(inputs.movedim(0, self.dimension)))).movedim(self.dimension, 0)


class Placed(nn.Module):
    """Positions by an embedding, in a sum that they broadcast in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.places = nn.Linear(3, 3), nn.Embedding(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(inputs)[:, None] + self.places(torch.arange(4)))


class OwnReLU(nn.ReLU):
    """Of another type than torch's own: nothing is known about what its flag means."""


class OwnInPlace(nn.Module):
    inplace = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.tanh_()


class TestLayers:
    @pytest.mark.parametrize(
        ("layer", "shape", "fix"),
        [
            (nn.BatchNorm1d(3), (3,), "replace_batchnorm"),
            (nn.BatchNorm2d(3), (3, 2, 2), "replace_batchnorm"),
            (nn.SyncBatchNorm(3), (3,), "replace_batchnorm"),
            (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), (3, 4), "track_running_stats=False"),
            (OwnReLU(inplace=True), (3,), "inplace=False"),
            (OwnInPlace(), (3,), "inplace=False"),
        ],
    )
    def test_refused_with_name_and_fix(self, layer, shape, fix):
        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Identity(), layer)).double()
        with pytest.raises(InvalidArgumentError, match=rf"'1\.1' \({type(layer).__name__}\).*{fix}"):
            check_model(model)
        with pytest.raises(InvalidArgumentError, match=fix), ENGINE.on(model, squared_output, normal(4, *shape)):
            pass

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    @pytest.mark.parametrize("engine", [ENGINE, ReferenceEngine()])
    def test_scripted(self, engine):
        for scripted in (torch.jit.script(nn.Linear(3, 3)), torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))):
            model = nn.Sequential(nn.Linear(3, 3), scripted).double()
            with (
                pytest.raises(InvalidArgumentError, match=r"'1' .*give the module that it was made from"),
                engine.on(model, squared_output, normal(4, 3)),
            ):
                pass

    @pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
    def test_embeddings(self, options):
        with pytest.raises(InvalidArgumentError, match=f"'0' .Embedding.*{next(iter(options))}"):
            check_model(nn.Sequential(nn.Embedding(3, 2, **options)))

    def test_batchnorm_with_fixed_statistics_mixes_nothing(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).double()
        model(normal(9, 1, 3, 3))
        model[1].eval()
        assert_engine_exact(model, normal(4, 1, 3, 3))

    def test_accepted(self):
        check_model(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.GroupNorm(1, 2), nn.Embedding(2, 2)))


class TestSharedParameters:
    def test_frozen_ones_may_be_shared(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        model[2].weight = model[0].weight.requires_grad_(False)
        assert_engine_exact(model, normal(4, 3))


class TestGradientsAreCompared:
    """What no list of layers can know is found by comparing a batch to its parts; see also `test_values.py`."""

    @pytest.mark.parametrize(
        "act",
        [
            lambda model, z: z - z.mean(0),
            lambda model, z: functional.softmax(z, dim=0),
            lambda model, z: z.flip(0),
            lambda model, z: z @ z.T @ z,
        ],
        ids=["centred", "softmax", "flipped", "attention"],
    )
    def test_mixed_examples(self, act):
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, Around(act).double(), normal(5, 3))

    def test_mixed_inputs(self):
        def losses(model, batch):
            return squared_output(model, batch - batch.mean(0))

        with pytest.raises(InvalidArgumentError, match="mix the examples"):
            by_engine(ENGINE, nn.Linear(3, 2).double(), normal(5, 3), losses)

    def test_parameters_used_where_no_engine_sees_it(self):
        act = lambda model, z: z + unseen_linear(z, model.first.weight)  # noqa: E731
        with pytest.raises(InvalidArgumentError, match=r"parameter '(first|last)\.\w+'.*ReferenceEngine"):
            by_engine(ENGINE, Around(act).double(), normal(5, 3))

    @pytest.mark.parametrize("count", [3, 4, 5])
    def test_examples_in_another_dimension(self, count):
        """The second is exact, the third refused; also where the batch is as long, so that no shape tells."""
        by_engine(ENGINE, Moved(1).double(), normal(count, 4, 5, 2))
        with pytest.raises(InvalidArgumentError, match="dimension"):
            by_engine(ENGINE, Moved(2).double(), normal(count, 4, 5, 2))

    @pytest.mark.parametrize("count", [3, 4, 5])
    def test_examples_in_the_second_dimension_in_any_batch(self, count):
        """Also in batches that are not compared, whose size is that of another dimension."""
        model = Moved(1).double()
        for size in (count, 4, 6, 4, 5, 4):
            assert_engine_exact(model, normal(size, 4, 5, 2))

    def test_the_control(self, monkeypatch):
        """Without that reading, such a model is refused."""
        monkeypatch.setattr("inosgd.gradients.checks.READINGS", READINGS[:2])
        with pytest.raises(InvalidArgumentError, match="dimension"):
            by_engine(ENGINE, Moved(1).double(), normal(4, 4, 5, 2))

    def test_constants_with_as_many_rows_as_examples(self):
        """Positions by an embedding: the same rows for all, in batches as large as a sequence is long or not."""
        model = Placed().double()
        for size in (4, 8, 5, 4, 12):
            assert_engine_exact(model, normal(size, 3))

    def test_a_model_whose_examples_do_not_pass_alone(self):
        def act(model: nn.Module, z: torch.Tensor) -> torch.Tensor:
            if len(z) == 1:
                raise ValueError("Expected more than 1 value")
            return z

        with pytest.raises(InvalidArgumentError, match="do not pass without the others"):
            by_engine(ENGINE, Around(act).double(), normal(5, 3))

    def test_first_batches_of_one_example_only_postpone_it(self):
        model = Around(lambda model, z: z - z.mean(0).detach() / 2).double()
        by_engine(ENGINE, model, normal(1, 3))
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, model, normal(2, 3))

    def test_one_example_beside_itself_shows_what_depends_on_others(self):
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, Around(lambda model, z: z - z.mean(0).detach() - z.flip(0)).double(), normal(1, 3))

    def test_broken_examples_only_postpone_it(self):
        model = Around(lambda model, z: z - z.mean(0)).double()
        examples = normal(5, 3)
        by_engine(ENGINE, model, torch.full_like(examples, np.nan))
        with pytest.raises(InvalidArgumentError, match="mix"):
            by_engine(ENGINE, model, examples)

    def test_broken_examples_do_not_hide_what_is_not_recorded(self):
        model = Around(lambda model, z: z + unseen_linear(z, model.first.weight)).double()
        with pytest.raises(InvalidArgumentError, match=r"parameter 'first\.weight': it is used past what is"):
            by_engine(ENGINE, model, torch.full((5, 3), np.nan, dtype=torch.float64))
        seen = Around(lambda model, z: z + functional.linear(z, model.first.weight.T)).double()
        by_engine(ENGINE, seen, torch.full((5, 3), np.nan, dtype=torch.float64))
        assert_engine_exact(seen, normal(5, 3))

    def test_gradients_too_short_for_their_squares_are_no_difference(self):
        model, examples = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(5, 3).float()
        short = by_engine(ENGINE, model, examples, lambda model, batch: 1e-22 * squared_output(model, batch))
        assert np.isfinite(short.norms).all()

    def test_one_of_the_first_examples_may_have_no_finite_norm(self):
        torch.manual_seed(0)
        model, examples = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(5, 3).float()
        examples[1] = -1e20
        assert np.isfinite(by_engine(ENGINE, model, examples).norms).sum() == 4

    @pytest.mark.parametrize(("share", "message"), [(0.5, "clipped too little"), (1.0, None)])
    def test_norms_of_a_pass_as_training_does_it(self, share, message, monkeypatch):
        """A chain that takes gradients for shorter than they are is refused; the same chain left alone is not."""
        plain = ChainGradients.bounds
        monkeypatch.setattr(ChainGradients, "bounds", lambda self: Bounds(*[share * each for each in plain(self)]))
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        with nullcontext() if message is None else pytest.raises(InvalidArgumentError, match=message):
            by_engine(ENGINE, model, normal(5, 3))

    def test_losses_that_change_between_passes_are_told_apart(self):
        generator = np.random.default_rng(0)
        with pytest.raises(InvalidArgumentError, match="two passes"):
            by_engine(
                ENGINE,
                nn.Linear(3, 2).double(),
                normal(5, 3),
                lambda model, batch: squared_output(model, batch) * generator.uniform(1, 2),
            )

    def test_dropout_is_no_difference(self):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, batch_first=True)
        lstm = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)

        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.lstm = layer, lstm

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.lstm(self.layer(inputs))[0]

        by_engine(ENGINE, Both(), normal(5, 3, 4).float())


class TestInPlace:
    def test_changed_inputs_are_noticed(self):
        def act(model, z):
            z = z.tanh()
            model.last(z)
            z += 1
            return z

        with pytest.raises(InvalidArgumentError, match=r"module 'last'.*in place"):
            by_engine(ENGINE, Around(act).double(), normal(4, 3))

    def test_changed_outputs_do_no_harm(self):
        assert_engine_exact(Around(lambda model, z: z.relu_()).double(), normal(4, 3))


class TestCallsWithoutRule:
    def test_function_on_packed_data(self):
        class OnData(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm = nn.LSTM(2, 2)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                data, sizes, _, _ = nn.utils.rnn.pack_padded_sequence(inputs, [3] * len(inputs), batch_first=True)
                start = [inputs.new_zeros(1, len(inputs), 2)] * 2
                return torch._VF.lstm(data, sizes, start, self.lstm._flat_weights, True, 1, 0.0, True, False)[1][0]

        with pytest.raises(InvalidArgumentError, match=r"'lstm'.*call the nn.LSTM"):
            by_engine(ENGINE, OnData().double(), normal(2, 3, 2))

    def test_random_layer_without_a_rule(self):
        class Noisy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return functional.dropout(inputs * self.gain)

        model, examples = Noisy().double(), normal(4, 3)
        by_engine(ENGINE, model, examples)
        torch.manual_seed(3)
        found = by_engine(ENGINE, model, examples, coefficients=np.ones(4))
        torch.manual_seed(3)
        rows = examples[torch.arange(8).clamp_max(3)]  # as many as pass
        (expected,) = torch.autograd.grad(squared_output(model, rows)[:4].sum(), [model.gain])
        np.testing.assert_allclose(found.total, expected, rtol=1e-9)

    def test_several_outputs(self):
        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(3))

            def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return inputs * self.gain, inputs

        assert_engine_exact(Pair().double(), normal(4, 3))

    def test_mean_of_losses(self):
        with pytest.raises(InvalidArgumentError, match="one floating-point loss per example"):
            by_engine(ENGINE, nn.Linear(3, 2).double(), normal(4, 3), lambda model, batch: model(batch).mean())


def test_the_reference_engine_refuses_batchnorm_by_name():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    examples = torch.randn(6, 3), torch.tensor([0, 0, 1, 0, 1, 1])
    with pytest.raises(InvalidArgumentError, match=r"module '1' \(BatchNorm1d\).*replace_batchnorm"):
        ReferenceEngine().on(model, supervised(functional.cross_entropy), examples).__enter__()


def test_a_rectifier_at_its_kink_is_no_reason_to_refuse():
    """Whether its derivative is 0 or 1 is then up to roundings, which differ between a batch and its parts."""
    torch.manual_seed(0)
    for _ in range(20):
        model, inputs = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), torch.randn(16, 8)
        with torch.no_grad():
            for unit in range(8):
                model[0].bias[unit] = -(model[0].weight[unit] @ inputs[unit])
        targets = torch.zeros(16, dtype=torch.long)
        with BookkeepingEngine().on(model, supervised(F.cross_entropy), (inputs, targets)) as gradients:
            gradients.measure()
