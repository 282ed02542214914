"""The objective of INO-SGD: its weights, its two forms, and that training finds its minimiser."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import betainc
from scipy.stats import binom
from torch import nn

from inosgd import IDP_SGD, INO_SGD, Budget, Importance, Method, Owners, Plan, SeededSource, Trainer, TrainingState, fit
from inosgd.analysis.objective import (
    conditional_value_at_risk,
    cvar_mixture,
    expected_weights,
    ordered_weighted_average,
    rank_weights,
)
from inosgd.errors import InvalidArgumentError
from inosgd.importance import BetaTail, StepTail, Tail, importance_weights
from inosgd.plan import Phase, Terms
from inosgd.training import every

shapes = st.one_of(
    st.builds(BetaTail, st.floats(0.3, 5), st.floats(0.3, 5)),
    st.just(StepTail()),
)


def weights_of_the_papers_proof(a: float, b: float, gamma: int, count: int, rate: float) -> np.ndarray:
    """The formula of App. C.3.3 word for word, its integrals by quadrature; C = 1 and gamma whole."""

    def importance(c: float) -> float:
        return float(betainc(a, b, 1 - c / gamma))

    found = []
    for k in range(1, count + 1):
        within = [
            binom.pmf(i, count - k, rate) * quad(importance, gamma - (i + 1), gamma - i, epsabs=1e-13)[0]
            for i in range(gamma)
        ]
        beyond = [binom.pmf(i, count - k, rate) for i in range(gamma, count - k + 1)]
        found.append(sum(within) + sum(beyond))
    return np.array(found)


@pytest.mark.parametrize(
    ("a", "b", "gamma", "rate"), [(1, 1, 4, 0.3), (2, 3, 7, 0.6), (0.5, 1, 1, 0.1), (1, 1, 30, 0.5)]
)
def test_weights_are_those_of_the_proof(a, b, gamma, rate):
    expected = weights_of_the_papers_proof(a, b, gamma, 20, rate)
    assert rank_weights(Tail(BetaTail(a, b), gamma), 20, rate) == pytest.approx(expected, abs=1e-10)
    # Thresholds in other units: only the ratio of tail to threshold counts.
    assert rank_weights(Tail(BetaTail(a, b), 0.2 * gamma), 20, rate, 0.2) == pytest.approx(expected, abs=1e-10)


def weights_by_enumeration(tail: Tail, rates: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """E[rho_k | k in the batch] over all batches, weights by `importance_weights`."""
    totals = np.zeros(len(rates))
    for present in itertools.product([False, True], repeat=len(rates)):
        batch = np.flatnonzero(present)
        chance = np.prod(np.where(present, rates, 1 - rates))
        totals[batch] += chance * importance_weights(tail, thresholds[batch], np.arange(len(batch)))
    return totals / rates


@given(
    shape=shapes,
    length=st.floats(0.1, 12),
    rates=st.lists(st.floats(0.05, 1), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_individual_rates_and_thresholds_against_all_batches(shape, length, rates, seed):
    multiples = np.random.default_rng(seed).integers(1, 5, len(rates))
    tail, array = Tail(shape, length), np.array(rates)
    found = expected_weights(tail, array, 0.5, multiples)
    assert found == pytest.approx(weights_by_enumeration(tail, array, 0.5 * multiples), abs=1e-9)


def test_the_enumeration_tells_orders_apart():
    tail, rates = Tail(BetaTail(), 2.0), np.array([0.9, 0.5, 0.1])
    reversed_order = weights_by_enumeration(tail, rates[::-1].copy(), np.ones(3))[::-1]
    assert np.abs(expected_weights(tail, rates) - reversed_order).max() > 0.3


@given(shape=shapes, length=st.floats(0.1, 40), count=st.integers(1, 60), rate=st.floats(0, 1))
def test_weights_fall_and_stay_within_one(shape, length, count, rate):
    weights = rank_weights(Tail(shape, length), count, rate)
    assert (weights >= 0).all()
    assert (weights <= 1).all()
    assert (np.diff(weights) <= 1e-12).all()


def test_weights_sum_to_what_a_batch_keeps():
    tail, count, rate = Tail(BetaTail(2, 1), 9.5), 40, 0.4
    sizes = np.arange(count + 1)
    kept = binom.pmf(sizes, count, rate) @ tail.kept(sizes.astype(float))
    assert rate * rank_weights(tail, count, rate).sum() == pytest.approx(kept, rel=1e-12)


def test_the_papers_extension_is_an_approximation_for_small_rates():
    """An example of rate q as T q copies of rate 1/T, ranked together."""
    differences = []
    for scale in (1.0, 0.1):
        rates = scale * np.tile([0.8, 0.2], 15)
        copies = np.rint(500 * rates).astype(int)
        tail = Tail(BetaTail(), 0.5 * rates.sum() + 1)
        extended = rank_weights(tail, copies.sum(), 1 / 500)
        ends = np.cumsum(copies)
        means = [extended[end - size : end].mean() for end, size in zip(ends, copies, strict=True)]
        differences.append(np.abs(np.array(means) - expected_weights(tail, rates)).max())
    assert differences[1] < 0.025
    assert differences[0] > 2 * differences[1]


losses_and_weights = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 10), min_size=count, max_size=count),
        st.builds(rank_weights, st.builds(Tail, shapes, st.floats(0.5, 10)), st.just(count), st.floats(0.01, 1)),
    )
)


@given(losses_and_weights)
def test_the_average_and_the_mixture_are_the_same(pair):
    losses, weights = pair
    mixture = cvar_mixture(weights)
    assert mixture.value(losses) == pytest.approx(ordered_weighted_average(losses, weights), abs=1e-9)
    assert mixture.masses.sum() == pytest.approx(weights.mean(), abs=1e-9)
    # Negative control: the best order of weights is the falling one, so another order is no larger.
    assert ordered_weighted_average(losses, weights[::-1]) <= ordered_weighted_average(losses, weights) + 1e-12


@given(st.lists(st.floats(0, 10), min_size=1, max_size=10), st.floats(0.05, 1))
def test_cvar_is_rockafellar_and_uryasevs_minimum(losses, level):
    values = np.array(losses)
    candidates = values[:, None]
    bound = (values + np.maximum(values[None, :] - candidates, 0).mean(1) / level).min()
    assert conditional_value_at_risk(losses, level) == pytest.approx(bound, abs=1e-9)


def test_extreme_weights():
    losses = [3.0, 1.0, 2.0]
    assert ordered_weighted_average(losses, [1.0, 1.0, 1.0]) == pytest.approx(2.0)
    assert cvar_mixture([1.0, 1.0, 1.0]).levels.tolist() == [1.0]
    assert cvar_mixture([1.0, 0.0, 0.0]).value(losses) == pytest.approx(1.0)
    assert rank_weights(Tail(BetaTail(), 5.0), 3, 0.0) == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_weights(Tail(BetaTail(), 1.0), 0, 0.5), "count=0"),
        (lambda: rank_weights(Tail(BetaTail(), 1.0), 3, float("nan")), "sampling_rate"),
        (lambda: expected_weights(Tail(BetaTail(), 1.0), [0.5], 1.0, np.array([0])), "multiples"),
        (lambda: expected_weights(Tail(BetaTail(), 1.0), [0.5], 0.0), "unit=0.0"),
        (lambda: cvar_mixture([0.5, 0.9]), r"weights\[1\]=0.9: weights must never rise"),
        (lambda: conditional_value_at_risk([1.0], 0.0), "level=0.0"),
        (lambda: ordered_weighted_average([1.0], [1.0, 1.0]), "len"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


POINTS = np.random.default_rng(0).exponential(1.0, (80, 2)) + np.repeat([[0.0, 0.0], [2.0, 0.0]], [50, 30], axis=0)
WHOLE_TAIL = dataclasses.replace(INO_SGD, importance=Importance(share=1.0))


def distances(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
    """Half the squared distance of the model's only output to each point: convex, and minimised by a mean."""
    return (model(torch.ones(len(points), 1, dtype=points.dtype)) - points).square().sum(1) / 2


def problem(method: Method, rates: tuple[float, float], steps: int) -> Trainer:
    """Two owners without privacy demands; thresholds that clip nothing, and hardly any noise."""
    budget = Budget(epsilon=float("inf"), delta=1e-5)
    owners = Owners.from_labels(["a"] * 50 + ["b"] * 30, {"a": budget, "b": budget})
    terms = Terms.for_owners(owners.table, np.array(rates), np.full(2, 1e3), 1e-3)
    plan = Plan(owners.table, (Phase(steps, terms),), "rdp", [np.inf, np.inf])
    return Trainer(plan, owners, torch.from_numpy(POINTS), distances, method)


def trained(trainer: Trainer) -> np.ndarray:
    """The mean of the parameters over the last three quarters of a training."""
    model = nn.Linear(1, 2, bias=False).double()
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.2), SeededSource(4))
    seen: list[np.ndarray] = []
    fit(trainer, state, callbacks=[every(1, lambda _: seen.append(model.weight.detach().numpy().ravel().copy()))])
    return np.mean(seen[len(seen) // 4 :], axis=0)


def minimisers(trainer: Trainer) -> tuple[np.ndarray, np.ndarray]:
    """Of the objective with its weights, by a method that knows nothing of gradients; and of the plain mean."""
    rates = trainer.plan.at(0).sampling_rates[trainer.owners.assignment]
    tail = WHOLE_TAIL.tail(trainer.plan.expected_threshold_sum())
    assert tail is not None

    def objective(center: np.ndarray) -> float:
        losses = ((POINTS - center) ** 2).sum(1) / 2
        order = np.argsort(-losses, kind="stable")
        return float((rates * losses)[order] @ expected_weights(tail, rates[order], 1e3))

    options = {"xatol": 1e-7, "fatol": 1e-12}
    return minimize(objective, np.ones(2), method="Nelder-Mead", options=options).x, rates @ POINTS / rates.sum()


@pytest.mark.parametrize("rates", [pytest.param((0.5, 0.5), marks=pytest.mark.long), (0.8, 0.2)])
def test_training_finds_the_minimiser_of_the_objective(rates):
    ino, idp = (problem(method, rates, steps=400) for method in (WHOLE_TAIL, IDP_SGD))
    stated, plain = minimisers(ino)
    gap = np.linalg.norm(stated - plain)
    assert gap > 0.15
    assert np.linalg.norm(trained(ino) - stated) < 0.15 * gap
    # Negative control: the same training without a tail goes to the other minimiser, and would fail the line above.
    assert np.linalg.norm(trained(idp) - plain) < 0.15 * gap


def test_the_objective_is_convex():
    weights = rank_weights(Tail(BetaTail(), 40.0), len(POINTS), 0.5)
    distances_along = [np.abs(POINTS[:, 0] - t) for t in np.linspace(-2, 6, 81)]
    falling = [ordered_weighted_average(losses, weights) for losses in distances_along]
    assert (np.diff(falling, 2) > -1e-9).all()
    rising = [ordered_weighted_average(losses, weights[::-1]) for losses in distances_along]
    assert (np.diff(rising, 2) < -1e-6).any(), "with rising weights it is not convex: the check can fail"
