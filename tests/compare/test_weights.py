"""Importance weights by owner along a study's training."""

from __future__ import annotations

import numpy as np
import pytest

from inosgd.compare.entrant import Entrant
from inosgd.compare.weights import held_out_weights, weights_along
from inosgd.method import IDP_SGD, INO_SGD
from inosgd.paper.experiments import methods
from inosgd.plan_config import PlanConfig
from inosgd.planning import make_plan
from inosgd.training import Trainer
from tests.compare.test_conditions import tiny


def test_without_a_tail_every_weight_is_one():
    found = weights_along(tiny("CF-EN", "fish-vehicles-embeddings"), methods("sample")[1], 0)
    assert found["steps"] == [1, 2, 3, 4]
    assert found["owners"] == {"fish": [1.0] * 4, "vehicles": [1.0] * 4}


def test_with_a_tail_they_lie_between_zero_and_one():
    found = weights_along(tiny("CF-EN", "fish-vehicles-embeddings"), methods("sample")[2], 0)
    values = np.array(list(found["owners"].values()))
    assert values.shape == (2, 4)
    assert ((values > 0) & (values <= 1)).all()
    assert (values.mean(axis=0) < 1).all()


@pytest.mark.parametrize("method", [IDP_SGD, INO_SGD], ids=lambda method: method.name)
def test_who_is_learnt_loses_importance(method):
    """Half of the expected batch is the tail: Beta(1, 1) over the lower half keeps half of it on average."""
    study = tiny("CF-EN", "fish-vehicles-embeddings")
    data = study.split(0)
    settings = {"steps": 4, "expected_batch_size": 20.0, "clipping_threshold": 0.2, "accountant": "rdp"}
    plan = make_plan(data.owners.table, PlanConfig(variant="uniform", **settings))
    trainer = Trainer(plan, data.owners, data.examples, lambda *_: None, Entrant("x", method).method)
    learnt = np.where(data.held_out.groups == 1, 0.1, 3.0) + 1e-6 * np.arange(len(data.held_out.groups))
    found = held_out_weights(trainer, data, learnt)
    assert found["fish"] == pytest.approx(1.0)
    assert found["vehicles"] == pytest.approx(0.5 if method is INO_SGD else 1.0, abs=0.02)
