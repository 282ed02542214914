"""The sensitivity bound through a model: one example moves a clipped, weighted sum by its threshold at most."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from inosgd.clipping import FlatClipping
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, supervised
from inosgd.importance import BetaTail, Tail, importance_weights
from inosgd.order import DESCENDING_LOSS, Candidates
from inosgd.randomness import SeededSource
from tests.properties import tries

LOSSES = supervised(functional.cross_entropy)


@cache
def model(dtype: torch.dtype) -> nn.Module:
    """One for all: what engines find out about a new model takes most of the time of a tiny batch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def weighted_sum(engine, network, examples, thresholds, ids, tail) -> torch.Tensor:
    with engine.on(network, LOSSES, examples) as gradients:
        measured = gradients.measure()
        candidates = Candidates(ids, np.zeros(len(ids), dtype=int), measured.losses, measured.grad_norms)
        weights = importance_weights(tail, thresholds, DESCENDING_LOSS.ranking(candidates, SeededSource(0)))
        return gradients.weighted_sum(weights * FlatClipping().factors(measured.grad_norms, thresholds)).double()


def moved_by_one(engine, dtype: torch.dtype, seed: int, size: int, spread: float) -> float:
    """How far the sum moves without one example, over that example's threshold."""
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(size, 5))).to(dtype)
    targets = torch.from_numpy(rng.integers(0, 3, size))
    thresholds = 0.01 * 10.0 ** rng.uniform(0, spread, size)
    tail = Tail(BetaTail(2, 1), 0.5 * thresholds.sum())
    network, ids, left_out = model(dtype), np.arange(size), int(rng.integers(size))
    keep = ids != left_out
    full = weighted_sum(engine, network, (inputs, targets), thresholds, ids, tail)
    less = weighted_sum(engine, network, (inputs[keep], targets[keep]), thresholds[keep], ids[keep], tail)
    return float((full - less).norm()) / thresholds[left_out]


@pytest.mark.parametrize("engine", [BookkeepingEngine(), BookkeepingEngine(physical_batch_size=7), ReferenceEngine()])
@given(seed=st.integers(0, 10_000), size=st.integers(2, 60), spread=st.sampled_from([0.0, 2.0, 4.0]))
@tries(15)
def test_in_float64(engine, seed, size, spread):
    assert moved_by_one(engine, torch.float64, seed, size, spread) <= 1 + 1e-6


@given(seed=st.integers(0, 10_000), size=st.integers(2, 60))
def test_in_float32_with_similar_thresholds(seed, size):
    assert moved_by_one(BookkeepingEngine(), torch.float32, seed, size, spread=0.5) <= 1


def test_an_engine_that_measures_norms_too_small_is_caught():
    """The control: gradients measured at half their length are clipped to twice their threshold."""

    class Halving(ReferenceEngine):
        def on(self, network, losses, examples):
            return _Halved(ReferenceEngine().on(network, losses, examples))

    class _Halved:
        def __init__(self, context) -> None:
            self.context = context

        def __enter__(self):
            self.gradients = self.context.__enter__()
            return self

        def __exit__(self, *error):
            return self.context.__exit__(*error)

        def measure(self):
            measured = self.gradients.measure()
            return type(measured)(measured.losses, measured.grad_norms / 2)

        def weighted_sum(self, coefficients):
            return self.gradients.weighted_sum(coefficients)

    assert max(moved_by_one(Halving(), torch.float64, seed, 6, 0.0) for seed in range(20)) > 1.2
