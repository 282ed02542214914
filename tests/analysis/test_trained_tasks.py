"""Regression and labels, trained privately from end to end, and what is found about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

from inosgd import INO_SGD, Budget, Owners, PlanConfig, SeededSource, Trainer, TrainingState, fit, make_plan
from inosgd.analysis.evaluation import evaluate
from inosgd.analysis.findings import findings
from inosgd.analysis.task import multi_label, regression, scaled
from inosgd.ledger.ledger import Ledger
from inosgd.training import every

STEPS = 60


def disease():
    """Progression of diabetes after a year, 25 to 346 units, from ten measurements; declared as 0 to 400."""
    inputs, targets = load_diabetes(return_X_y=True)
    task = regression(["progression"], ranges=[(0.0, 400.0)])
    return task, 20 * inputs, scaled(task, targets[:, None])


def digits():
    """Two things that a digit may be."""
    inputs, classes = load_digits(return_X_y=True)
    return multi_label(["odd", "large"]), inputs / 8 - 1, np.stack([classes % 2 == 1, classes >= 5], axis=1)


def trained(problem, epsilon: float, learning_rate: float = 1.0):
    """Findings and the last evaluation of a linear model, by two owners; a quarter of the examples is held out."""
    task, inputs, targets = problem()
    inputs, targets = torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32)
    held_out = np.arange(len(inputs)) % 4 == 0
    names = np.where(np.arange(len(inputs)) % 3 == 0, "a", "b")
    budgets = {name: Budget(epsilon=epsilon, delta=1e-5) for name in ("a", "b")}
    owners = Owners.from_labels(names[~held_out], budgets)
    arguments = {"variant": "sample", "expected_batch_size": 64, "clipping_threshold": 0.5, "accountant": "rdp"}
    plan = make_plan(owners.table, PlanConfig(steps=STEPS, **arguments))
    torch.manual_seed(0)
    model = nn.Linear(inputs.shape[1], task.outputs)
    trainer = Trainer(plan, owners, (inputs[~held_out], targets[~held_out]), task.losses, INO_SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(0), Ledger.for_plan(plan))
    groups, curve = (names[held_out] == "b").astype(np.int64), []
    judged = (inputs[held_out], targets[held_out], groups, ("a", "b"))

    def record(state):
        curve.append(evaluate(task, state.model, *judged, state.step, measure=state.step == STEPS))

    fit(trainer, state, callbacks=[every(STEPS // 10, record)])
    return findings(curve, (), plan, sum(each.numel() for each in model.parameters())), curve[-1]


@pytest.mark.parametrize(("problem", "least"), [(disease, 0.2), (digits, 0.75)], ids=["numbers", "labels"])
def test_with_a_large_budget_it_learns_and_nothing_is_found(problem, least):
    found, final = trained(problem, 50.0)
    assert final.worst >= least
    assert [each.text for each in found] == []


@pytest.mark.parametrize("problem", [disease, digits], ids=["numbers", "labels"])
def test_with_hardly_any_budget_noise_drowns_it(problem):
    found, final = trained(problem, 0.02)
    assert [each.kind for each in found][:1] == ["drowned"], final
