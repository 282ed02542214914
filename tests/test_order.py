"""Orders are stable: adding an example never reorders the others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inosgd.order import ASCENDING_LOSS, DESCENDING_LOSS, ORDERS, OWNER_THEN_LOSS, RANDOM, Candidates, by_score
from inosgd.randomness import SeededSource
from tests.strategies import batches


def candidates(losses, ranks=None, ids=None) -> Candidates:
    count = len(losses)
    return Candidates(
        np.arange(count) if ids is None else np.array(ids),
        np.zeros(count, dtype=int) if ranks is None else np.array(ranks),
        np.array(losses, dtype=float),
        np.ones(count),
    )


def ranked(order, batch) -> list[int]:
    return order.ranking(batch, SeededSource(3)).tolist()


def test_each_order():
    batch = candidates([1.0, 3.0, 2.0, 3.0], ranks=[0, 1, 0, 1])
    assert ranked(DESCENDING_LOSS, batch) == [1, 3, 2, 0]
    assert ranked(ASCENDING_LOSS, batch) == [0, 2, 1, 3]
    assert ranked(OWNER_THEN_LOSS, batch) == [2, 0, 1, 3]
    assert ranked(by_score(lambda one: -one.loss), batch) == [0, 2, 1, 3]


def test_ties_are_broken_by_example_id_not_by_position():
    assert ranked(DESCENDING_LOSS, candidates([1.0, 1.0, 1.0], ids=[30, 10, 20])) == [1, 2, 0]


def test_non_finite_scores_share_one_key_and_come_last():
    batch = candidates([np.nan, 1.0, np.inf, -np.inf])
    for order in (DESCENDING_LOSS, ASCENDING_LOSS, by_score(lambda one: one.loss)):
        assert ranked(order, batch) == [1, 0, 2, 3]


def test_the_random_order_is_uniform_over_first_places_and_fresh_every_time():
    batch, source = candidates(np.zeros(10)), SeededSource(0)
    firsts = np.bincount([RANDOM.ranking(batch, source)[0] for _ in range(5000)], minlength=10)
    assert ((firsts - 500) ** 2 / 500).sum() < 27.9  # chi-square with 9 degrees of freedom, p = 0.001


@given(data=st.data(), batch=batches())
def test_removing_an_example_keeps_the_others_in_place(data, batch):
    position = data.draw(st.integers(0, len(batch.thresholds) - 1))
    for order in ORDERS.values():
        full = batch.candidates.example_ids[order.ranking(batch.candidates, SeededSource(5))]
        less = batch.without(position).candidates
        rest = less.example_ids[order.ranking(less, SeededSource(5))]
        assert [i for i in full if i != batch.candidates.example_ids[position]] == rest.tolist()
