"""Order: which example of a batch is more important than which.

An order gives every example keys of its own and sorts by them, the most important first; equal keys are told
apart by the example's id. An example's keys depend on that example (and on public randomness) alone.

Guarantee:
    Adding or removing one example never changes the relative order of the others. The sensitivity bound of
    `inosgd.importance` rests on this. An unstable sort, or a key that looks at the rest of the batch, breaks it.

A score that is NaN or infinite gets one fixed key, the least important, so that it compares with every other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inosgd._arrays import FloatArray, IntArray
from inosgd.randomness import RandomSource, mixed_words

Keys = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """What an order may look at, one entry per example of the batch."""

    example_ids: IntArray
    privacy_ranks: IntArray
    losses: FloatArray
    grad_norms: FloatArray

    def __len__(self) -> int:
        return len(self.example_ids)


class Candidate(NamedTuple):
    """What a caller's score may look at: one example, never its neighbours in the batch."""

    example_id: int
    privacy_rank: int
    loss: float
    grad_norm: float


@dataclass(frozen=True)
class Order:
    """A name, and a function from a batch to per-example keys, the most significant first.

    Smaller keys are more important. The function must compute each example's keys from that example alone;
    `by_score` builds orders for which this holds by construction.
    """

    name: str
    keys: Callable[[Candidates, RandomSource], Keys]

    def ranking(self, candidates: Candidates, source: RandomSource) -> IntArray:
        """The positions of the batch from the most to the least important."""
        keys = self.keys(candidates, source)
        return np.lexsort((candidates.example_ids, *reversed(keys)))


def by_score(score: Callable[[Candidate], float], name: str = "score") -> Order:
    """The order by a caller's score, the largest first.

    ``score`` is called once per example and is shown nothing else: as long as it keeps no state of its own between
    calls, the order's guarantee holds.
    """

    def keys(candidates: Candidates, _: RandomSource) -> Keys:
        rows = zip(
            candidates.example_ids.tolist(),
            candidates.privacy_ranks.tolist(),
            candidates.losses.tolist(),
            candidates.grad_norms.tolist(),
            strict=True,
        )
        scores = np.array([float(score(Candidate(*row))) for row in rows], dtype=np.float64)
        return (_descending(scores),)

    return Order(name, keys)


def _descending(scores: FloatArray) -> FloatArray:
    return np.where(np.isfinite(scores), -scores, np.inf)


def _ascending(scores: FloatArray) -> FloatArray:
    return np.where(np.isfinite(scores), scores, np.inf)


DESCENDING_LOSS = Order("descending-loss", lambda batch, _: (_descending(batch.losses),))
"""The paper's order: what is not yet learnt comes first."""

ASCENDING_LOSS = Order("ascending-loss", lambda batch, _: (_ascending(batch.losses),))
"""The opposite of the paper's order, for ablations."""

RANDOM = Order("random", lambda batch, source: (mixed_words(batch.example_ids, source.words(1)[0]),))
"""A fresh order every batch that ignores the losses, for ablations."""

OWNER_THEN_LOSS = Order("owner-then-loss", lambda batch, _: (batch.privacy_ranks, _descending(batch.losses)))
"""The most private owner's examples first, and by descending loss within each owner (App. C.2.2)."""

ORDERS = {order.name: order for order in (DESCENDING_LOSS, ASCENDING_LOSS, RANDOM, OWNER_THEN_LOSS)}
