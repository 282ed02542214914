"""Tasks: losses, scores, predictions, and what is refused."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import r2_score
from torch import nn

from inosgd.analysis.score import SCORES, score_named
from inosgd.analysis.task import (
    HUBER_CORNER,
    Task,
    classification,
    example_losses,
    in_units,
    multi_label,
    predictions,
    regression,
    scaled,
)
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine

TASKS = {
    "classification": classification(["a", "b", "c"]),
    "balanced": classification(["a", "b", "c"], balanced=True),
    "multi-label": multi_label(["a", "b", "c"]),
    "regression": regression(["x", "y", "z"]),
    "scaled": regression(["x", "y", "z"], ranges=[(0, 1), (-5, 5), (10, 20)]),
    "huber": regression(["x", "y", "z"], loss="huber"),
}


def targets_of(task: Task, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if task.kind == "classification":
        return torch.randint(0, 3, (count,), generator=generator)
    numbers = torch.randn(count, 3, generator=generator)
    return (numbers > 0).float() if task.kind == "multi-label" else numbers


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_are_plain_values(task):
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    assert pickle.loads(pickle.dumps(task)) == task
    assert task.outputs == 3
    assert task.losses is Task.from_json(task.to_json()).losses  # what engines checked of it stays known
    assert task.scoring is SCORES[task.score]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_engines_agree_on_every_loss(task):
    """With a batch of one as the oracle: gradients of plain autograd, example by example."""
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(4, 3), torch.randn(5, 4), targets_of(task, 5)
    expected = torch.zeros(15)
    for row in range(5):
        loss = task.losses(model, (inputs[row : row + 1], targets[row : row + 1]))
        assert loss.shape == (1,)
        assert example_losses(task, model(inputs), targets)[row].item() == pytest.approx(loss.item(), rel=1e-5)
        grads = torch.autograd.grad(loss.sum(), list(model.parameters()))
        expected += torch.cat([grad.flatten() for grad in grads])
    for engine in (ReferenceEngine(), BookkeepingEngine()):
        with engine.on(model, task.losses, (inputs, targets)) as gradients:
            measured = gradients.measure()
            total = gradients.weighted_sum(np.ones(5))
        assert measured.losses.shape == (5,)
        assert torch.allclose(total.float(), expected, atol=1e-5)


def test_losses_by_hand():
    outputs = torch.tensor([[2.0, -1.0], [0.0, 3.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    expected = F.softplus(torch.tensor([[-2.0, -1.0], [0.0, -3.0]])).mean(1)
    assert torch.allclose(example_losses(multi_label(["a", "b"]), outputs, labels), expected)
    assert torch.allclose(example_losses(regression(["a", "b"]), outputs, labels), torch.tensor([1.0, 2.5]))
    far = HUBER_CORNER * (1 - HUBER_CORNER / 2)
    found = example_losses(regression(["a"], loss="huber"), torch.tensor([[1.0], [0.1]]), torch.zeros(2))
    assert torch.allclose(found, torch.tensor([far, 0.005]))


def test_targets_without_a_column_are_not_broadcast():
    """mse_loss makes n x n errors of (n, 1) outputs and (n,) targets."""
    outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
    assert example_losses(regression(["a"]), outputs, targets).tolist() == [0.0, 0.0]
    with pytest.warns(UserWarning, match="target size"):
        assert F.mse_loss(outputs, targets, reduction="none").shape == (2, 2)  # the control


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_scaling_there_and_back(values):
    task = regression(["a"], ranges=[(-10.0, 30.0)])
    column = np.array(values)[:, None]
    there = scaled(task, column)
    assert (np.abs(there) <= 1).all()
    assert in_units(task, there) == pytest.approx(np.clip(column, -10, 30), abs=1e-9)


def test_predictions_of_every_kind():
    outputs = np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert predictions(TASKS["classification"], outputs)["prediction"] == ["a", "a"]
    assert predictions(TASKS["classification"], outputs)["probability"][1] == pytest.approx(1 / 3)
    assert predictions(TASKS["multi-label"], outputs)["b"] == [0.5, 0.5]
    assert predictions(TASKS["scaled"], outputs)["z"] == [15.0, 15.0]
    assert predictions(TASKS["regression"], outputs)["x"] == [3.0, 0.0]
    found = predictions(TASKS["classification"], outputs)
    assert [found[f"probability_{name}"][1] for name in TASKS["classification"].names] == pytest.approx([1 / 3] * 3)
    assert set(predictions(TASKS["classification"], outputs[:0])) == set(found)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: classification(["a"]), "name at least 2"),
        (lambda: multi_label(["a", "a"]), "each once"),
        (lambda: Task("clustering", ("a", "b"), "accuracy", "cross-entropy"), "kind='clustering': choose one of"),
        (lambda: Task("regression", ("a",), "accuracy", "squared error"), "score='accuracy': choose one of R²"),
        (lambda: regression(["a"], loss="cross-entropy"), "choose one of squared error, huber"),
        (lambda: regression(["a", "b"], ranges=[(0, 1)]), "one range for each target"),
        (lambda: regression(["a"], ranges=[(1, 1)]), "two finite numbers"),
        (lambda: regression(["a"], ranges=[(0, float("nan"))]), "two finite numbers"),
        (lambda: score_named("charm"), "score='charm': choose one of accuracy"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def test_r2_has_one_yardstick_for_all_owners():
    generator = np.random.default_rng(0)
    targets = generator.normal(size=(60, 1))
    outputs = targets + 0.3 * generator.normal(size=(60, 1))
    score = SCORES["R²"].value
    assert score(outputs, targets, targets) == pytest.approx(r2_score(targets, outputs))
    parts = [slice(0, 10), slice(10, 60)]
    scores = [score(outputs[part], targets[part], targets) for part in parts]
    assert np.average(scores, weights=[10, 50]) == pytest.approx(r2_score(targets, outputs))
    assert score(outputs[:1], targets[:1], targets) <= 1  # a single example has a score like any other


def test_r2_of_targets_that_do_not_vary_and_of_models_that_diverged():
    score, varied, constant = SCORES["R²"].value, np.array([[0.0], [1.0]]), np.full((2, 1), 4.0)
    assert score(constant, constant, constant) == 1.0
    assert score(constant + 0.1, constant, constant) == -1.0
    assert score(np.full((2, 1), np.nan), varied, varied) == score(varied + 1e300, varied, varied) == -1.0
    both = np.hstack([varied, constant])
    assert score(both + np.array([0.0, 1.0]), both, both) == 1.0  # the constant one is left out


@given(st.sampled_from(sorted(SCORES)), st.floats(-3, 3))
def test_scores_are_shown_within_their_range(name, value):
    score = SCORES[name]
    assert 0 <= score.place(value) <= 1
    assert score.place(score.lowest) == 0
    assert score.place(1.0) == 1
    assert ("%" in score.shown(value)) == score.is_share == score.change(value).endswith("points")
