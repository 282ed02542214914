"""Weights are exact averages of the batch importance function."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betainc

from inosgd.errors import InvalidArgumentError
from inosgd.importance import (
    WEIGHT_ERROR,
    BetaTail,
    FunctionTail,
    Importance,
    StepTail,
    Tail,
    importance_weights,
)
from tests.properties import tries

PARAMETERS = [(1.0, 1.0), (2.0, 1.0), (1.0, 5.0), (0.5, 0.5), (0.3, 10.0), (1e-3, 1e3), (1e3, 1e-3)]


@pytest.mark.parametrize(("a", "b"), PARAMETERS[:5])
def test_the_beta_tail_is_its_integral(a, b):
    """f(c) = I_{1-c}(a, b) over the last `end` of the tail is the integral of I_u(a, b) for u from 0 to `end`."""
    for end in (0.01, 0.5, 0.9, 1.0):
        integral, _ = quad(lambda u: betainc(a, b, u), 0, end, epsabs=1e-13, limit=200)
        assert Tail(BetaTail(a, b), 1.0).kept(np.array([end]))[0] == pytest.approx(integral, abs=1e-10)


def test_weights_follow_the_definition_of_the_batch_importance_function():
    """By quadrature of f_t from App. C.2.3, for a batch longer and one shorter than its tail."""
    thresholds = np.array([0.5, 2.0, 1.0, 0.25, 1.5])
    ranking = np.array([3, 0, 4, 1, 2])
    tail_at = lambda c, gamma: betainc(2.0, 3.0, np.clip(1 - c / gamma, 0, 1))  # noqa: E731
    for gamma in (2.0, 30.0):
        total = thresholds.sum()

        def batch_importance(c, gamma=gamma, total=total):
            position = c - (total - gamma)
            return 1.0 if position < 0 else tail_at(position, gamma)

        ends = np.append(0, np.cumsum(thresholds[ranking]))
        expected = np.empty(5)
        for k, example in enumerate(ranking):
            points = [total - gamma] if ends[k] < total - gamma < ends[k + 1] else None
            area, _ = quad(batch_importance, ends[k], ends[k + 1], points=points, epsabs=1e-12)
            expected[example] = area / thresholds[example]
        weights = importance_weights(Tail(BetaTail(2.0, 3.0), gamma), thresholds, ranking)
        np.testing.assert_allclose(weights, expected, atol=1e-10)


def test_examples_before_the_tail_keep_exactly_everything():
    weights = importance_weights(Tail(BetaTail(), 1.0), np.full(100, 0.125), np.arange(100))
    assert (weights[:92] == 1.0).all()
    assert (np.diff(weights) <= 1e-12).all()
    assert weights[-1] == pytest.approx(0.0625)


def test_no_tail_keeps_everything_and_an_empty_batch_has_no_weights():
    assert (importance_weights(None, np.ones(3), np.arange(3)) == 1).all()
    assert importance_weights(Tail(BetaTail(), 1.0), np.zeros(0), np.arange(0)).shape == (0,)


def test_step_tail_levels():
    """Four examples of one unit each, a tail of four units: each lies on one level."""
    weights = importance_weights(Tail(StepTail(), 4.0), np.ones(6), np.arange(6))
    np.testing.assert_allclose(weights, [1, 1, 1 / 2, 1 / 4, 1 / 8, 0], atol=1e-15)


def test_a_function_tail_agrees_with_the_closed_form():
    ends = np.linspace(0, 1, 97)
    line, closed = (Tail(shape, 1.0).kept(ends) for shape in (FunctionTail(lambda c: 1 - c, points=7), BetaTail(1, 1)))
    np.testing.assert_allclose(line, closed, atol=1e-12)


SHAPES = [
    *(BetaTail(a, b) for a, b in PARAMETERS),
    StepTail(),
    StepTail((1.0, 0.7, 1 / 3)),
    StepTail((0.3,)),
    FunctionTail(lambda c: (1 - c) ** 0.3, points=7),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_tables_are_whole_numbers_that_never_fall(shape):
    cells = shape.cells
    values = np.column_stack([cells.first, cells.last]).ravel()
    assert values.dtype == cells.sums.dtype == np.int64
    assert (np.diff(values) >= 0).all()
    assert values[0] >= 0
    assert values[-1] <= 2**40
    assert cells.sums.tolist() == [0, *accumulate((cells.first + cells.last).tolist())]


def exact_kept(cells, position: int) -> Fraction:
    """H of a whole position, in rational arithmetic."""
    cell = min(position // cells.width, len(cells.first) - 1)
    within = min(position, cells.end) - cell * cells.width
    first, last = int(cells.first[cell]), int(cells.last[cell])
    rise = Fraction((last - first) * within, 2 * cells.width)
    kept = Fraction(int(cells.sums[cell]) * cells.width, 2) + within * (first + rise)
    return kept / 2**40 + max(position - cells.end, 0)


def exact_weights(tail: Tail, thresholds, ranking) -> list[Fraction]:
    """Weights in rational arithmetic, from lengths that are whole numbers of positions."""
    cells, weights, after = tail.shape.cells, [Fraction(0)] * len(thresholds), 0
    for example in ranking[::-1].tolist():
        length = max(math.ceil(thresholds[example] / tail.length * float(cells.end)), 1)
        assert abs(length - Fraction(thresholds[example]) / Fraction(tail.length) * cells.end) <= 1 + length * 2**-51
        weights[example] = (exact_kept(cells, after + length) - exact_kept(cells, after)) / length
        after += length
    return weights


@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0, 1, 6, 12]),
    share=st.floats(-6, 6),
)
@tries(40)
def test_weights_are_the_exact_ones_within_the_error_that_is_stated(shape, seed, spread, share):
    """From tails of a millionth of the batch to a million times the batch, thresholds up to 1e12 apart."""
    rng = np.random.default_rng(seed)
    thresholds = 10.0 ** rng.uniform(0, spread, 30)
    tail, ranking = Tail(shape, thresholds.sum() * 10.0**share), rng.permutation(30)
    weights = importance_weights(tail, thresholds, ranking)
    for found, exact in zip(weights.tolist(), exact_weights(tail, thresholds, ranking), strict=True):
        assert abs(Fraction(found) - exact) <= Fraction(WEIGHT_ERROR) * exact


def test_a_threshold_far_longer_than_the_tail_keeps_all_but_a_share_of_the_tail():
    weights = importance_weights(Tail(BetaTail(), 1e-12), np.array([1.0, 1e-20, 1e20]), np.array([0, 1, 2]))
    assert weights.tolist() == [1.0, 1.0, 1.0]
    weights = importance_weights(Tail(BetaTail(), 1.0), np.array([1e9, 2.0]), np.array([0, 1]))
    assert weights.tolist() == [1.0, 0.75]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: StepTail((0.1, 0.5)), "must never increase"),
        (lambda: StepTail((1.5, 0.5)), r"levels\[0\]=1.5"),
        (lambda: StepTail(()), "at least one level"),
        (lambda: FunctionTail(lambda c: c), "must never increase"),
        (lambda: FunctionTail(lambda c: float("nan")), r"function\[0\]=nan"),
        (lambda: FunctionTail(lambda c: 1.0, points=2**20 + 1).cells, "cells=1048577"),
        (lambda: BetaTail(0.0, 1.0), "a=0.0"),
        (lambda: Tail(BetaTail(), float("inf")), "length=inf"),
        (lambda: Importance(share=None), "give one of them"),
        (lambda: Importance(share=0.5, length=2.0), "give one of them"),
        (lambda: Importance(share=-1.0), "share=-1.0"),
    ],
)
def test_bad_tails_are_refused_by_name(build, words):
    with pytest.raises(InvalidArgumentError, match=words):
        build()


def test_the_length_is_a_share_of_the_expected_sum_or_absolute():
    assert Importance(share=0.25).tail(8.0).length == 2.0
    assert Importance(share=None, length=3.0).tail(8.0).length == 3.0
