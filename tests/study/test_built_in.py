"""The studies: who owns what, and what is held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inosgd.analysis.summary import MeanSd
from inosgd.compare.comparison import OwnerSummary, Summary, verdict
from inosgd.compare.entrant import entrants
from inosgd.errors import InvalidArgumentError
from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, METHODS, method_named
from inosgd.study.built_in import STUDIES


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_splits_are_repeatable_disjoint_and_complete(study):
    data, again, other = study.split(0), study.split(0), study.split(1)
    assert torch.equal(data.inputs, again.inputs)
    assert not torch.equal(data.inputs, other.inputs)
    assert data.owners.table == again.owners.table == other.owners.table  # stratified: sizes do not vary
    seen = {row.numpy().tobytes() for row in data.inputs}
    assert sum(row.numpy().tobytes() in seen for row in data.held_out_inputs) <= 1  # no example on both sides
    assert data.inputs.min() >= -1
    assert data.inputs.max() <= 1
    assert len(data.owners) == len(data.inputs) == len(data.targets)
    assert set(data.held_out_groups) == {0, 1}


def test_owners_of_digits():
    data = STUDIES["digits"].split(3)
    np.testing.assert_array_equal(data.owners.assignment, data.targets.numpy() // 5)
    np.testing.assert_array_equal(data.held_out_groups, data.held_out_targets.numpy() // 5)


def test_malignant_cases_belong_to_the_strict_owner():
    data = STUDIES["breast-cancer"].split(3)
    np.testing.assert_array_equal(data.owners.assignment, data.targets.numpy())  # 0 is malignant
    assert data.owners.table.budget(0).epsilon < data.owners.table.budget(1).epsilon


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_models_start_alike_for_the_same_seed(study):
    state = torch.get_rng_state()
    one, same, other = study.model(0), study.model(0), study.model(1)
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (one, same, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_the_variant_goes_to_the_papers_individual_methods_only():
    entered = {entrant.label: entrant.method.variant for entrant in entrants(list(METHODS.values()), "scale")}
    assert entered == {"dp-sgd": "uniform", "idp-sgd": "scale", "ino-sgd": "scale", "ino-sgd-fair": "fair"}


def test_methods_are_rows():
    assert DP_SGD.tail(10.0) is None
    assert IDP_SGD.tail(10.0) is None
    assert INO_SGD.tail(10.0).length == 5.0
    assert INO_SGD_FAIR.importance == INO_SGD.importance
    with pytest.raises(InvalidArgumentError, match="method='adam': choose one of dp-sgd"):
        method_named("adam")


def summary(overall: float, scores: dict[str, float]) -> Summary:
    owners = {name: OwnerSummary(MeanSd(r, 0), MeanSd(1, 0), 1.0, 1.0, {}) for name, r in scores.items()}
    return Summary(MeanSd(overall, 0.0), MeanSd(min(scores.values()), 0.0), owners)


def test_the_verdict_names_the_fairest_and_the_best():
    text = verdict({"idp-sgd": summary(0.9, {"a": 0.5, "b": 0.95}), "ino-sgd": summary(0.8, {"a": 0.75, "b": 0.85})})
    assert (
        "ino-sgd has the highest accuracy for its worst owner (a: 75.0 %), while idp-sgd is best overall (90.0 %)"
        in text
    )
    assert "by -10.0 points and that of the worst owner by +25.0" in text
