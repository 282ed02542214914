"""The condition of Thm. 3.1 while training: against numbers by hand, against what a step does, and its marks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd import (
    IDP_SGD,
    Budget,
    Owners,
    Plan,
    ReferenceEngine,
    SeededSource,
    Trainer,
    TrainingState,
    fit,
    supervised,
    train_step,
)
from inosgd.analysis.condition import ConditionPoint, HeldOut, condition_every, measure_condition
from inosgd.analysis.initial_drop import InitialDrop, Period, initial_drop, unmet_periods
from inosgd.analysis.worked_example import MEAN_GRADIENTS, expected_clipped_gradient, expected_descent, worked_example
from inosgd.clipping import MARGIN
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.engine import Examples
from inosgd.plan import Phase, Terms

NAMES = ("strict", "liberal", "third")


def inner_products(model: nn.Module, gradients: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is the example itself."""
    return (model(torch.ones(len(gradients), 1, dtype=gradients.dtype)) * gradients).sum(1)


def point_model(width: int = 2) -> nn.Module:
    return nn.Linear(1, width, bias=False).double()


def trainer_for(
    examples: Examples, labels: np.ndarray, rates=(1.0, 1.0), thresholds=(1.0, 1.0), losses=inner_products, steps=3
) -> Trainer:
    """Owners without privacy demands, and no noise, so that a step is what the formulas say."""
    budgets = {NAMES[row]: Budget(epsilon=math.inf, delta=1e-5) for row in range(len(rates))}
    owners = Owners.from_labels([NAMES[row] for row in labels], budgets)
    terms = Terms.for_owners(owners.table, np.array(rates), np.array(thresholds), 0.0)
    plan = Plan(owners.table, (Phase(steps, terms),), "rdp", np.full(len(rates), math.inf))
    return Trainer(plan, owners, examples, losses, IDP_SGD)


def by_hand(vectors, labels, held_vectors, held_labels, rates, thresholds):
    """Cosines, left sides and descents with plain loops."""
    sizes = [np.sum(labels == row) for row in range(len(rates))]
    strengths = [q * size * c for q, size, c in zip(rates, sizes, thresholds, strict=True)]
    means, clipped = [], []
    for row, c in enumerate(thresholds):
        own = held_vectors[held_labels == row]
        means.append(own.mean(0))
        clipped.append(np.mean([g / max(1, np.linalg.norm(g) / c) for g in own], axis=0))
    pull = sum(q * size * g for q, size, g in zip(rates, sizes, clipped, strict=True))
    descents = [m @ pull / np.linalg.norm(m) / s for m, s in zip(means, strengths, strict=True)]
    cosines = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in means] for a in means]
    return np.array(cosines), np.array(strengths), np.array(descents)


@given(seed=st.integers(0, 10_000))
def test_against_plain_loops(seed):
    rng = np.random.default_rng(seed)
    labels, held_labels = np.append(rng.integers(0, 3, 9), [0, 1, 2]), np.append(rng.integers(0, 3, 6), [0, 1, 2])
    vectors, held = rng.normal(0, 1, (12, 4)), rng.normal(0.3, 1, (9, 4))
    rates, thresholds = rng.uniform(0.1, 1, 3), rng.uniform(0.2, 3, 3)
    trainer = trainer_for(torch.from_numpy(vectors), labels, rates, thresholds)
    found = measure_condition(trainer, point_model(4), 1, HeldOut(torch.from_numpy(held), held_labels))
    cosines, strengths, descents = by_hand(vectors, labels, held, held_labels, rates, thresholds)
    assert found.cosines == pytest.approx(cosines, abs=1e-9)
    assert found.strengths == pytest.approx(strengths)
    assert found.descents == pytest.approx(
        descents, rel=5 * MARGIN, abs=20 * MARGIN * strengths.max() / strengths.min()
    )
    pair = found.pair("strict", "third")
    assert pair.left_side == pytest.approx(1 + cosines[0, 2] * strengths[2] / strengths[0])
    assert pair.left_side == pytest.approx(found.left_sides[0, 2])
    assert math.cos(math.radians(pair.angle)) == pytest.approx(cosines[0, 2])
    assert found.pair("third", "strict").signal_ratio == pytest.approx(1 / pair.signal_ratio)


def test_alike_gradients_beyond_their_thresholds_give_the_theorems_left_side():
    directions = np.array([[3.0, 0.0], [-4.0, 3.0]])
    labels = np.array([0, 0, 1, 1, 1])
    trainer = trainer_for(torch.from_numpy(directions[labels]), labels, (0.2, 0.7), (0.5, 1.5))
    held_out = HeldOut(torch.from_numpy(directions), np.array([0, 1]))
    found = measure_condition(trainer, point_model(), 0, held_out)
    ratio = (0.7 * 3 * 1.5) / (0.2 * 2 * 0.5)
    assert found.pair("strict", "liberal").signal_ratio == pytest.approx(ratio)
    assert found.pair("strict", "liberal").left_side == pytest.approx(1 - 0.8 * ratio)
    assert found.descents[0] == pytest.approx(1 - 0.8 * ratio, rel=1e-4)
    assert found.descents[1] == pytest.approx(found.pair("liberal", "strict").left_side, rel=1e-4)


def test_the_descent_is_what_a_step_does_to_the_loss():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    targets = (inputs[:, 0] > 0).long()
    labels = np.repeat([0, 1], [10, 20])
    losses = supervised(F.cross_entropy)
    trainer = trainer_for((inputs, targets), labels, thresholds=(0.1, 0.6), losses=losses)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    point = measure_condition(trainer, model, 0, None, on_training_data_unaccounted=True)
    parameters = list(model.parameters())
    own = [losses(model, (inputs[labels == row], targets[labels == row])).mean() for row in (0, 1)]
    lengths = [
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]).norm().item() for loss in own
    ]
    rate = 1e-6
    state = TrainingState.start(trainer, model, torch.optim.SGD(parameters, lr=rate), SeededSource(0))
    train_step(trainer, state)
    for row in (0, 1):
        after = losses(model, (inputs[labels == row], targets[labels == row])).mean()
        expected = -rate / 30 * lengths[row] * point.strengths[row] * point.descents[row]
        assert (after - own[row]).item() == pytest.approx(expected, rel=1e-3)
        assert point.losses[row] == pytest.approx(own[row].item())


def test_training_data_only_if_asked_for_and_marked():
    vectors, labels = torch.eye(2, dtype=torch.float64), np.array([0, 1])
    trainer, model = trainer_for(vectors, labels), point_model()
    held_out = HeldOut(vectors, labels)
    with pytest.raises(InvalidArgumentError, match="held_out=None: give held-out examples"):
        measure_condition(trainer, model, 0, None)
    with pytest.raises(InvalidArgumentError, match="on_training_data_unaccounted=True: held_out is given too"):
        measure_condition(trainer, model, 0, held_out, on_training_data_unaccounted=True)
    marked = measure_condition(trainer, model, 0, None, on_training_data_unaccounted=True)
    assert marked.unaccounted
    assert marked.pair("strict", "liberal").unaccounted
    assert marked.to_json()["unaccounted"] is True
    assert not measure_condition(trainer, model, 0, held_out).unaccounted


def test_held_out_measurements_do_not_read_the_training_examples():
    class Untouchable:
        def __len__(self) -> int:
            return 2

        def take(self, indices: np.ndarray) -> Examples:
            raise AssertionError("read")

    labels = np.array([0, 1])
    trainer = trainer_for(Untouchable(), labels)
    measure_condition(trainer, point_model(), 0, HeldOut(torch.eye(2, dtype=torch.float64), labels))
    with pytest.raises(AssertionError, match="read"):
        measure_condition(trainer, point_model(), 0, None, on_training_data_unaccounted=True)


def test_edges():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 0.0], [math.nan, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    trainer = trainer_for(vectors, np.array([0, 1, 2, 2]), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    held_out = HeldOut(vectors, np.array([0, 1, 2, 2]))
    found = measure_condition(trainer, point_model(), 3, held_out)
    assert found.step == 3, "after the last step, with the last terms"
    assert math.isnan(found.pair("strict", "liberal").left_side), "no direction, no angle"
    assert found.pair("strict", "third").cosine == pytest.approx(-1), "a gradient that is not finite counts as zero"
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["left_sides"][0][:2] == [None, None]
    few = measure_condition(trainer, point_model(), 0, held_out, owners=["third", "strict", "third"])
    assert few.owners == ("third", "strict")
    assert few.descents == pytest.approx(found.descents[[2, 0]]), "everybody pulls, whoever is looked at"
    with pytest.raises(InvalidArgumentError, match="owner='nobody'"):
        measure_condition(trainer, point_model(), 0, held_out, owners=["nobody"])
    with pytest.raises(InvalidArgumentError, match="owner='nobody': choose one of strict, liberal, third"):
        found.pair("nobody", "strict")
    with pytest.raises(InvalidArgumentError, match="two different owners"):
        found.pair("strict", "strict")
    with pytest.raises(InvalidArgumentError, match="len"):
        HeldOut(vectors, np.array([0]))


def test_an_owner_that_is_never_sampled_is_left_out():
    vectors, labels = torch.eye(2, dtype=torch.float64), np.array([0, 1])
    trainer = trainer_for(vectors, labels, rates=(0.0, 1.0))
    held_out = HeldOut(vectors, labels)
    assert measure_condition(trainer, point_model(), 0, held_out).owners == ("liberal",)
    with pytest.raises(InvalidArgumentError, match="owner='strict': give owners that are trained on"):
        measure_condition(trainer, point_model(), 0, held_out, owners=["strict", "liberal"])


def test_many_owners_must_be_chosen():
    owners = Owners.one_each(np.full(201, math.inf), 1e-5)
    terms = Terms.for_owners(owners.table, np.full(201, 0.5), np.ones(201), 0.0)
    plan = Plan(owners.table, (Phase(1, terms),), "rdp", np.full(201, math.inf))
    trainer = Trainer(plan, owners, torch.ones(201, 2, dtype=torch.float64), inner_products, IDP_SGD)
    held_out = HeldOut(torch.ones(201, 2, dtype=torch.float64), np.arange(201))
    with pytest.raises(InvalidArgumentError, match="there are 201; name at most 200"):
        measure_condition(trainer, point_model(), 0, held_out)


def test_during_training_and_the_mode_is_put_back():
    vectors, labels = torch.eye(2, dtype=torch.float64), np.array([0, 1])
    trainer = trainer_for(vectors, labels, steps=5)
    model, points = point_model().train(), []
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), SeededSource(0))
    fit(trainer, state, callbacks=[condition_every(2, trainer, points, HeldOut(vectors, labels))])
    assert [point.step for point in points] == [2, 4]
    assert model.training
    assert points[0].cosines[0, 1] == pytest.approx(0)


def test_any_engine_gives_the_same():
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 2)))
    labels = np.arange(8) % 2
    one = trainer_for(vectors, labels, (0.3, 0.9), (0.4, 2.0))
    other = Trainer(one.plan, one.owners, vectors, inner_products, IDP_SGD, ReferenceEngine())
    held_out = HeldOut(vectors, labels)
    first, second = (measure_condition(trainer, point_model(), 0, held_out) for trainer in (one, other))
    assert first.cosines == pytest.approx(second.cosines)
    assert first.descents == pytest.approx(second.descents)


# --- the worked example of App. C.1.2


def test_the_papers_crossing():
    example = worked_example()
    assert example.cosine == pytest.approx(-12 / 13)
    assert round(example.first_crossing, 3) == 1.067
    assert round(example.first_left_side, 4) == 0.0148
    assert expected_clipped_gradient(MEAN_GRADIENTS[0], 1.0).round(3).tolist() == [0.532, -0.83]
    assert expected_clipped_gradient(MEAN_GRADIENTS[1], 1.0).round(3).tolist() == [-0.816, 0.566]


def test_on_which_side_of_the_crossing_the_losses_fall():
    example = worked_example()
    assert expected_descent(0, example.first_crossing - 1e-3) > 0 > expected_descent(0, example.first_crossing + 1e-3)
    assert expected_descent(1, example.second_crossing - 1e-3) < 0 < expected_descent(1, example.second_crossing + 1e-3)
    assert example.second_left_side < 0, "a negative left side, and yet the loss begins to fall"


@pytest.mark.parametrize(("second_threshold", "falls"), [(1.06, True), (1.075, False)])
def test_the_instrument_sees_the_crossing(second_threshold, falls):
    """Examples on a fine grid of the two rectangles, as if they were data."""
    ticks = (np.arange(60) + 0.5) / 30 - 1
    grid = np.stack(np.meshgrid(50 * ticks, 5 * ticks), -1).reshape(-1, 2)
    vectors = torch.from_numpy(np.concatenate([grid + mean for mean in MEAN_GRADIENTS]))
    labels = np.repeat([0, 1], len(grid))
    trainer = trainer_for(vectors, labels, thresholds=(1.0, second_threshold))
    found = measure_condition(trainer, point_model(), 0, HeldOut(vectors, labels))
    assert (found.descents[0] > 0) == falls
    assert found.pair("strict", "liberal").left_side == pytest.approx(1 - 12 / 13 * second_threshold, abs=1e-6)


# --- the minority initial drop


def point(step: int, cosine: float) -> ConditionPoint:
    return ConditionPoint(
        step, ("a", "b"), [[1, cosine], [cosine, 1]], [1.0, 4.0], [1.0, 1.0], [1.0, 1.0], unaccounted=False
    )


def test_periods_in_which_the_condition_does_not_hold():
    cosines = [0.1, -0.25, -0.9, -0.1, math.nan, 0.3, -0.5, -0.6]
    points = [point(10 * index, cosine) for index, cosine in enumerate(cosines)]
    assert unmet_periods(points, "a", "b") == [Period(10, 30), Period(40, 50), Period(60, None)]
    assert unmet_periods(points, "b", "a") == [Period(40, 50)], "the stronger owner is hardly moved"
    assert unmet_periods(points[:1], "a", "b") == []
    assert unmet_periods(points[:1], "a", "b", right_side=1.5) == [Period(0, None)]


def test_where_a_drop_starts_turns_and_ends():
    steps = [0, 10, 20, 30, 40, 50]
    falling = [2.0, 1.5, 1.2, 1.0, 0.9, 0.8]
    assert initial_drop(steps, [2.0, 2.5, 2.7, 2.2, 1.9, 1.5], falling) == InitialDrop(0, 20, 40)
    assert initial_drop(steps, [2.0, 1.9, 2.4, 2.5, 2.3, 2.0], falling) == InitialDrop(10, 30, None)
    assert initial_drop(steps, [2.0, 1.9, 1.7, 1.5, 1.4, 1.3], falling) is None
    assert initial_drop(steps, [2.0, 2.01, 1.7, 1.5, 1.4, 1.3], falling, tolerance=0.05) is None
    rising = falling[::-1]
    assert initial_drop(steps, [2.0, 2.5, 2.7, 2.2, 1.9, 1.5], rising) is None, "nobody gains: it is no such drop"
    with pytest.raises(InvalidArgumentError, match="tolerance"):
        initial_drop(steps, falling, falling, tolerance=math.nan)
    with pytest.raises(InvalidArgumentError, match="len"):
        initial_drop(steps, falling[1:], falling)
