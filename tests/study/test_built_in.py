"""The studies: who owns what, and what is held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits

from inosgd.compare.entrant import entrants
from inosgd.data.tables import read_table
from inosgd.errors import InvalidArgumentError
from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, METHODS, method_named
from inosgd.study.built_in import STUDIES
from tests.data.test_tables import write_parquet


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_splits_are_repeatable_disjoint_and_complete(study):
    data, again, other = study.split(0), study.split(0), study.split(1)
    assert torch.equal(data.examples.inputs, again.examples.inputs)
    assert not torch.equal(data.examples.inputs, other.examples.inputs)
    assert data.owners.table == again.owners.table == other.owners.table  # stratified: sizes do not vary
    seen = {row.numpy().tobytes() for row in data.examples.inputs}
    assert sum(row.numpy().tobytes() in seen for row in data.held_out.inputs) <= 1  # no example on both sides
    assert data.examples.inputs.min() >= -1
    assert data.examples.inputs.max() <= 1
    assert len(data.owners) == len(data.examples.inputs) == len(data.examples)
    assert set(data.held_out.groups) == {0, 1}


def test_owners_of_digits():
    data = STUDIES["digits"].split(3)
    np.testing.assert_array_equal(data.owners.assignment, data.examples.targets.numpy() // 5)
    np.testing.assert_array_equal(data.held_out.groups, data.held_out.targets.numpy() // 5)


def test_malignant_cases_belong_to_the_strict_owner():
    data = STUDIES["breast-cancer"].split(3)
    np.testing.assert_array_equal(data.owners.assignment, data.examples.targets.numpy())  # 0 is malignant
    assert data.owners.table.budget(0).epsilon < data.owners.table.budget(1).epsilon


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_models_start_alike_for_the_same_seed(study):
    state = torch.get_rng_state()
    data = study.split(0)
    one, same, other = study.model(data, 0), study.model(data, 0), study.model(data, 1)
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (one, same, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_tables_are_encoded_as_the_studys_own_examples(study, tmp_path):
    bunch = {"digits": load_digits, "breast-cancer": load_breast_cancer}[study.name]()
    columns = dict(zip(map(str, bunch.feature_names), bunch.data.T.tolist(), strict=True))
    encoding, data = study.split(0).encoding, study.split(0)
    table = read_table([write_parquet(tmp_path / "t.parquet", **columns)], dict.fromkeys(encoding.columns, ""))
    own = torch.cat([data.examples.inputs, data.held_out.inputs])
    assert sorted(encoding.encode(table).tolist()) == sorted(own.tolist())


def test_the_variant_goes_to_the_papers_individual_methods_only():
    entered = {entrant.label: entrant.method.variant for entrant in entrants(list(METHODS.values()), ["scale"])}
    paper = {"dp-sgd": "uniform", "idp-sgd": "scale", "ino-sgd": "scale"}
    assert entered == paper | {"ino-sgd-fair": "fair", "threshold": "threshold", "auto": "fair"}


def test_rows_of_several_variants_are_told_apart():
    rows = entrants([DP_SGD, IDP_SGD], ["sample", "scale"])
    assert [row.label for row in rows] == ["dp-sgd", "idp-sgd", "idp-sgd (scale)"]


def test_methods_are_rows():
    assert DP_SGD.tail(10.0) is None
    assert IDP_SGD.tail(10.0) is None
    assert INO_SGD.tail(10.0).length == 5.0
    assert INO_SGD_FAIR.importance == INO_SGD.importance
    with pytest.raises(InvalidArgumentError, match="method='adam': choose one of dp-sgd"):
        method_named("adam")
