"""Random batches for property-based tests of the sensitivity bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from inosgd.importance import BetaTail, FunctionTail, StepTail, Tail
from inosgd.order import Candidates


@dataclass(frozen=True)
class Batch:
    """Vectors of a one-dimensional mechanism with what the order and the clipping see."""

    vectors: np.ndarray
    candidates: Candidates
    thresholds: np.ndarray

    def without(self, position: int) -> Batch:
        keep = np.arange(len(self.thresholds)) != position
        old = self.candidates
        kept = Candidates(old.example_ids[keep], old.privacy_ranks[keep], old.losses[keep], old.grad_norms[keep])
        return Batch(self.vectors[keep], kept, self.thresholds[keep])


shapes = st.one_of(
    st.builds(BetaTail, *2 * [st.sampled_from([1e-3, 0.2, 0.5, 1.0, 2.5, 20.0, 1e3])]),
    st.lists(st.floats(0, 1), min_size=1, max_size=6).map(lambda levels: StepTail(tuple(sorted(levels, reverse=True)))),
    st.floats(0.2, 5).map(lambda power: FunctionTail(lambda c: (1 - c) ** power, points=64)),
)


@st.composite
def tails(draw: st.DrawFn, total: float) -> Tail:
    """Tails from far shorter than an example to far longer than the batch."""
    return Tail(draw(shapes), total * 10.0 ** draw(st.floats(-3, 1)))


@st.composite
def batches(draw: st.DrawFn, max_size: int = 40) -> Batch:
    """Thresholds over five orders of magnitude, tied and non-finite scores, gradients from zero to far too long."""
    size = draw(st.integers(1, max_size))
    seed = draw(st.integers(0, 2**32 - 1))
    tie_levels = draw(st.sampled_from([1, 2, 5, 1000]))
    rng = np.random.default_rng(seed)
    thresholds = 10.0 ** rng.uniform(-2, 3, size)
    direction = rng.choice([-1.0, 1.0], size) if draw(st.booleans()) else np.ones(size)
    vectors = direction * thresholds * 10.0 ** rng.uniform(-1, 1, size)
    losses = rng.integers(0, tie_levels, size).astype(float)
    strange = rng.random(size) < draw(st.sampled_from([0.0, 0.2]))
    losses[strange] = rng.choice([np.nan, np.inf, -np.inf], strange.sum())
    ids = rng.permutation(10 * size)[:size]
    candidates = Candidates(ids, rng.integers(0, 4, size), losses, np.abs(vectors))
    return Batch(vectors, candidates, thresholds)
