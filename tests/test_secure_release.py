"""A release is a rounding of the ideal Gaussian mechanism: what its low-order bits tell, and what rounding may add."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd import SecureSource, SeededSource
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine
from inosgd.grid import MOST_STEPS, Grid
from inosgd.mechanism import BoundedSum, release
from inosgd.noise import gaussian
from inosgd.plan import Terms
from inosgd.rounding import LARGEST_SHARE, Room, largest_threshold_sum
from tests.gradients.conftest import leave_values_unchecked

# -- The attack ------------------------------------------------------------------------------------------------------
#
# An adversary who knows all other examples must tell the sum 0 from the sum v = (c, ..., c) with |v| = 1. In float64,
# R = c + N with |R| < c / 4 needs an N between 3/4 c and 5/4 c in size, and is a multiple of its last place. R = 0 + N
# of the same size is a small number with a last place of its own, four times finer or more. One coordinate that is not
# a multiple of the coarser place proves that the sum was 0. The adversary looks at every power of two in turn.

COORDINATES, TRIALS, NOISE_SCALE = 2000, 300, 4.0
SHIFT = 1 / math.sqrt(COORDINATES)


def plain_release(total: BoundedSum, noise_scale: float, source) -> torch.Tensor:
    """What adding floating-point noise to a floating-point sum looks like."""
    return total.value + gaussian(source, total.value.numel(), noise_scale)


def share_of_finer_numbers(mechanism, shift: float, seed: int) -> np.ndarray:
    """For each power of two, how often a release has a small number that is no multiple of it."""
    total = BoundedSum(torch.full((COORDINATES,), shift, dtype=torch.float64), np.ones(1))
    source, found = SeededSource(seed), np.zeros(len(PLACES))
    for _ in range(TRIALS):
        released = mechanism(total, NOISE_SCALE, source).numpy()
        small = released[np.abs(released) < SHIFT / 4]
        in_steps = small[:, None] / PLACES
        found += (in_steps != np.floor(in_steps)).any(0)
    return found / TRIALS


PLACES = 2.0 ** -np.arange(10, 70)


def best_advantage(mechanism) -> float:
    differences = share_of_finer_numbers(mechanism, 0.0, 1) - share_of_finer_numbers(mechanism, SHIFT, 2)
    return float(np.abs(differences).max())


def test_low_order_bits_give_a_plain_release_away():
    """The ideal mechanism allows an advantage of 2 Phi(1/8) - 1 = 0.0995 to whatever anybody does."""
    assert best_advantage(plain_release) > 0.6


def test_low_order_bits_of_a_release_on_the_grid_tell_nothing():
    """Power: in 300 releases each a true advantage of 0.45 exceeds the limit with probability 0.9999.

    Without any, the largest of the 60 differences exceeds it with probability 1e-9 at most: its standard deviation is
    below 0.041, and the limit is above 0.0995 by four of them for the advantage that the mechanism does allow.
    """
    assert best_advantage(release) < 0.3


def test_every_release_is_possible_under_every_sum():
    """Each number released is a whole number of steps, whatever the sum was, and the sum's type."""
    for value in (torch.zeros(500), torch.rand(500), torch.rand(500, dtype=torch.float64) * 1e-9):
        total = BoundedSum(value, np.array([0.5, 3.0]))
        spacing = Grid.for_release(1.3, total.sensitivity, 500).spacing
        steps = release(total, 1.3, SecureSource()).numpy() / spacing
        assert (steps == np.round(steps)).all()
        assert len(np.unique(steps % 16)) == 16  # no coarser grid: all residues occur


# -- The grid --------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31),
    coordinates=st.integers(1, 200),
    exponent=st.integers(-30, 30),
    noise_multiplier=st.floats(0.01, 1e5),
    size=st.floats(0, 1e4),
)
def test_the_grid_takes_no_two_sums_further_apart_than_their_bound(seed, coordinates, exponent, noise_multiplier, size):
    rng = np.random.default_rng(seed)
    bound = 2.0**exponent
    one = rng.normal(size=coordinates) * bound * size
    step = rng.normal(size=coordinates)
    other = one + step / np.linalg.norm(step) * bound * (1 - 1e-12)
    grid = Grid.for_release(noise_multiplier * bound, np.array([bound, 3 * bound]), coordinates)
    placed = [grid.values(grid.steps(torch.from_numpy(each))).numpy() for each in (one, other)]
    if np.linalg.norm(one - other) <= bound:
        assert np.linalg.norm(placed[0] - placed[1]) <= bound


def test_without_its_shrinkage_the_grid_would_break_the_bound():
    """Every coordinate of one sum is just above half a step and of the other just below minus half a step."""
    coordinates, bound = 400, 1.0
    grid = Grid.for_release(1e5, np.array([bound]), coordinates)
    careless = Grid(grid.spacing, 0.0)
    direction = bound / math.sqrt(coordinates)
    whole = math.floor(direction / grid.spacing) * grid.spacing
    one = torch.full((coordinates,), 0.5001 * grid.spacing, dtype=torch.float64)
    other = torch.full((coordinates,), 0.4999 * grid.spacing - whole, dtype=torch.float64)
    bound = float((one - other).norm())
    moved = {
        each: float((each.values(each.steps(one)) - each.values(each.steps(other))).norm()) for each in (grid, careless)
    }
    assert moved[careless] > bound * (1 + 1e-9)
    assert moved[grid] <= bound


@given(seed=st.integers(0, 2**31), shift=st.integers(-(2**40), 2**40))
def test_rounding_commutes_with_steps_so_noise_and_sum_add_exactly(seed, shift):
    """g round((K + N) / g) = K + g round(N / g) for K on the grid, and all of it without a rounding."""
    grid = Grid(2.0**-20, 0.0)
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=50)) * 2.0**20
    moved, still = torch.round(noise + shift), torch.round(noise)
    exact = [int(each) + shift for each in still.tolist()]
    assert (still + shift).tolist() == exact
    assert grid.values(still + shift).tolist() == [step * 2.0**-20 for step in exact]
    agree = (noise - torch.floor(noise) - 0.5).abs() > 1e-3  # `noise + shift` itself rounds; half-integers may tip
    assert torch.equal(moved[agree], (still + shift)[agree])


def test_a_sum_beyond_the_grid_is_cut_off_there():
    grid = Grid.for_release(1.0, np.array([1.0]), 2)
    steps = grid.steps(torch.tensor([1e300, -1e300], dtype=torch.float64))
    assert steps.tolist() == [MOST_STEPS, -MOST_STEPS]


def test_the_grid_is_a_power_of_two_far_below_the_noise():
    for noise_scale in (1e-6, 0.7, 1.0, 3.0, 1e6):
        grid = Grid.for_release(noise_scale, np.array([noise_scale]), 10**6)
        assert math.frexp(grid.spacing)[0] == 0.5
        assert 2.0**-29 < grid.spacing / noise_scale <= 2.0**-28
        assert grid.shrinkage < 1e-5


def test_a_tiny_threshold_gets_a_finer_grid_and_an_absurd_one_is_refused():
    grid = Grid.for_release(1.0, np.array([1e-5]), 10**6)
    assert grid.spacing < 2.0**-29
    assert grid.shrinkage <= 2.0**-10 * (1 + 1e-6)
    with pytest.raises(InvalidArgumentError, match="no grid fits both"):
        Grid.for_release(1.0, np.array([1e-12]), 10**6)
    with pytest.raises(InvalidArgumentError, match="sensitivity"):
        Grid.for_release(1.0, np.array([1.0, math.nan]), 10)


# -- Sums in float32 -------------------------------------------------------------------------------------------------


def terms(thresholds, sizes, rates) -> tuple[Terms, np.ndarray]:
    sizes, rates = np.array(sizes), np.array(rates)
    return Terms(rates, np.array(thresholds), 1.0, float(rates @ sizes)), sizes


def aligned_losses(model: nn.Module, examples) -> torch.Tensor:
    return (model(examples[0]) * examples[1]).sum(1)


def clipped_sum(model: nn.Module, inputs, targets, thresholds, room: Room, engine=None) -> torch.Tensor:
    with (engine or BookkeepingEngine()).on(model, aligned_losses, (inputs, targets)) as gradients:
        norms = gradients.measure().grad_norms
        return room.leave(gradients.weighted_sum(np.minimum(1.0, thresholds * (1 - 1e-5) / norms), room.error))


class Summed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs).sum(1)


class LastState(nn.Module):
    def __init__(self, recurrent: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, head

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(inputs)[0][:, -1])


ROUNDED = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8)), (4,)),
    "wide": (lambda: nn.Sequential(nn.Linear(64, 200), nn.Tanh(), nn.Linear(200, 8)), (64,)),
    "kernel": (lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8)), (16,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 8)),
        (1, 16, 16),
    ),
    "small convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 8)),
        (2, 8, 8),
    ),
    "tiny convolution": (
        lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8)),
        (8, 4, 4),
    ),
    "tanh": (lambda: nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8)), (16,)),
    "places": (lambda: Summed(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))), (10, 8)),
    "wide places": (lambda: Summed(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))), (10, 64)),
    "embedding": (lambda: Summed(nn.Embedding(20, 8)), (50,)),
    "recurrent": (lambda: LastState(nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 8)), (18, 8)),
    "normalisation": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), (8,)),
}


@cache
def positive(name: str) -> nn.Module:
    """A model of positive parameters; one for all batches, which the engine has to find its way with once."""
    torch.manual_seed(0)
    model = ROUNDED[name][0]()
    nn.utils.vector_to_parameters(0.3 * nn.utils.parameters_to_vector(model.parameters()).abs(), model.parameters())
    return model


def change_by_one_among_equals(name: str, count: int, threads: int, room: Room, engine=None) -> float:
    """How far an example with threshold 1 moves the sum of equal gradients with thresholds 30, at the worst."""
    shape, model, source = ROUNDED[name][1], positive(name), torch.Generator().manual_seed(count)
    inputs = 0.3 * torch.rand(1, *shape, generator=source) + 0.03
    inputs = inputs if name != "embedding" else (100 * inputs).long() % 20
    inputs = inputs.repeat(count, *[1] * len(shape))
    targets = (torch.rand(1, 8, generator=source) + 0.5).repeat(count, 1) * 5000
    thresholds = np.full(count, 30.0)
    thresholds[0] = 1.0
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole, rest, alone = (
            clipped_sum(model, inputs[rows], targets[rows], thresholds[rows], room, engine)
            for rows in (slice(None), slice(1, None), slice(0, 1))
        )
    finally:
        torch.set_num_threads(before)
    return float((whole - rest - alone).norm() + alone.norm())


EQUALS = [(count, threads) for count in (13, 39, 127, 256, 257) for threads in (1, 2)]
FEW = [(13, 1), (127, 2), (257, 1)]


@pytest.mark.parametrize("cases", [FEW, pytest.param(EQUALS, marks=pytest.mark.long)], ids=["few", "all"])
@pytest.mark.parametrize("name", ROUNDED)
def test_sums_of_equal_gradients_stay_within_the_smallest_threshold(name, cases, monkeypatch):
    leave_values_unchecked(monkeypatch)  # they change no sum
    for count, threads in cases:
        room = Room.of(*terms([1.0, 30.0], [1, count - 1], [1.0, 1.0]), torch.float32)
        assert change_by_one_among_equals(name, count, threads, room) <= 1


@pytest.mark.parametrize("name", ["linear", "kernel", "convolution", "small convolution", "recurrent"])
def test_the_same_where_one_of_two_batches_is_split(name):
    room = Room.of(*terms([1.0, 30.0], [1, 128], [1.0, 1.0]), torch.float32)
    assert change_by_one_among_equals(name, 129, 1, room, BookkeepingEngine(128)) <= 1


def test_float32_without_room_would_not(monkeypatch):
    """The control: the same sums in float32 whatever their error, and nothing taken from them."""
    leave_values_unchecked(monkeypatch)
    assert any(change_by_one_among_equals("tanh", *case, Room(0.0, 1e9)) > 1 for case in EQUALS)


def test_the_room_is_a_share_of_the_smallest_threshold():
    step, sizes = terms([1.0, 2.0], [100, 100], [0.1, 0.1])
    ratio = largest_threshold_sum(step, sizes)
    room = Room.of(step, sizes, torch.float32)
    assert room.share == pytest.approx(2 * 40 * 2.0**-24 * 2 * ratio)
    assert room.error == pytest.approx(room.share / 2)
    assert Room.of(step, sizes, torch.float32, parts=4).error == pytest.approx(room.error / 4)
    assert Room.of(step, sizes, torch.float64) == Room((2.0**-35 + 2.0**-48) * ratio, 0.0)
    endless = Terms(np.ones(2), np.full(2, np.inf), 0.0, 200.0)
    assert Room.of(endless, sizes, torch.float32).share == 0


def test_where_float32_would_take_too_much_sums_are_in_float64():
    step, sizes = terms([1.0, 2000.0], [50_000, 50_000], [0.01, 0.01])
    assert Room.of(step, sizes, torch.float32) == Room.of(step, sizes, torch.float64)
    assert Room.of(step, sizes, torch.float32).share < 1e-4


def test_thresholds_too_far_apart_for_float64_are_refused_with_what_to_do():
    step, sizes = terms([1.0, 1e6], [1, 1500], [1.0, 1.0])
    with pytest.raises(InvalidArgumentError, match=r"float64 could take .*% of the smallest, .* smaller batches"):
        Room.of(step, sizes, torch.float64)
    assert Room.of(*terms([1.0, 1e6], [1, 500], [1.0, 1.0]), torch.float64).share <= LARGEST_SHARE


@pytest.mark.parametrize("error", [0.0, 1e-4, 1.0, 1e6])
def test_a_sum_is_as_exact_as_it_is_asked_to_be(error):
    torch.manual_seed(0)
    model = Summed(nn.Linear(64, 128))  # two places: the gradients are not held
    inputs, targets = torch.randn(50, 2, 64), 100 * torch.randn(50, 128)
    coefficients = np.linspace(-1, 1, 50)
    with BookkeepingEngine().on(model, aligned_losses, (inputs, targets)) as gradients:
        found = gradients.weighted_sum(coefficients, error)
    scaled = torch.from_numpy(coefficients)[:, None] * targets.double()
    exact = torch.cat([(scaled.mT @ inputs.double().sum(1)).flatten(), 2 * scaled.sum(0)])
    distance = float((found - exact).norm())
    assert distance <= max(error, 1e-9)
    assert (distance > 1e-6) == (error > 1), "and no more exact than that takes, in float32"


def test_no_batch_passes_the_largest_threshold_sum():
    """A hundred thousand batches; one at five standard deviations would be likely, the bound is above nine."""
    step, sizes = terms([1.0, 3.0], [200, 50], [0.2, 0.3])
    rng = np.random.default_rng(0)
    drawn = rng.binomial(200, 0.2, 100_000) * 1.0 + rng.binomial(50, 0.3, 100_000) * 3.0
    spread = math.sqrt(200 * 0.2 * 0.8 + 9 * 50 * 0.3 * 0.7)
    bound = largest_threshold_sum(step, sizes)
    assert drawn.max() < bound
    assert drawn.max() > drawn.mean() + 3.5 * spread  # the control: a bound of three and a half would be passed
    assert bound > 85 + 9 * spread
    assert largest_threshold_sum(*terms([1.0], [3], [0.5])) == 3  # never more than everybody at once
