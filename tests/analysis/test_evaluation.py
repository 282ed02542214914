"""Evaluation per owner's group, of every kind of task."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.analysis.evaluation import Evaluation, evaluate, judged
from inosgd.analysis.guarantees import group_guarantees, owner_risks
from inosgd.analysis.measures import class_measures
from inosgd.analysis.task import classification, multi_label, regression
from inosgd.errors import InvalidArgumentError

TWO = classification(["no", "yes"])


class Certain(nn.Module):
    """Always says class 0."""

    def forward(self, inputs):
        return torch.tensor([[2.0, 0.0]]).expand(len(inputs), 2)


def test_score_and_loss_of_each_group():
    targets = torch.tensor([0, 0, 1, 1, 0])
    groups = np.array([0, 0, 0, 1, 1])
    found = evaluate(TWO, Certain(), torch.zeros(5, 1), targets, groups, ("a", "b", "nobody"), step=7)
    assert found.overall == pytest.approx(3 / 5)
    assert found.owners["a"].score == pytest.approx(2 / 3)
    assert found.owners["b"].score == found.worst == pytest.approx(1 / 2)
    assert found.worst_owner == "b"
    assert (found.classes, found.members, found.predicted) == ((1.0, 0.0), (3, 2), (5, 0))
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert found.owners["b"].loss == pytest.approx((right + wrong) / 2)
    assert "nobody" not in found.owners
    assert found.to_json()["step"] == 7


def test_balanced_accuracy_is_the_score_of_owners_too():
    targets, groups = torch.tensor([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 1])
    task = classification(["no", "yes"], balanced=True)
    found = evaluate(task, Certain(), torch.zeros(5, 1), targets, groups, ("a", "b"), step=1)
    assert found.overall == 0.5
    assert {name: owner.score for name, owner in found.owners.items()} == {"a": 0.5, "b": 0.0}
    assert found.scored_by == "balanced accuracy"


def outcomes(task, seed=0, count=40):
    """Outputs of a middling model, targets, and three groups, one of them of a single example."""
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 2, (count, task.outputs)).astype(np.float64)
    outputs = targets - 0.5 + generator.normal(size=targets.shape)
    if task.kind == "classification":
        targets = targets.argmax(1)
    return outputs, np.ones(count), targets, np.array([2, *([0, 1] * count)])[:count], ("a", "b", "tiny", "none")


KINDS = {"classes": TWO, "labels": multi_label(["x", "y", "z"]), "numbers": regression(["x"], ranges=[(0, 50)])}


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS)
def test_there_and_back_as_json_without_nan(task):
    found = judged(task, *outcomes(task), step=3, measure=True)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Evaluation.from_json(json.loads(text)) == found
    assert found.overall <= 1
    assert set(found.measures) == set(found.owners["a"].measures)
    assert found.owners["a"].guessing is not None
    along = judged(task, *outcomes(task), step=3)
    assert along.measures == along.owners["a"].measures == {}
    assert along.overall == found.overall


def test_measures_of_owners_are_those_of_their_examples():
    outputs, losses, targets, groups, names = outcomes(TWO)
    found = judged(TWO, outputs, losses, targets, groups, names, step=1, measure=True)
    own = class_measures(outputs[groups == 0], targets[groups == 0])
    assert found.owners["a"].measures == own != found.measures
    assert found.owners["tiny"].measures["roc_auc"] is None
    assert found.owners["tiny"].examples == 1


def test_errors_are_in_the_units_of_the_targets():
    outputs, losses, targets, groups, names = outcomes(KINDS["numbers"])
    found = judged(KINDS["numbers"], outputs, losses, targets, groups, names, step=1, measure=True)
    assert found.measures["mae"] == pytest.approx(25 * np.abs(outputs - targets).mean())


def test_owners_without_any_label_have_no_score():
    task = multi_label(["x", "y"])
    targets = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    arguments = (np.zeros((3, 2)), np.ones(3))
    found = judged(task, *arguments, targets, np.array([0, 0, 1]), ("a", "b"), step=1, measure=True)
    assert list(found.owners) == ["a"]
    with pytest.raises(InvalidArgumentError, match="mean average precision is not defined"):
        judged(task, *arguments, np.zeros((3, 2)), np.array([0, 0, 1]), ("a", "b"), step=1)


def test_held_out_examples_of_no_owner():
    found = judged(TWO, *outcomes(TWO)[:3], np.full(40, -1), ("a",), step=1)
    assert (found.worst, found.worst_half, found.imbalance) == (found.overall, found.overall, 0.0)
    assert found.worst_owner is None
    assert Evaluation.from_json(found.to_json()) == found


def test_the_models_mode_is_put_back():
    """Also that of a BatchNorm which is kept out of training mode."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2), nn.BatchNorm1d(2)).train()
    model[2].eval()
    evaluate(TWO, model, torch.zeros(2, 1), torch.tensor([0, 1]), np.array([0, 0]), ("a",), step=0)
    assert [module.training for module in model.modules()] == [True, True, True, False]
    with pytest.raises(InvalidArgumentError, match=r"len\(targets\)=1"):
        evaluate(TWO, model, torch.zeros(2, 1), torch.tensor([0]), np.array([0, 0]), ("a",), step=0)


def test_groups_that_an_owner_does_not_have_are_left_out():
    table = OwnerTable(("one", "seven", "none"), [1.0, 1.0, 1.0], [1e-5] * 3, [1, 7, 0])
    plan = make_plan(table, PlanConfig(steps=5, variant="scale", expected_batch_size=2, clipping_threshold=1.0))
    assert set(group_guarantees(plan, 0)) == {"1", "all"}
    assert set(group_guarantees(plan, 1)) == {"1", "2", "5", "all"}
    assert group_guarantees(plan, 2) == {}
    seven = group_guarantees(plan, 1)
    assert seven["1"] < seven["2"] < seven["5"] < seven["all"]
    assert seven["1"] == pytest.approx(plan.spent[1], rel=1e-3)
    assert owner_risks(plan, 1).epsilon_at_tenth > plan.spent[1]
