"""Examples have the same bits in every batch, and models for which that is not so are found out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, GradientEngine, ReferenceEngine, invariance, supervised
from inosgd.gradients.bookkeeping import TOGETHER, added_up
from inosgd.gradients.invariance import Sizes, laid_out, made_up, padded_size, passing, rows_of_block
from inosgd.gradients.recording import record_pass
from inosgd.gradients.rules import sums
from inosgd.gradients.task import Task
from inosgd.models import character_lstm, mnist_cnn, paper_mlp, small_transformer
from inosgd.rounding import ROUNDOFFS

LOSSES = supervised(functional.cross_entropy)
EPSILON = float(torch.finfo(torch.float32).eps)


class ByPlace(nn.Module):
    """A layer that rounds every other row of a batch differently, or all rows of batches of more than 100."""

    def __init__(self, by_size: bool) -> None:
        super().__init__()
        self.inner, self.by_size = nn.Linear(5, 3), by_size

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(inputs)
        odd = torch.full((len(inputs),), len(inputs) > 100) if self.by_size else torch.arange(len(inputs)) % 2 == 1
        return output * (1 + 2 * EPSILON * odd.unsqueeze(1))


class InASmallPart(nn.Module):
    """A layer that rounds every other row differently in one small feature, which shows in gradients alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        odd = (torch.arange(len(inputs)) % 2 == 1).unsqueeze(1)
        small = inputs[:, :1] * 2.0**-9 * (1 + 2 * EPSILON * odd)
        output = self.inner(torch.cat([small, inputs[:, 1:]], 1))
        return output - output.detach()


def batch(count: int, *shape: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(count)
    return torch.randn(count, *shape, generator=source), torch.arange(count) % classes


def numbers(engine: GradientEngine, model: nn.Module, examples: tuple[torch.Tensor, ...], rows) -> np.ndarray:
    with engine.on(model, LOSSES, tuple(leaf[rows] for leaf in examples)) as gradients:
        measured = gradients.measure()
    return np.stack([measured.losses, measured.grad_norms])


def changed(engine: GradientEngine, model: nn.Module, examples: tuple[torch.Tensor, ...]) -> int:
    """How many examples have other bits without one of the others, or in a shorter batch."""
    count = len(examples[0])
    whole = numbers(engine, model, examples, slice(None))
    found = 0
    for rows in [*(np.delete(np.arange(count), left) for left in (0, 1, count // 2)), np.arange(5), np.arange(1)]:
        found += int((numbers(engine, model, examples, rows) != whole[:, rows]).any(0).sum())
    return found


def measured(task: Task, examples):
    return record_pass(task, examples)


def rows_at_once(model: nn.Module, examples, most: int | None = None) -> int:
    return passing(Task.of(model, LOSSES), examples, measured, most)[1]


def block_of(model: nn.Module, examples) -> int:
    """The rows of a block, which differ between processors."""
    unit = rows_of_block(Task.of(model, LOSSES), examples, measured)
    assert unit in invariance.UNITS
    return unit


@given(st.integers(1, 10_000), st.sampled_from(invariance.UNITS))
def test_sizes_are_few_and_not_much_larger_than_batches(count, unit):
    size = padded_size(count, unit)
    assert count <= size < count + max(unit, count / 32 + 1)
    assert size % unit == 0
    assert padded_size(size, unit) == size
    assert padded_size(count, 1) == 1


@pytest.mark.parametrize(
    ("model", "examples"),
    [
        (paper_mlp(20, 3, seed=0), batch(33, 20)),
        (nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)), batch(32, 20, classes=2)),
        (nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3)), batch(31, 20)),
        (mnist_cnn(seed=0), batch(11, 1, 28, 28)),
        (character_lstm(seed=0), (torch.arange(13 * 6).view(13, 6) * 7 % 250, torch.arange(13) % 18)),
        (small_transformer(seed=0), (torch.arange(9 * 12).view(9, 12) * 7 % 250, torch.arange(9) % 10)),
    ],
    ids=["mlp", "kernel", "wide", "cnn", "lstm", "transformer"],
)
def test_an_example_has_the_same_bits_in_every_batch(model, examples):
    assert changed(BookkeepingEngine(), model, examples) == 0


def test_by_the_reference_engine_too():
    model = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))
    assert changed(ReferenceEngine(), model, batch(19, 20)) == 0


@pytest.mark.parametrize("engine", [BookkeepingEngine(), ReferenceEngine()])
@pytest.mark.parametrize("features", [5, 12, 16, 20])
def test_an_example_has_the_same_bits_wherever_its_batch_lies_in_memory(engine, features):
    model, (inputs, targets) = nn.Linear(features, 8), batch(64, features + 1)
    views = inputs[:, 1:], inputs[:, 1:].T.contiguous().T, inputs.flatten()[1:][: 64 * features].view(64, -1)
    for view in views:
        new = numbers(engine, model, (view.contiguous().clone(), targets), slice(None))
        assert np.array_equal(new, numbers(engine, model, (view, targets), slice(None)))
        assert np.array_equal(new[:, 1:], numbers(engine, model, (view, targets), slice(1, None)))


def test_batches_that_lie_as_new_tensors_do_are_not_copied():
    fresh, images = torch.randn(6, 3, 4, 4), torch.randn(6, 1, 4, 4).contiguous(memory_format=torch.channels_last)
    assert laid_out((fresh, fresh))[0] is fresh
    found = laid_out({"images": images, "rows": fresh[1:], "once": fresh[:1].expand(6, -1, -1, -1), "none": fresh[:0]})
    assert [each.stride() for each in found.values()] == [(16, 16, 4, 1), *[(48, 16, 4, 1)] * 3]
    assert all(each.data_ptr() % 64 == 0 for each in found.values())


class Lengths(nn.Module):
    """A recurrent layer on sequences of tokens, filled up with 0, whose states are added up as far as they go."""

    def __init__(self, way: str, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.way, self.table, self.inner = way, nn.Embedding(20, 8), kind(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        lengths = (tokens > 0).sum(1)
        if self.way == "trimmed":
            tokens = tokens[:, : int(lengths.max())]
            here = (tokens > 0).unsqueeze(2)
            return self.head((torch.tanh(self.table(tokens)) * here).sum(1))
        packed = pack_padded_sequence(self.table(tokens), lengths, batch_first=True, enforce_sorted=False)
        output, final = self.inner(packed)
        if self.way == "last state":
            return self.head((final[0] if isinstance(final, tuple) else final)[-1])
        places = tokens.shape[1] if self.way == "padded" else None
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=places)
        return (self.head(states) * (states != 0).any(2, keepdim=True)).sum(1)


def sentences(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(1, 20, (len(lengths), 24), generator=torch.Generator().manual_seed(len(lengths)))
    return tokens * (torch.arange(24) < torch.tensor(lengths)[:, None]), torch.arange(len(lengths)) % 3


@pytest.mark.parametrize("before", [3, 24])
@pytest.mark.parametrize(
    ("model", "engine"),
    [
        *[(Lengths("last state", kind), BookkeepingEngine()) for kind in (nn.RNN, nn.GRU, nn.LSTM)],
        (Lengths("padded"), BookkeepingEngine()),
        (Lengths("trimmed"), ReferenceEngine()),
    ],
)
def test_the_longest_sequence_of_a_batch_has_no_part_in_the_bits_of_others(model, engine, before):
    numbers(engine, model, sentences(*[before] * 16), slice(None))
    assert changed(engine, model, sentences(24, *[3] * 8)) == 0


@pytest.mark.parametrize("way", ["trimmed", "padded to the longest"])
@pytest.mark.parametrize("before", [3, 24])
def test_a_model_that_is_as_long_as_the_longest_example_wants_is_refused(way, before):
    model = Lengths(way)
    with pytest.raises(InvalidArgumentError, match=r"another shape per example .*; use a constant length"):
        for lengths in ([before] * 16, [3] * 8, [24, *[3] * 8]):
            numbers(BookkeepingEngine(), model, sentences(*lengths), slice(None))


@pytest.mark.parametrize("engine", [BookkeepingEngine(), ReferenceEngine()])
def test_rows_that_depend_on_their_place_pass_one_by_one(engine):
    model, examples = ByPlace(by_size=False), batch(20, 5)
    assert changed(engine, model, examples) == 0
    assert rows_at_once(model, examples) == 1


def test_what_roundings_of_norms_hide_shows_in_sums(monkeypatch):
    monkeypatch.setattr(sums, "kernel", lambda: None)  # norms are computed in float32
    model, examples = InASmallPart(), batch(16, 5)
    with monkeypatch.context() as patched:
        patched.setattr(invariance, "_same_sums", lambda *_: True)
        assert rows_at_once(model, examples) == 16
    assert rows_at_once(InASmallPart(), examples) == 1


def test_sizes_at_which_rows_are_other_ones_pass_in_the_largest_pieces_at_which_they_are_not():
    model, examples = ByPlace(by_size=True), batch(101, 5)
    assert changed(BookkeepingEngine(), model, examples) == 0
    few = tuple(leaf[:16] for leaf in examples)
    unit = block_of(model, few)
    assert [rows_at_once(model, each) for each in (few, examples)] == [padded_size(16, unit), 64]


def test_pieces_are_kept_and_add_up_to_the_sum_of_the_whole(monkeypatch):
    model, examples, coefficients = ByPlace(by_size=True), batch(101, 5), np.linspace(0, 1, 101)
    assert rows_at_once(model, examples) < 101
    with BookkeepingEngine().on(model, LOSSES, examples) as gradients:
        assert len(gradients.pages) == 2
        monkeypatch.setattr(model, "forward", None)  # nothing passes a second time
        total = gradients.weighted_sum(coefficients, 1e-3)
        alone = [float(gradients.weighted_sum(np.eye(101)[place]).norm()) for place in (0, 63, 64, 100)]
        np.testing.assert_allclose(alone, gradients.measure().grad_norms[[0, 63, 64, 100]], rtol=1e-4)
        with pytest.raises(InvalidArgumentError, match="coefficients"):
            gradients.weighted_sum(coefficients[1:])
    monkeypatch.undo()
    with ReferenceEngine().on(model, LOSSES, examples) as gradients:
        assert torch.allclose(total, gradients.weighted_sum(coefficients), rtol=1e-4, atol=1e-5)


def test_a_piece_that_has_no_coefficients_adds_nothing_even_if_its_gradients_are_no_numbers():
    model, (inputs, targets) = ByPlace(by_size=True), batch(130, 5)
    coefficients = np.full(130, 0.5)
    broken = [64, 65, *range(128, 130)]  # some of the second piece, and all of the third
    coefficients[broken] = 0
    rows = np.flatnonzero(coefficients)
    finite = inputs[rows], targets[rows]
    for number in (torch.nan, torch.inf):
        inputs[broken] = number
        for error in (0.0, 1e-2):
            with BookkeepingEngine().on(model, LOSSES, (inputs, targets)) as gradients:
                assert len(gradients.pages) == 3
                assert not np.isfinite(gradients.measure().grad_norms[broken]).any()
                total = gradients.weighted_sum(coefficients, error)
            with ReferenceEngine().on(model, LOSSES, finite) as gradients:
                expected = gradients.weighted_sum(np.full(126, 0.5))
            torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


def test_pieces_together_err_by_what_the_whole_may():
    """Float32 sums of all pieces err by so much; a third of it is not enough for any of them, and all are exact."""
    model, examples = ByPlace(by_size=True), batch(1000, 5)
    with BookkeepingEngine().on(model, LOSSES, examples) as gradients:
        coefficients = 1 / gradients.measure().grad_norms
        assert len(gradients.pages) > 10
        exact = gradients.weighted_sum(coefficients)
        allowed = ROUNDOFFS * 2.0**-24 * len(coefficients) / 0.98

        def error(allowed: float) -> float:
            return float((gradients.weighted_sum(coefficients, allowed) - exact).norm())

        assert 0 < error(allowed) <= allowed
        assert error(allowed / 3) == 0
        whole = [
            page.weighted_sum(part, allowed / 3)
            for page, part in zip(
                gradients.pages,
                np.split(coefficients, np.cumsum([page.count for page in gradients.pages])[:-1]),
                strict=True,
            )
        ]
        assert float((sum(whole) - exact).norm()) > 0, "the control: each piece may err by all of it, and is in float32"


@given(st.integers(1, 70), st.integers(2, 9))
def test_pieces_are_added_up_once_each(count, together):
    parts = [torch.tensor([2.0**-place], dtype=torch.float64) for place in range(count % 50 + 1)]
    expected = sum(map(float, parts))
    assert float(added_up(parts, together)) == expected


def test_sums_of_many_pieces_are_rounded_few_times():
    """Errors of equal numbers have one sign. The control adds one after the other: more than float64 has room for."""
    number, count = 1 / 3 + 0.451**3, 1 << 14
    exact = Fraction(number) * count

    def roundings(together: int) -> float:
        total = added_up((torch.tensor([number], dtype=torch.float64) for _ in range(count)), together)
        return float(abs(Fraction(float(total)) - exact) / exact) * 2.0**53

    assert roundings(TOGETHER) <= 2**10
    assert roundings(count) > 2**11


@pytest.mark.parametrize("by_size", [True, False])
def test_without_a_probe_neither_would_be_seen(by_size, monkeypatch):
    monkeypatch.setattr(invariance, "_sizes", lambda *_: Sizes(8, agrees=dict.fromkeys(range(8, 200, 8), True)))
    assert changed(BookkeepingEngine(), ByPlace(by_size), batch(101, 5)) > 0


def test_dropout_is_held_fixed():
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = torch.get_rng_state()
    assert rows_at_once(model, batch(10, 5)) == 16
    assert torch.equal(before, torch.get_rng_state()), "and nothing is drawn"


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 4), (5, 8), (10, 5), (13, 3), (47, 3), (8, 5), (64, 10)])
def test_small_layers_have_their_rows_together(inputs, outputs):
    """Products of these widths were seen to round a row by its place."""
    model = nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, outputs))
    examples = batch(30, inputs)
    assert rows_at_once(model, examples) == 32
    assert changed(BookkeepingEngine(), model, examples) == 0


def test_linear_maps_by_columns_are_the_same_up_to_roundings():
    model, examples = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 4)).double(), (batch(9, 7, 5)[0].double(),)
    task = Task.of(model, lambda model, examples: model(examples[0]).square().sum((1, 2)))
    pages = [record_pass(replace(task, by_columns=by_columns), examples) for by_columns in (False, True)]
    coefficients = np.linspace(0.1, 1, 9)
    np.testing.assert_allclose(pages[1].norms, pages[0].norms, rtol=1e-12)
    torch.testing.assert_close(*[page.weighted_sum(coefficients) for page in pages], rtol=1e-12, atol=1e-12)


def test_a_limit_is_kept_in_whole_blocks():
    model, examples = nn.Linear(5, 3), batch(50, 5)
    unit = block_of(model, examples)
    whole = padded_size(50, unit)
    assert rows_at_once(model, examples) == whole
    for most in (60, 50, 30, 3):
        expected = whole if whole <= most else max(unit, most // unit * unit)
        assert rows_at_once(model, examples, most) == expected


class Picky(nn.Linear):
    """What it cannot take is an error, or not a number."""

    def __init__(self, lowest: float, error: bool) -> None:
        super().__init__(5, 3)
        self.lowest, self.error = lowest, error

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        low = inputs < self.lowest
        if self.error and low.any():
            raise ValueError("never that low")
        return super().forward(inputs.masked_fill(low, torch.nan))


@pytest.mark.parametrize("error", [True, False])
@pytest.mark.parametrize(("lowest", "at_once"), [(-9.0, 16), (0.0, 16), (2.0, 1)])
def test_models_that_fail_on_all_that_is_made_up_have_their_examples_one_by_one(lowest, error, at_once):
    """Numbers between 0 and 1 are tried after those of either sign."""
    inputs, targets = batch(12, 5)
    assert rows_at_once(Picky(lowest, error), (inputs.abs() + lowest, targets)) == at_once


def test_a_model_that_is_not_finite_says_nothing_about_others_of_its_kind():
    broken, sound = nn.Linear(5, 3), nn.Linear(5, 3)
    nn.init.constant_(broken.weight, torch.nan)
    assert [rows_at_once(model, batch(12, 5)) for model in (broken, sound)] == [1, 16]


class Branched(nn.Module):
    """A branch whose gradients depend on how many rows there are, a little, behind something that begins closed."""

    def __init__(self, closed: str) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.full((16,) if closed == "vector" else (), 1e-9 if closed == "small" else 0.0))
        if closed == "weight":
            nn.init.zeros_(self.second.weight)
            nn.init.ones_(self.scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        noisy = self.first(inputs).tanh()
        if len(inputs) > 20:
            rounded = noisy * 2**-18
            noisy = noisy + (rounded - rounded.detach())
        return self.last(inputs + self.scale * self.second(noisy))


def norms_of(model: nn.Module, count: int) -> list[float]:
    """The norms of the first 12 examples of a batch of so many."""
    examples = tuple(each[:count] for each in batch(40, 16))
    with BookkeepingEngine().on(model, LOSSES, examples) as gradients:
        return gradients.measure().grad_norms[:12].tolist()


def differs_once_open(closed: str) -> bool:
    """Whether an example has other bits in a larger batch, when the branch has opened after a first batch."""
    model = Branched(closed)
    norms_of(model, 40)
    nn.init.normal_(model.scale)
    nn.init.normal_(model.second.weight)
    return norms_of(model, 12) != norms_of(model, 40)


@pytest.mark.parametrize("init", [nn.init.zeros_, lambda weight: nn.init.normal_(weight, std=1e-3)])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 4), (3, 7), (4, 4), (5, 4), (13, 5)])
def test_what_is_found_of_small_weights_holds_of_large_ones(inputs, outputs, init, values_unchecked):
    """Products of these shapes round a row by its place; beside logits of next to nothing that is not seen."""
    model = nn.Linear(inputs, outputs)
    init(model.weight)
    examples = batch(64, inputs, classes=outputs)

    def losses(count: int) -> list[float]:
        with BookkeepingEngine().on(model, LOSSES, tuple(each[:count] for each in examples)) as gradients:
            return gradients.measure().losses.tolist()

    for count in (8, 20, 64):
        losses(count)
    for scale in (0.3, 1.0, 3.0):
        nn.init.normal_(model.weight, std=scale)
        whole = losses(64)
        assert [losses(count) for count in (1, 7, 20, 33)] == [whole[:count] for count in (1, 7, 20, 33)]


def test_frozen_parameters_that_are_written_are_looked_at_again(monkeypatch, values_unchecked):
    looked, agrees = [], invariance._agrees
    monkeypatch.setattr(invariance, "_agrees", lambda *args: looked.append(1) or agrees(*args))
    model = Branched("scalar")
    model.second.requires_grad_(False)
    norms_of(model, 12)
    before = len(looked)
    norms_of(model, 12)
    assert len(looked) == before
    with torch.no_grad():
        model.second.weight.zero_()
    norms_of(model, 12)
    assert len(looked) > before


class Guarded(Branched):
    """It takes no scale above zero, so that what it closes cannot be looked at."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if (self.scale != 0).any():
            raise ValueError("only zero")
        return super().forward(inputs)


def test_what_cannot_be_opened_passes_one_by_one():
    assert rows_at_once(Guarded("scalar"), batch(40, 16)) == 1
    assert rows_at_once(Branched("scalar"), batch(12, 16)) == 16


def test_finite_losses_with_norms_that_are_not_show_nothing():
    class Endless(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs)
            return outputs + (outputs - outputs.detach()) * torch.inf

    assert rows_at_once(Endless(5, 3), batch(12, 5)) == 1


class TestClosedBranches:
    """What is found of a model before its first step holds after it."""

    @pytest.mark.parametrize("closed", ["scalar", "vector", "small", "weight"])
    def test_they_are_opened(self, closed, values_unchecked):
        assert not differs_once_open(closed)

    def test_the_control(self, monkeypatch, values_unchecked):
        monkeypatch.setattr(invariance, "is_closed", lambda _: False)
        assert differs_once_open("scalar")

    def test_parameters_have_the_bits_that_they_had(self):
        model = Branched("scalar")
        before = [each.detach().clone() for each in model.parameters()]
        rows_at_once(model, batch(40, 16))
        assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("values", "closed"),
    [
        (torch.zeros(4, 5), True),
        (torch.eye(5), True),
        (torch.ones(4, 5), False),
        (torch.ones(4, 2), True),
        (torch.ones(4, 5).index_fill(0, torch.tensor([2]), 0.0), True),
        (torch.ones(4, 3, 2, 2), False),
        (torch.tensor(0.0), True),
        (torch.tensor(1.0), True),
        (torch.full((9,), 1e-6), True),
        (torch.ones(9), False),
        (torch.full((4, 5), 0.05), True),
        (torch.zeros(0), False),
        (torch.zeros(0, 5), False),
        (torch.zeros(5, 0), False),
        (torch.full((4, 5), torch.nan), True),
        (torch.zeros(4, 5, dtype=torch.bool), False),
        (torch.zeros(4, 5).to(torch.float8_e4m3fn), False),
    ],
)
def test_what_is_closed(values, closed):
    assert invariance.is_closed(values) == closed


def test_made_up_examples_are_of_the_same_kind():
    inputs, targets = batch(3, 5)
    found = made_up((inputs, targets), 7)
    assert found[0].shape == (7, 5)
    assert found[0].dtype == inputs.dtype
    assert set(found[1].tolist()) <= set(targets.tolist())
