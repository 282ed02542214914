"""The bound that privacy rests on: one example moves the weighted clipped sum by at most its threshold.

Each control breaks the mechanism in a way that has been tried in practice, and the same check must notice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from inosgd.clipping import AutoClipping, FlatClipping
from inosgd.importance import BetaTail, Tail, importance_weights
from inosgd.mechanism import ordered_sum
from inosgd.order import ORDERS, Candidate, Candidates, by_score
from inosgd.plan import Terms
from inosgd.randomness import SeededSource
from tests.properties import tries
from tests.strategies import Batch, batches, shapes, tails

SLACK = 1 + 1e-6
Weights = Callable[[Batch], np.ndarray]

orders = st.sampled_from([*ORDERS.values(), by_score(lambda one: one.loss / (1 + one.grad_norm))])


def total(batch: Batch, tail, order, clipping) -> float:
    vectors = torch.from_numpy(batch.vectors).reshape(-1, 1)
    source = SeededSource(0)
    return float(
        ordered_sum(vectors, batch.candidates, batch.thresholds, source, tail=tail, order=order, clipping=clipping)[0]
    )


@given(data=st.data(), batch=batches(), order=orders, clipping=st.sampled_from([FlatClipping(), AutoClipping()]))
@tries(100)
def test_one_example_moves_the_sum_by_at_most_its_threshold(data, batch, order, clipping):
    tail = data.draw(st.none() | tails(batch.thresholds.sum()))
    position = data.draw(st.integers(0, len(batch.thresholds) - 1))
    moved = abs(total(batch, tail, order, clipping) - total(batch.without(position), tail, order, clipping))
    assert moved <= batch.thresholds[position] * SLACK


@given(data=st.data(), batch=batches(max_size=400))
@tries(15)
def test_weights_telescope_within_the_bound_for_large_batches(data, batch):
    tail = data.draw(tails(batch.thresholds.sum()))
    position = data.draw(st.integers(0, len(batch.thresholds) - 1))
    moved = largest_change(lambda some: importance_weights(tail, some.thresholds, by_loss(some)), batch, position)
    assert moved <= batch.thresholds[position] * SLACK


def stated_excess(tail: Tail, thresholds: np.ndarray, position: int) -> float:
    """x of `inosgd.importance`."""
    return 2.0**-50 + 2.0**-48 * (tail.length + thresholds.max()) / thresholds[position]


@given(data=st.data(), shape=shapes, seed=st.integers(0, 2**32 - 1))
@tries(15)
def test_weights_keep_to_the_bound_that_is_proved(data, shape, seed):
    """Thousands of examples of thresholds a million apart, tails from a thousandth of the batch to a thousand."""
    rng = np.random.default_rng(seed)
    count, spread = int(10 ** data.draw(st.floats(0, 3.5))), data.draw(st.floats(0, 6))
    thresholds = 10 ** rng.uniform(spread * data.draw(st.sampled_from([0.0, 0.9, 1.0])), spread, count)
    position = data.draw(st.integers(0, count))
    thresholds = np.insert(thresholds, position, 1.0)
    tail = Tail(shape, thresholds.sum() * 10 ** data.draw(st.floats(-3, 3)))
    moved = moved_by(importance_weights, tail, thresholds, position)
    assert moved <= 1 + stated_excess(tail, thresholds, position)


WORST = np.append(np.full(1580, 1e6), 1.0)
WORST_TAIL = Tail(BetaTail(0.5, 0.5), float(np.nextafter(WORST.sum(), np.inf)))


def test_one_small_threshold_after_a_thousand_large_ones_keeps_to_the_margin():
    assert moved_by(importance_weights, WORST_TAIL, WORST, 1580) <= 1 + 1e-8
    Terms(np.array([0.5, 0.5]), np.array([1.0, 1e6]), 1.0, 1e6)  # allowed at any batch size


def test_the_check_catches_differences_of_integrals_in_float64():
    """What this library did: both sides of a difference have their own roundings, near u = 1 of 3e-9."""

    def differences(tail, thresholds, ranking):
        ends = np.append(np.cumsum(thresholds[ranking][::-1])[::-1], 0.0)
        u = np.minimum(ends / tail.length, 1.0)
        a, b = tail.shape.a, tail.shape.b
        kept = tail.length * (u * betainc(a, b, u) - a / (a + b) * betainc(a + 1, b, u))
        kept += np.maximum(ends - tail.length, 0.0)
        weights = np.empty(len(thresholds))
        weights[ranking] = np.clip((kept[:-1] - kept[1:]) / thresholds[ranking], 0.0, 1.0)
        return weights

    assert moved_by(differences, WORST_TAIL, WORST, 1580) > 2


def moved_by(weights, tail: Tail, thresholds: np.ndarray, position: int) -> float:
    """`largest_change` over the threshold, for examples that come in their order; the sum is exact."""
    others = np.arange(len(thresholds)) != position
    full = weights(tail, thresholds, np.arange(len(thresholds)))
    less = weights(tail, thresholds[others], np.arange(len(thresholds) - 1))
    moved = math.fsum((np.abs(full[others] - less) * thresholds[others]).tolist())
    return moved / thresholds[position] + full[position]


def largest_change(weights: Weights, batch: Batch, position: int) -> float:
    """How far the sum moves without one example, for the worst gradients that the thresholds allow.

    Gradients of full length, each pointing where its weight grew: the triangle inequality is then an equality.
    """
    others = np.arange(len(batch.thresholds)) != position
    full, less = weights(batch), weights(batch.without(position))
    moved = np.abs(full[others] - less) @ batch.thresholds[others]
    return float(moved + full[position] * batch.thresholds[position])


def by_loss(batch: Batch) -> np.ndarray:
    return ORDERS["descending-loss"].ranking(batch.candidates, SeededSource(0))


# --- negative controls -----------------------------------------------------------------------------------------


def worst_change(weights: Weights, tie_levels: int = 1000, size: int = 24, trials: int = 300) -> float:
    """The largest change by one example over its threshold, in random batches."""
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(trials):
        count = int(rng.integers(2, size))
        batch = random_batch(rng, count, tie_levels)
        worst = max(worst, *(largest_change(weights, batch, i) / batch.thresholds[i] for i in range(count)))
    return worst


def random_batch(rng: np.random.Generator, count: int, tie_levels: int) -> Batch:
    thresholds = 10.0 ** rng.uniform(-1, 1, count)
    losses = rng.integers(0, tie_levels, count).astype(float)
    candidates = Candidates(rng.permutation(count), np.zeros(count, dtype=int), losses, thresholds)
    return Batch(thresholds, candidates, thresholds)


TAIL = Tail(BetaTail(2, 1), 8.0)


def exact(batch: Batch) -> np.ndarray:
    return importance_weights(TAIL, batch.thresholds, by_loss(batch))


def keep_highest_losses(batch: Batch) -> np.ndarray:
    weights = np.zeros(len(batch.thresholds))
    weights[by_loss(batch)[:8]] = 1
    return weights


def drop_lowest_losses(batch: Batch) -> np.ndarray:
    weights = np.ones(len(batch.thresholds))
    weights[by_loss(batch)[-8:]] = 0
    return weights


def ends_on_a_grid(batch: Batch) -> np.ndarray:
    """Interval ends rounded to a grid of one point per unit of threshold."""
    ranking = by_loss(batch)
    ranked = batch.thresholds[ranking]
    ends = np.append(np.round(np.cumsum(ranked[::-1]))[::-1], 0.0)
    weights = np.empty(len(ranked))
    weights[ranking] = (TAIL.kept(ends[:-1]) - TAIL.kept(ends[1:])) / ranked
    return weights


def share_of_the_realised_batch(batch: Batch) -> np.ndarray:
    tail = Tail(TAIL.shape, 0.5 * batch.thresholds.sum())
    return importance_weights(tail, batch.thresholds, by_loss(batch))


def unstable_sort(batch: Batch) -> np.ndarray:
    """Ties in an order that depends on how many examples there are, as an unstable sort gives."""
    count = len(batch.thresholds)
    shuffled = np.random.default_rng(count).permutation(count)
    ranking = shuffled[np.argsort(-batch.candidates.losses[shuffled], kind="stable")]
    return importance_weights(TAIL, batch.thresholds, ranking)


def test_the_check_passes_on_the_exact_weights():
    assert worst_change(exact) <= SLACK
    assert worst_change(exact, tie_levels=3) <= SLACK


@pytest.mark.parametrize(
    "broken", [keep_highest_losses, drop_lowest_losses, ends_on_a_grid, share_of_the_realised_batch]
)
def test_the_check_catches(broken):
    assert worst_change(broken) > 1.05


def test_the_check_catches_an_unstable_sort_with_ties():
    assert worst_change(unstable_sort, tie_levels=3) > 1.05


def test_the_check_catches_a_score_of_the_whole_batch():
    """An order that turns around with the parity of the batch size."""

    def by_parity(batch: Batch) -> np.ndarray:
        sign = 1 if len(batch.thresholds) % 2 else -1
        return importance_weights(TAIL, batch.thresholds, np.argsort(sign * batch.candidates.losses, kind="stable"))

    assert worst_change(by_parity) > 1.05


def test_a_callers_score_sees_one_example_only():
    seen = []
    order = by_score(lambda one: seen.append(one) or one.loss)
    batch = random_batch(np.random.default_rng(0), 5, 1000)
    order.ranking(batch.candidates, SeededSource(0))
    assert len(seen) == 5
    assert all(isinstance(one, Candidate) for one in seen)


def test_float32_vectors_keep_the_bound_because_sums_are_float64():
    """A thousand long float32 gradients around one short one; a float32 sum would move by 1.0007 C."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(500, generator=generator), dim=0)
    thresholds = np.append(np.full(1024, 100.0), 1.0)
    vectors = torch.from_numpy(thresholds).float()[:, None] * direction * 3
    norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64).numpy()
    ids = np.arange(1025)
    full = Batch(vectors, Candidates(ids, ids, np.ones(1025), norms), thresholds)
    less = full.without(1024)
    both = [
        ordered_sum(some.vectors, some.candidates, some.thresholds, SeededSource(0), tail=None)
        for some in (full, Batch(vectors[:1024], less.candidates, less.thresholds))
    ]
    assert float((both[0] - both[1]).norm()) <= SLACK
    factors = torch.from_numpy(FlatClipping().factors(norms, thresholds)).float()
    naive = [factors @ vectors, factors[:1024] @ vectors[:1024]]
    assert float((naive[0] - naive[1]).double().norm()) > 1.0001
