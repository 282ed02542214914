"""The condition of Thm. 3.1 along a study's training."""

from __future__ import annotations

from functools import partial

import pytest

from inosgd.compare.conditions import condition_along
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import ASSIGNMENTS, synthetic
from inosgd.paper.experiments import methods
from inosgd.paper.registry import study_of


def tiny(name: str, data_set: str):
    study = study_of(name, "laptop", partial(synthetic, ASSIGNMENTS[name.split("-")[0]], data_set))
    return study.changed({"steps": 4, "expected_batch_size": 20.0})


def test_the_strict_owner_against_the_liberal_one():
    found = condition_along(tiny("CF-EN", "fish-vehicles-embeddings"), methods("sample")[1], 0)
    assert (found["owner"], found["other"]) == ("fish", "vehicles")
    assert [point["step"] for point in found["points"]] == [1, 2, 3, 4]
    assert all(point["signal_ratio"] > 1 for point in found["points"])
    assert found["measured_on"] == "held-out examples"
    uniform = condition_along(tiny("CF-EN", "fish-vehicles-embeddings"), methods("sample")[0], 0)
    assert all(point["signal_ratio"] == pytest.approx(1) for point in uniform["points"])


def test_owners_of_single_examples_have_no_pair():
    with pytest.raises(InvalidArgumentError, match="every example is its own owner"):
        condition_along(tiny("CFS-PC", "cifar-100"), methods("uniform")[0], 0)
