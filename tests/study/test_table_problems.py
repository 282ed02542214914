"""All problems of a table are said at once, with how many cells each concerns."""

from __future__ import annotations

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
    assert "study.toml: 4 problems" in said
    assert "column 'age', row 25" in said
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
