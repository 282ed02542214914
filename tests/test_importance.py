"""Weights are exact averages of the batch importance function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betainc

from inosgd.errors import InvalidArgumentError
from inosgd.importance import BetaTail, FunctionTail, Importance, StepTail, Tail, importance_weights


@given(st.floats(0.3, 10), st.floats(0.3, 10), st.floats(0, 1))
def test_the_beta_tail_is_its_integral(a, b, end):
    """f(c) = I_{1-c}(a, b) over the last `end` of the tail is the integral of I_u(a, b) for u from 0 to `end`."""
    integral, _ = quad(lambda u: betainc(a, b, u), 0, end, epsabs=1e-13)
    assert BetaTail(a, b).kept(np.array([end]))[0] == pytest.approx(integral, abs=1e-10)


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
    line = FunctionTail(lambda c: 1 - c)
    ends = np.linspace(0, 1, 97)
    np.testing.assert_allclose(line.kept(ends), BetaTail(1, 1).kept(ends), atol=1e-7)


@given(st.floats(0.1, 8))
def test_a_function_tail_is_convex_between_its_points(power):
    kept = FunctionTail(lambda c: 1 - c**power, points=7).kept(np.linspace(0, 1, 701))
    slopes = np.diff(kept) * 700
    assert (np.diff(slopes) >= -1e-9).all()
    assert slopes.min() >= -1e-12
    assert slopes.max() <= 1 + 1e-12


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: StepTail((0.1, 0.5)), "must never increase"),
        (lambda: StepTail((1.5, 0.5)), r"levels\[0\]=1.5"),
        (lambda: StepTail(()), "at least one level"),
        (lambda: FunctionTail(lambda c: c), "must never increase"),
        (lambda: FunctionTail(lambda c: float("nan")), r"function\[0\]=nan"),
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
