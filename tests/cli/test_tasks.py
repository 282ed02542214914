"""Study files for labels and numbers, from training to prediction, through every command that takes a study."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from tests.cli.test_train import interrupted_run
from tests.study.diabetes import TASKS, diabetes_rows, write_diabetes
from tests.study.writers import write_exported

SCORES = {"regression": "R²", "several numbers": "R²", "multi-label": "mean average precision"}


def succeeded(outcome):
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_new_writes_a_study_of_numbers(inosgd, tmp_path):
    assert "442 rows" in succeeded(inosgd("new", "mine.toml", "--task", "regression"))
    study = tmp_path / "mine.toml"
    text = study.read_text()
    assert "@" not in text
    study.write_text(text.replace("steps = 200", "steps = 3"))
    assert "R²" in succeeded(inosgd("train", "mine.toml", "--out", "run", "--no-report"))
    assert inosgd("new", "other.toml", "--task", "poetry").code == 2


@pytest.mark.parametrize("kind", TASKS)
def test_it_trains_joins_resumes_reports_and_predicts(inosgd, tmp_path, monkeypatch, kind):
    write_diabetes(tmp_path, kind)
    interrupted_run(inosgd, tmp_path, monkeypatch, 2)
    write_exported(tmp_path / "new.csv", [row | {"hospital": "newcomer"} for row in diabetes_rows(40)])
    succeeded(inosgd("budgets", "run", "--add", "newcomer=5", "--data", "new.csv", "--yes"))
    found = json.loads(succeeded(inosgd("resume", "run", "--json", "--no-report")))
    assert 20 < found["owners"]["newcomer"]["examples"] < 40
    assert found["unaccounted_scaling"] is False
    succeeded(inosgd("report", "run"))
    assert SCORES[kind] in (tmp_path / "run/report.html").read_text()
    succeeded(inosgd("ledger", "run", "--verify"))
    names = TASKS[kind][0]
    unlabelled = [{key: row[key] for key in ("age", "sex", "bmi", "visit", "lipids")} for row in diabetes_rows(30)]
    write_exported(tmp_path / "unlabelled.csv", unlabelled)
    rows = list(csv.DictReader(succeeded(inosgd("predict", "run/model", "unlabelled.csv")).splitlines()))
    assert list(rows[0]) == ["row", *names, "problem"]
    values = np.array([[float(row[name]) for name in names] for row in rows])
    assert len(values) == 30
    if kind == "multi-label":
        assert ((values > 0) & (values < 1)).all()
    else:
        assert ((values[:, 0] > 20) & (values[:, 0] < 380)).all()  # in units, not from -1 to 1
    card = (tmp_path / "run/model/model-card.md").read_text()
    assert SCORES[kind].lower() in card.lower()
    assert "The set of classes" not in card
    assert ("ranges = [[0.0, 400.0]" in card) == (kind != "multi-label")


def test_a_target_may_be_called_row(inosgd, tmp_path):
    write_diabetes(tmp_path, "regression")
    for name in ("study.toml", "cases.csv"):
        path = tmp_path / name
        path.write_text(path.read_text().replace("progression", "row"))
    succeeded(inosgd("train", "study.toml", "--out", "run", "--no-report"))
    lines = succeeded(inosgd("predict", "run/model", "cases.csv", "--json")).splitlines()
    assert [json.loads(line)["_row"] for line in lines] == list(range(1, len(lines) + 1))
    assert len({json.loads(line)["row"] for line in lines}) > 10


def test_a_model_of_a_built_in_study_predicts_tables(inosgd, tmp_path):
    few = ("--steps", 2, "--set", "accountant=rdp")
    succeeded(inosgd("train", "breast-cancer", *few, "--out", "run", "--no-report"))
    cases = load_breast_cancer()
    write_exported(tmp_path / "new.csv", [dict(zip(cases.feature_names, row, strict=True)) for row in cases.data[:9]])
    rows = list(csv.DictReader(succeeded(inosgd("predict", "run/model", "new.csv")).splitlines()))
    assert len(rows) == 9
    assert {row["prediction"] for row in rows} <= {"malignant", "benign"}


ONE_KIND = pytest.mark.parametrize("kind", ["regression", pytest.param("multi-label", marks=pytest.mark.long)])


@ONE_KIND
def test_it_is_compared_tuned_and_audited(inosgd, tmp_path, kind):
    write_diabetes(tmp_path, kind)
    few = ("--steps", 2, "--jobs", 1)
    compared = (
        "compare",
        "study.toml",
        "--seeds",
        1,
        "--methods",
        "idp-sgd,ino-sgd",
        "--condition",
        "--out",
        "compared",
    )
    said = succeeded(inosgd(*compared, *few))
    assert SCORES[kind] in said
    assert "hospital_5" in said
    assert SCORES[kind] in (tmp_path / "compared/report.html").read_text()
    tuned = ("tune", "study.toml", "--public", "--try", "learning_rate=0.2,0.5", "--jobs", 1, "--json")
    assert len(json.loads(succeeded(inosgd(*tuned)))["ranking"]) == 2
    succeeded(inosgd("audit", "lira", "study.toml", "--models", 16, *few, "--out", "lira"))
    canary = ("audit", "canary", "study.toml", "--runs", 12, "--canaries", 40, *few)
    succeeded(inosgd(*canary, "--out", "canary"))


@ONE_KIND
def test_controls_of_audits_need_no_classes(inosgd, tmp_path, kind):
    """Also the one that draws until every class is in the batch: without classes all examples are of one."""
    write_diabetes(tmp_path, kind)
    canary = ("audit", "canary", "study.toml", "--runs", 12, "--canaries", 40, "--steps", 2, "--jobs", 1)
    succeeded(inosgd(*canary, "--control", "rejection"))
