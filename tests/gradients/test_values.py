"""Models and losses that mix examples or hide what they do: refused on the first batch that shows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, supervised
from inosgd.gradients.checks import check_structure
from inosgd.gradients.task import Task
from inosgd.gradients.values import _different, moved
from tests.gradients.conftest import leave_values_unchecked
from tests.gradients.gradient_oracle import unseen_linear

pytestmark = pytest.mark.usefixtures("sizes_unprobed")

ENGINES = [BookkeepingEngine(), ReferenceEngine()]
engines = pytest.mark.parametrize("engine", ENGINES, ids=["bookkeeping", "reference"])
CROSS_ENTROPY = supervised(F.cross_entropy)


def on(engine, model, losses, examples) -> np.ndarray:
    with engine.on(model, losses, examples) as gradients:
        return gradients.measure().grad_norms


def examples(count: int = 24, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def perceptron(seed: int = 0, *between: nn.Module) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *between, nn.Linear(8, 3))


def class_weights(model, batch):
    counts = torch.bincount(batch[1], minlength=3).clamp_min(1)
    return CROSS_ENTROPY(model, batch) * (len(batch[1]) / counts)[batch[1]]


def hard_examples(model, batch):
    losses = CROSS_ENTROPY(model, batch)
    largest = losses.detach().topk(min(len(losses), max(3, len(losses) // 2))).values
    return losses * (losses >= largest[-1])


def by_largest_loss(model, batch):
    losses = CROSS_ENTROPY(model, batch)
    return losses / losses.detach().max()


def by_largest_input(model, batch):
    return CROSS_ENTROPY(model, (batch[0] / batch[0].detach().abs().max(), batch[1]))


def normalised_if_many(model, batch):
    inputs = F.batch_norm(batch[0], None, None, training=True) if len(batch[0]) > 8 else batch[0]
    return CROSS_ENTROPY(model, (inputs, batch[1]))


class RunningMean:
    """A mean of losses, kept in Python, by which those of the next batch are divided."""

    def __init__(self, momentum: float) -> None:
        self.mean, self.momentum = 1.0, momentum

    def __call__(self, model, batch):
        losses = CROSS_ENTROPY(model, batch) / self.mean
        self.mean = self.momentum * self.mean + (1 - self.momentum) * float(losses.detach().mean())
        return losses


class TestLossesThatMix:
    @engines
    @pytest.mark.parametrize("between", [(), (nn.Dropout(0.3),)], ids=["plain", "dropout"])
    @pytest.mark.parametrize(
        "losses", [class_weights, hard_examples, by_largest_loss, by_largest_input, normalised_if_many]
    )
    def test_refused_whatever_the_data(self, losses, between, engine):
        for seed in range(5):
            with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
                on(engine, perceptron(seed, *between), losses, examples(seed=seed))

    @pytest.mark.parametrize("losses", [class_weights, by_largest_loss, by_largest_input])
    def test_also_in_pieces_and_small_batches(self, losses):
        for engine, count in ((BookkeepingEngine(physical_batch_size=5), 24), (BookkeepingEngine(), 3)):
            with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
                on(engine, perceptron(), losses, examples(count))

    @engines
    @pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
    def test_state_in_python(self, momentum, engine):
        with pytest.raises(InvalidArgumentError, match="keep something from one pass to the next"):
            on(engine, perceptron(), RunningMean(momentum), examples())

    @engines
    def test_a_mistake_of_language_models(self, engine):
        """The sum over tokens is divided by the number of tokens in the batch, in a model with dropout."""

        def losses(model, batch):
            tokens, mask = batch
            wrong = F.cross_entropy(model(tokens).mT, tokens.roll(-1, 1), reduction="none") * mask
            return wrong.sum(1) / mask.sum()

        def right(model, batch):
            return losses(model, batch) * batch[1].sum() / batch[1].sum(1)

        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, 11, (12, 7), generator=generator)
        mask = (torch.arange(7) < torch.randint(2, 8, (12, 1), generator=generator)).float()
        for dropout in (0.0, 0.2):
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
            model = nn.Sequential(nn.Embedding(11, 8), layer, nn.Linear(8, 11))
            with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
                on(engine, model, losses, (tokens, mask))
        on(BookkeepingEngine(), model, right, (tokens, mask))

    def test_one_broken_example_that_breaks_the_others(self):
        inputs, targets = examples()
        inputs[5] = torch.inf
        with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
            on(BookkeepingEngine(), perceptron(), by_largest_input, (inputs, targets))

    @engines
    def test_values_that_hide_it(self, engine):
        """Nothing but the derivative with respect to inputs shows it."""

        def losses(model, batch):
            mean = batch[0].mean(0)
            return CROSS_ENTROPY(model, (batch[0] + mean - mean.detach(), batch[1]))

        with pytest.raises(InvalidArgumentError, match="depends on the input of another"):
            on(engine, perceptron(), losses, examples())


class Sorted(nn.Module):
    """The idiom before packing: sequences by length, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs, lengths):
        order = lengths.argsort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(inputs[order], lengths[order], batch_first=True)
        return self.head(self.lstm(packed)[1][0][-1][order.argsort()])


class Packed(Sorted):
    """The same by the library, which the engine follows."""

    def forward(self, inputs, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


class TestOrder:
    def test_coefficients_tell_examples_of_the_same_norm_apart(self):
        scales = _different(np.ones(64), np.arange(64) != 5, 0.0)
        assert scales[5] == 0
        assert np.abs(np.subtract.outer(scales, scales)[~np.eye(64, dtype=bool)]).min() > 1e-3

    @pytest.mark.parametrize("count", [6, 64])
    def test_a_model_that_sorts_its_batch(self, count):
        """The first examples are in order already; the others are not."""
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(1, 8, (count,), generator=generator)
        lengths[:3], lengths[3:6] = torch.tensor([7, 6, 5]), torch.tensor([2, 7, 3])
        batch = torch.randn(count, 7, 4, generator=generator), lengths, torch.arange(count) % 2

        def losses(model, batch):
            return F.cross_entropy(model(*batch[:2]), batch[2], reduction="none")

        with pytest.raises(InvalidArgumentError, match=r"parameter 'lstm\.\w+'.*examples are mixed"):
            on(BookkeepingEngine(), Sorted(), losses, batch)
        on(BookkeepingEngine(), Packed(), losses, batch)

    def test_random_pairs(self):
        """Mixup: the order is random, and pairs are never of an example with itself."""

        def losses(model, batch):
            order = torch.randperm(len(batch[0]))
            return CROSS_ENTROPY(model, (0.9 * batch[0] + 0.1 * batch[0][order], batch[1]))

        with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
            on(BookkeepingEngine(), perceptron(), losses, examples())


class Branch(nn.Module):
    """A network with a branch that ends in something that starts at zero."""

    def __init__(self, act, end: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last, self.act = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3), act
        self.end: nn.Module = nn.Linear(8, 8)
        if end == "gate":
            self.end = Scale()
        else:
            nn.init.zeros_(self.end.weight)
            nn.init.zeros_(self.end.bias)

    def forward(self, inputs):
        hidden = self.first(inputs)
        return self.last(torch.tanh(hidden + self.end(self.act(self, torch.tanh(hidden)))))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(8))

    def forward(self, inputs):
        return inputs * self.gamma


ends = pytest.mark.parametrize("end", ["layer", "gate"])


class TestBranchesThatStartAtZero:
    @ends
    def test_a_parameter_outside_its_module(self, end):
        model = Branch(lambda model, z: model.inner(z) + unseen_linear(z, model.inner.weight), end)
        with pytest.raises(InvalidArgumentError, match=r"parameter 'inner\.weight'.*ReferenceEngine"):
            on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())

    @ends
    @engines
    @pytest.mark.parametrize(
        "act",
        [lambda _, z: z - z.mean(0), lambda _, z: z.softmax(0), lambda _, z: z.flip(0)],
        ids=["centred", "softmax", "flipped"],
    )
    def test_mixing(self, act, end, engine):
        with pytest.raises(InvalidArgumentError, match="mix"):
            on(engine, Branch(act, end), CROSS_ENTROPY, examples())

    @ends
    def test_what_is_right_is_accepted_and_left_as_it_was(self, end):
        model = Branch(lambda model, z: model.inner(z), end)
        before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert torch.equal(state, torch.get_rng_state())

    def test_a_small_gradient_is_judged_by_its_own_scale(self):
        """The other parameters have gradients a thousand times larger."""

        class Small(Branch):
            def forward(self, inputs):
                hidden = self.first(inputs)
                return self.last(hidden) + 1e-3 * self.last(unseen_linear(hidden.tanh(), self.inner.weight))

        with pytest.raises(InvalidArgumentError, match=r"parameter 'inner\.weight': .* not what autograd gives"):
            on(BookkeepingEngine(), Small(None, "layer"), CROSS_ENTROPY, examples())


class TestMoved:
    def test_bits_are_restored_signs_are_kept_and_zeros_open(self):
        model = Branch(None, "layer")
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(RuntimeError, match="inside"), moved(model.parameters(), 0.1):
            for old, new in zip(before, model.parameters(), strict=True):
                assert (new != 0).all()
                assert ((old == 0) | (old.sign() == new.sign())).all()
                assert ((new - old).abs() <= 0.1 * old.abs().clamp_min(old[0].numel() ** -0.5) * (1 + 1e-5)).all()
            raise RuntimeError("inside")
        assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))

    def test_parameters_are_moved_by_roundings_only_where_numbers_differ(self, monkeypatch):
        sizes: list[float] = []

        def noted(parameters, size, draw=0):
            sizes.append(abs(size))
            return moved(parameters, size, draw)

        monkeypatch.setattr("inosgd.gradients.values.moved", noted)
        on(BookkeepingEngine(), perceptron(), CROSS_ENTROPY, examples())
        assert sizes == [0.1]
        with pytest.raises(InvalidArgumentError, match="mix"):
            on(BookkeepingEngine(), perceptron(), by_largest_loss, examples())
        assert min(sizes) < 1e-4


class TestWhen:
    """Values are checked at batches 1, 2, 4, 8, ..., and wherever something changed."""

    @pytest.fixture
    def checked(self, monkeypatch):
        found: list[tuple[int, bool]] = []

        def note(task, batch, *, recorded, perturbed, seed, seen):
            found.append((len(batch[0]), perturbed))
            seen.anything = True
            return True

        monkeypatch.setattr("inosgd.gradients.checks.check_values", note)
        return found

    def test_powers_of_two(self, checked):
        model, at = perceptron(), []
        for batch in range(1, 20):
            on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
            if checked:
                at.append((batch, *checked.pop()))
        assert at == [(1, 24, True), (2, 24, False), (4, 24, False), (8, 24, False), (16, 24, False)]

    def test_larger_batches(self, checked):
        model = perceptron()
        for count in (4, 4, 5, 5, 7, 0, 7, 30):
            on(BookkeepingEngine(), model, CROSS_ENTROPY, examples(count))
        assert checked == [(4, True), (4, False), (5, False), (7, True), (30, True)]

    def test_pieces_as_large_as_they_pass(self, checked):
        on(BookkeepingEngine(physical_batch_size=5), perceptron(), CROSS_ENTROPY, examples())
        assert checked == [(5, True)]

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model[1].eval(),
            lambda model: model[0].register_forward_hook(lambda *_: None),
            lambda model: model[0].weight.requires_grad_(False),
            lambda model: model.register_buffer("extra", torch.zeros(1)),
            lambda model: setattr(model[0], "forward", model[0].forward),
            lambda model: model.append(nn.Identity()),
        ],
        ids=["mode", "hook", "frozen", "buffer", "forward", "layer"],
    )
    def test_whatever_changed(self, change, checked):
        model = perceptron(0, nn.Dropout(0.5))
        for _ in range(3):
            on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
        change(model)
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
        assert len(checked) == 3

    @engines
    def test_a_frozen_batchnorm_that_wakes_up(self, engine):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        model[1].eval()
        for _ in range(3):
            on(engine, model, CROSS_ENTROPY, examples())
        model.train()
        with pytest.raises(InvalidArgumentError, match=r"module '1' \(BatchNorm1d\)"):
            on(engine, model, CROSS_ENTROPY, examples())

    def test_a_setting_that_changed(self):
        model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
        batch = torch.randint(0, 5, (6, 2)), torch.arange(6) % 3
        on(BookkeepingEngine(), model, CROSS_ENTROPY, batch)
        model[0].max_norm = 1.0
        with pytest.raises(InvalidArgumentError, match="max_norm"):
            on(BookkeepingEngine(), model, CROSS_ENTROPY, batch)

    def test_what_was_refused_is_refused_again(self):
        model = perceptron()
        for _ in range(3):
            with pytest.raises(InvalidArgumentError, match="another loss"):
                on(BookkeepingEngine(), model, by_largest_loss, examples())

    def test_states_are_not_kept_for_ever(self, checked):
        model, hooks = perceptron(), []
        task = Task.of(model, CROSS_ENTROPY)
        first = check_structure(task, examples())
        for _ in range(20):
            hooks.append(model.register_forward_hook(lambda *_: None))
            check_structure(task, examples())
        for hook in hooks:
            hook.remove()
        assert check_structure(task, examples()) is not first

    def test_no_model_is_kept_alive(self):
        import gc
        import weakref

        model = perceptron()
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None


class TestAccepted:
    """What is in order passes, at any scale, and whatever single examples hold."""

    @engines
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
    def test_batches_of_any_size(self, count, engine):
        assert len(on(engine, perceptron(), CROSS_ENTROPY, examples(count))) == count

    @engines
    @pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.0, 1e10])
    def test_losses_of_any_size(self, scale, engine):
        on(engine, perceptron(), lambda model, batch: scale * CROSS_ENTROPY(model, batch), examples())

    @engines
    def test_examples_that_are_broken_or_huge(self, engine):
        inputs, targets = examples()
        for row, value in enumerate([torch.nan, torch.inf, -torch.inf, 1e38, -1e20, 1e15, 0.0]):
            inputs[2 * row + 1] = value
        norms = on(engine, perceptron(), CROSS_ENTROPY, (inputs, targets))
        assert np.isfinite(norms).sum() >= 18

    @engines
    def test_a_model_that_fits_its_data(self, engine):
        """Losses are all roundings: most are 0, and the others differ in most of their bits."""
        model, batch = perceptron(), examples()
        with torch.no_grad():
            model[2].weight *= 40
            batch = batch[0], model(batch[0]).argmax(1)
        assert CROSS_ENTROPY(model, batch).detach().median() < 1e-5
        on(engine, model, CROSS_ENTROPY, batch)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_residuals_that_cancel(self, dtype):
        model, inputs = perceptron().to(dtype), examples()[0].to(dtype)
        targets = model(inputs).detach() + 1e-5 * torch.randn(24, 3, dtype=dtype)

        def losses(model, batch):
            return (model(batch[0]) - batch[1]).square().sum(1)

        on(BookkeepingEngine(), model, losses, (inputs, targets))
        on(BookkeepingEngine(), model, losses, (inputs, model(inputs).detach()))

    def test_a_gradient_that_is_zero_but_for_roundings(self):
        """The bias of keys moves all scores of a query alike, which softmax does not see."""
        attention = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        model = nn.Sequential(attention, nn.Flatten(), nn.Linear(40, 3))
        on(BookkeepingEngine(), model, CROSS_ENTROPY, (torch.randn(20, 5, 8), torch.arange(20) % 3))

    def test_a_model_that_takes_no_other_parameters(self):
        """It is compared as it is."""

        class Exact(nn.Linear):
            def forward(self, inputs):
                if not (self.bias.abs() < 0.01).all():
                    raise ValueError("a bias like that is not allowed")
                return super().forward(inputs)

        model = Exact(6, 3)
        nn.init.zeros_(model.bias)
        on(BookkeepingEngine(), model, CROSS_ENTROPY, examples())
        with pytest.raises(InvalidArgumentError, match="another loss"):
            on(BookkeepingEngine(), model, by_largest_input, examples())

    def test_sequences_that_must_come_in_order(self):
        """Halves are taken in the order of the batch, so that a data set sorted by length stays so."""

        class InOrder(Sorted):
            def forward(self, inputs, lengths):
                packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True)
                return self.head(self.lstm(packed)[1][0][-1])

        def losses(model, batch):
            return F.cross_entropy(model(*batch[:2]), batch[2], reduction="none")

        batch = torch.randn(9, 7, 4), torch.tensor([7, 7, 6, 5, 5, 4, 2, 2, 1]), torch.arange(9) % 2
        on(BookkeepingEngine(), InOrder(), losses, batch)

    def test_a_model_that_writes_to_its_input(self):
        def losses(model, batch):
            batch[0].mul_(1.0)
            return CROSS_ENTROPY(model, batch)

        on(BookkeepingEngine(), perceptron(), losses, examples())

    @engines
    def test_training_draws_what_it_would_have_drawn(self, engine, monkeypatch):
        def steps() -> list[np.ndarray]:
            torch.manual_seed(3)
            model = perceptron(0, nn.Dropout(0.5))
            return [on(engine, model, CROSS_ENTROPY, examples(seed=seed)) for seed in range(3)]

        checked = steps()
        leave_values_unchecked(monkeypatch)
        np.testing.assert_array_equal(checked, steps())
