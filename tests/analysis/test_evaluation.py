"""Evaluation per owner's group."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.analysis.evaluation import evaluate
from inosgd.analysis.guarantees import group_guarantees, owner_risks
from inosgd.errors import InvalidArgumentError


class Certain(nn.Module):
    """Always says class 0."""

    def forward(self, inputs):
        return torch.tensor([[2.0, 0.0]]).expand(len(inputs), 2)


def test_recall_and_loss_of_each_group():
    targets = torch.tensor([0, 0, 1, 1, 0])
    groups = np.array([0, 0, 0, 1, 1])
    found = evaluate(Certain(), torch.zeros(5, 1), targets, groups, ("a", "b", "nobody"), step=7)
    assert found.overall == pytest.approx(3 / 5)
    assert found.owners["a"].recall == pytest.approx(2 / 3)
    assert found.owners["b"].recall == found.worst == pytest.approx(1 / 2)
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert found.owners["b"].loss == pytest.approx((right + wrong) / 2)
    assert "nobody" not in found.owners
    assert found.to_json()["step"] == 7


def test_the_models_mode_is_put_back():
    """Also that of a BatchNorm which is kept out of training mode."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2), nn.BatchNorm1d(2)).train()
    model[2].eval()
    evaluate(model, torch.zeros(2, 1), torch.tensor([0, 1]), np.array([0, 0]), ("a",), step=0)
    assert [module.training for module in model.modules()] == [True, True, True, False]
    with pytest.raises(InvalidArgumentError, match=r"len\(targets\)=1"):
        evaluate(model, torch.zeros(2, 1), torch.tensor([0]), np.array([0, 0]), ("a",), step=0)


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
