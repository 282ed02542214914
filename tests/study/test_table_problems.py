"""All problems of a table are said at once, with how many cells each concerns."""

from __future__ import annotations

import numpy as np
import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study

STUDY = """
[data]
kind = "table"
path = ["visits.csv"]
target = "ill"
owner = "hospital"
classes = ["no", "yes"]
held_out = { fraction = 0.2 }
[data.features]
age = [0, 120]
ward = ["a", "b"]
[budgets]
delta = 1e-5
[budgets.owners]
north = 1.0
south = 2.0
[model]
name = "mlp"
[training]
method = "auto"
steps = 5
expected_batch_size = 8
clipping_threshold = 1.0
learning_rate = 0.1
learning_rate_unit = "noise"
"""
GOOD = "30,a,no,north"


def error_for(tmp_path, rows):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,ill,hospital", *[GOOD] * 20, *rows]))
    with pytest.raises(InvalidArgumentError) as raised:
        study_from(read_study(tmp_path / "study.toml")).split(0)
    return str(raised.value)


def test_every_column_is_looked_at(tmp_path):
    said = error_for(tmp_path, ["old,a,no,north", "200,c,,west", "x,a,no,east", "40,a,no,west", ",b,no,south"])
    assert "study.toml: 6 problems" in said
    assert "column 'age', row 25: '' is empty" in said
    assert "column 'age', row 21: 'old' is not a number" in said
    assert "(2 such cells, in rows 21, 23)" in said
    assert "column 'age', row 22: '200' lies outside the declared range" in said
    assert "column 'ward', row 22: 'c' is none of the column's categories" in said
    assert "column 'ill', row 22: '' is empty" in said
    assert "owners without a budget: 'west' (2 rows), 'east' (1 rows)" in said


def test_cells_with_the_same_problem_are_counted(tmp_path):
    said = error_for(tmp_path, ["old,a,no,north"] * 7)
    assert "problems" not in said
    assert "row 21: 'old'" in said
    assert "(7 such cells, in rows 21, 22, 23, 24, 25, ...)" in said


def test_a_single_problem_is_said_as_before(tmp_path):
    said = error_for(tmp_path, ["30,a,no,west"])
    assert "'west' is an owner without a budget" in said
    assert "such cells" not in said


def test_a_single_unknown_owner_is_said_beside_others_and_counted(tmp_path):
    said = error_for(tmp_path, ["30,a,no,west", "old,a,no,west"])
    assert "study.toml: 2 problems" in said
    assert "'west' is an owner without a budget" in said
    assert "(2 such cells, in rows 21, 22)" in said
    assert error_for(tmp_path, ["30,a,no,west", "31,a,no,east"]).count("without a budget") == 1


def test_rows_of_another_length_are_counted(tmp_path):
    assert "row 21 has 2 cells and the header 4" in error_for(tmp_path, ["30,a", "31", "32,a,no,north,x"])
    assert "(3 such rows)" in error_for(tmp_path, ["30,a", "31", "32,a,no,north,x"])


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_budgets_may_be_separated_otherwise_than_the_data(tmp_path, mark):
    owners = "[budgets.owners]\nnorth = 1.0\nsouth = 2.0\n"
    (tmp_path / "study.toml").write_text(STUDY.replace(owners, 'file = "budgets.csv"\n'))
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,ill,hospital", *[GOOD, "40,b,yes,south"] * 20]))
    decimal = "." if mark == "," else ","
    (tmp_path / "budgets.csv").write_text(f"owner{mark}epsilon\nnorth{mark}0{decimal}5\nsouth{mark}2\n")
    table = study_from(read_study(tmp_path / "study.toml")).split(0).owners.table
    assert {name: budget.epsilon for name, budget, _ in table} == {"north": 0.5, "south": 2.0}


def test_empty_text_may_be_a_category(tmp_path):
    """It is missing unless it is declared."""
    rows = ["30,,no,north", "31,a,yes,south"] * 10
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,ill,hospital", *rows]))
    (tmp_path / "study.toml").write_text(STUDY.replace('ward = ["a", "b"]', 'ward = ["", "a"]'))
    inputs = study_from(read_study(tmp_path / "study.toml")).split(0).examples.take(np.arange(10))[0]
    assert {tuple(row[1:].tolist()) for row in inputs} == {(1.0, 0.0), (0.0, 1.0)}
    (tmp_path / "study.toml").write_text(STUDY)
    with pytest.raises(InvalidArgumentError, match="'' is empty"):
        study_from(read_study(tmp_path / "study.toml")).split(0)
