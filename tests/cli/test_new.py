"""`inosgd new --from`: a study of one's own table, from its header and from what its user says is public."""

from __future__ import annotations

import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inosgd.data import pieces
from inosgd.study import draft
from inosgd.study.draft import declared
from inosgd.study.recognition import kind_by_name

SAID = (
    "--target", "outcome", "--owner", "hospital", "--budget", "2", "--budget", "A=0.5", "--classes", "good,bad",
    "--column", "age=0,120", "--column", "sex=f,m", "--column", "weight (kg)=20,250",
    "--column", "visit_date=2019-01-01,2021-12-31",
)  # fmt: skip


def table(rows=150, delimiter=",", *, gaps=False):
    """Visits with an id, a date, a truth, decimals and a remark."""
    rng = np.random.default_rng(0)
    lines = [["patient_id", "visit_date", "age", "sex", "is_smoker", "weight (kg)", "remarks", "outcome", "hospital"]]
    for row in range(rows):
        age = "" if gaps and row % 10 == 3 else str(rng.integers(18, 90))
        weight = f"{rng.uniform(50, 99):.1f}".replace(".", "," if delimiter == ";" else ".")
        date = f"2020-0{rng.integers(1, 10)}-11"
        said = f"says that {row} is more than {row - 1}"
        lines.append([f"P{row:04d}", date, age, rng.choice(["f", "m"]), rng.choice(["yes", "no"]), weight, said])
        lines[-1] += [rng.choice(["good", "bad"]), rng.choice(["A", "B", "C"])]
    return "\n".join(delimiter.join(map(str, line)) for line in lines) + "\n"


def written(tmp_path):
    return tomllib.loads((tmp_path / "study.toml").read_text())


def test_a_study_of_a_table_passes_check(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table())
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", *SAID)
    assert outcome.code == 0, outcome.err
    study = written(tmp_path)
    assert study["data"]["ignore"] == ["patient_id", "remarks"]
    assert study["data"]["features"] == {
        "visit_date": {"date": ["2019-01-01", "2021-12-31"]},
        "age": [0, 120],
        "sex": ["f", "m"],
        "is_smoker": "boolean",
        "weight (kg)": [20, 250],
    }
    assert study["budgets"]["owners"] == {"A": 0.5, "B": 2.0, "C": 2.0}
    assert "'patient_id' looks like an id, and is left out" in outcome.err
    checked = inosgd("check", "study.toml")
    assert checked.code == 0, checked.err
    assert "Nothing would stop this training" in checked.out


def test_numbers_that_would_be_classes_are_pointed_out(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table())
    asked = ("new", "study.toml", "--from", "visits.csv", "--owner", "hospital", "--budget", 2, "--unaccounted-ranges")
    weights = inosgd(*asked, "--target", "weight (kg)")
    assert (
        "'weight (kg)' looks numeric, and is predicted as a class; for a number give --task regression" in weights.err
    )
    for said in (("--target", "outcome"), ("--target", "weight (kg)", "--task", "regression")):
        (tmp_path / "study.toml").unlink()
        outcome = inosgd(*asked, *said)
        assert outcome.code == 0, outcome.err
        assert "as a class" not in outcome.err


def test_what_must_be_said_is_listed_at_once(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table())
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", "--owner", "hospital")
    assert outcome.code == 2
    for words in ("--target COLUMN", "--budget E", "--column NAME=..., but those for --target: a range LOW,HIGH"):
        assert words in outcome.err
    assert "for each of visit_date, age, sex, " in outcome.err
    assert "'weight (kg)'" in outcome.err
    assert outcome.err.count("boolean, or ignore") == 1
    for known in ("patient_id", "is_smoker", "hospital=", "--owner"):
        assert known not in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["visits.csv"]


def test_private_columns_are_not_read(inosgd, tmp_path, monkeypatch):
    """Only the column of owners is; with --look-at-rows the first rows of all columns are, and it says so."""
    read = []
    real = pieces.table_pieces
    monkeypatch.setattr(
        draft, "table_pieces", lambda path, wanted, *more: read.extend(wanted) or real(path, wanted, *more)
    )
    (tmp_path / "visits.csv").write_text(table())
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", *SAID)
    assert read == ["hospital"]
    assert "no budget accounts" not in outcome.err
    read.clear()
    outcome = inosgd("new", "looked.toml", "--from", "visits.csv", *SAID, "--look-at-rows")
    assert "age" in read
    assert "no budget accounts for that" in outcome.err


def test_what_is_written_does_not_depend_on_private_cells(inosgd, tmp_path):
    """Other ages, weights and outcomes, the same study; the control shows that looking at rows would see them."""
    (tmp_path / "visits.csv").write_text(table())
    inosgd("new", "one.toml", "--from", "visits.csv", *SAID)
    inosgd("new", "looked.toml", "--from", "visits.csv", *SAID, "--look-at-rows")
    (tmp_path / "visits.csv").write_text(table(gaps=True))
    inosgd("new", "other.toml", "--from", "visits.csv", *SAID)
    inosgd("new", "looked-again.toml", "--from", "visits.csv", *SAID, "--look-at-rows")
    text = {path.stem: path.read_text() for path in tmp_path.glob("*.toml")}
    assert text["one"] == text["other"]
    assert text["looked"] != text["looked-again"]


def test_rows_tell_decimal_commas_and_missing_values(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table(delimiter=";", gaps=True))
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", *SAID, "--look-at-rows")
    assert outcome.code == 0, outcome.err
    study = written(tmp_path)
    assert (study["data"]["delimiter"], study["data"]["decimal"]) == (";", ",")
    assert study["data"]["features"]["age"] == {"range": [0, 120], "missing": "indicator"}
    checked = inosgd("check", "study.toml")
    assert checked.code == 0, checked.err


def test_unaccounted_ranges_are_left_to_the_training_and_said(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table())
    said = ("--target", "outcome", "--owner", "hospital", "--budget", "2")
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", *said, "--unaccounted-ranges")
    assert outcome.code == 0, outcome.err
    data = written(tmp_path)["data"]
    assert data["unaccounted_scaling"] is True
    assert data["features"]["age"] == "numeric"
    assert data["features"]["sex"] == "categorical"
    checked = inosgd("check", "study.toml")
    assert checked.code == 0, checked.err
    assert "unaccounted" in checked.out.lower() or "no budget accounts" in checked.out


def test_answers_in_a_file(inosgd, tmp_path):
    (tmp_path / "visits.csv").write_text(table())
    (tmp_path / "answers.toml").write_text(
        'target = "outcome"\nowner = "hospital"\nunit = "patient_id"\nclasses = ["good", "bad"]\nepsilon = 3.0\n'
        'missing = "indicator"\ndrop_missing = ["outcome"]\n[budgets]\nA = 1.0\n'
        '[columns]\nage = [0, 120]\nsex = ["f", "m"]\n"weight (kg)" = "20,250"\nvisit_date = "ignore"\n'
    )
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", "--answers", "answers.toml", "--budget", "B=5")
    assert outcome.code == 0, outcome.err
    study = written(tmp_path)
    assert study["data"]["unit"] == "patient_id"
    assert study["data"]["drop_missing"] == ["outcome"]
    assert study["data"]["features"]["is_smoker"] == {"boolean": True, "missing": "indicator"}
    assert study["budgets"]["owners"] == {"A": 1.0, "B": 5.0, "C": 3.0}
    assert inosgd("check", "study.toml").code == 0


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_other_tasks(inosgd, tmp_path, task):
    header, *rows = table().splitlines()
    lines = [f"{header},drinks", *(f"{row},{place % 2}" for place, row in enumerate(rows))]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    target = "weight (kg)" if task == "regression" else "is_smoker,drinks"
    said = [*SAID[2:8], "--column", "age=0,120", "--column", "sex=f,m", "--column", "outcome=good,bad"]
    said += ["--column", "visit_date=ignore", "--column", "weight (kg)=20,250", "--task", task, "--target", target]
    said += ["--column", "drinks=boolean"] if task == "regression" else []
    outcome = inosgd("new", "study.toml", "--from", "visits.csv", *said)
    assert outcome.code == 0, outcome.err
    assert written(tmp_path)["task"].get("range", [20, 250]) == [20, 250]
    checked = inosgd("check", "study.toml")
    assert checked.code == 0, checked.err


def test_a_terminal_is_asked(inosgd, tmp_path, monkeypatch):
    (tmp_path / "visits.csv").write_text(table())
    replies = iter(
        ["no such column", "outcome", "hospital", "much", "1.5", "2019-01-01,2021-12-31", "0,120", "f,m", "20,250"]
    )
    asked = []
    monkeypatch.setattr("inosgd.cli.drafting.sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("inosgd.cli.new.typer.prompt", lambda text, **_: asked.append(text) or next(replies))
    outcome = inosgd("new", "study.toml", "--from", "visits.csv")
    assert outcome.code == 0, outcome.err
    assert asked[0] == asked[1] == "The column to predict"
    assert set(written(tmp_path)["budgets"]["owners"].values()) == {1.5}
    assert next(replies, None) is None


def test_a_parquet_file_in_another_folder(inosgd, tmp_path):
    (tmp_path / "data").mkdir()
    columns = {"age": [20.0 + row for row in range(60)], "ill": ["yes", "no"] * 30, "clinic": ["A", "B", "C"] * 20}
    pq.write_table(pa.table(columns), tmp_path / "data/cases.parquet")
    outcome = inosgd(
        "new", "study.toml", "--from", "data/cases.parquet", "--target", "ill", "--owner", "clinic", "--budget", "1",
        "--column", "age=0,120",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert written(tmp_path)["data"]["path"] == "data/cases.parquet"
    assert inosgd("check", "study.toml").code == 0


def test_names_that_toml_would_misread(inosgd, tmp_path):
    name = 'a "b" \\ c = [d] # é'
    cells = "\n".join(f"{row},{'yn'[row % 2]},{'AB'[row % 2]}" for row in range(60))
    (tmp_path / "visits.csv").write_text('"' + name.replace('"', '""') + '",ill,owner.of.it\n' + cells + "\n")
    (tmp_path / "answers.toml").write_text("columns.'" + name + "' = [0, 60]\n")
    outcome = inosgd(
        "new", "study.toml", "--from", "visits.csv", "--target", "ill", "--owner", "owner.of.it", "--budget", "1",
        "--answers", "answers.toml",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert written(tmp_path)["data"]["features"] == {name: [0, 60]}


def test_names_and_short_forms():
    kinds = {"patientID": "id", "MRN": "id", "admitted_at": "date", "dateOfBirth": None, "has_insurance": "boolean"}
    assert {name: kind_by_name(name) for name in kinds} == kinds
    assert declared("x", '["0", "1"]') == ["0", "1"]
    assert declared("x", "{ range = [0, 1], missing = 0 }") == {"range": [0, 1], "missing": 0}


WRONG = {
    "no such column": (
        ["--target", "outcom"],
        "--target='outcom': visits.csv has no such column; did you mean 'outcome'?",
    ),
    "no such owner": (["--budget", "D=1"], "there is no such owner in visits.csv"),
    "range upside down": (["--column", "age=120,0"], "column age='120,0': a range is the lower number"),
    "no declaration": (["--column", "age=old"], "column age='old': give a range such as [0, 120]"),
    "column without value": (["--column", "age"], "--column 'age': write NAME=VALUE"),
    "budget as text": (["--budget", "A=much"], "--budget A 'much': give a number"),
    "negative epsilon": (["--budget", "-1"], "greater than 0"),
    "same column twice": (["--owner", "outcome"], "target, owner and unit are different columns"),
    "unit of the example": (["--unit"], "--answer unit="),
    "answers that are not there": (["--answers", "none.toml"], "--answers='none.toml': cannot be read"),
    "answers without sense": (["--answers", "visits.csv"], "visits.csv: this is not valid TOML"),
    "unknown answer": (["--answers", "answers.toml"], "there is no such answer; did you mean 'target'?"),
    "no such table": (["--from", "nothing.csv"], "nothing.csv: there is no such file"),
    "no table": (["--from", "answers.toml"], "tables are files ending in .csv, .tsv or .parquet"),
    "not a study": (["study.txt"], "study files end in .toml"),
    "it is there": (["there.toml"], "it already exists"),
    "delta of one": (["--answer", "delta=1"], "--answer delta=1.0: give a number below 1"),
    "header twice": (["--from", "twice.csv"], "two columns are called 'age'"),
    "no owner in any row": (["--from", "empty.csv"], "no row of empty.csv has a value there"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_error(inosgd, tmp_path, name):
    """The last of an option counts, so each of these spoils one thing."""
    (tmp_path / "visits.csv").write_text(table())
    (tmp_path / "twice.csv").write_text(table().replace("sex", "age", 1))
    (tmp_path / "empty.csv").write_text(table(1).replace(",A\n", ",\n").replace(",B\n", ",\n").replace(",C\n", ",\n"))
    (tmp_path / "answers.toml").write_text("targets = 3\n")
    (tmp_path / "there.toml").write_text("")
    more, words = WRONG[name]
    study = [] if more[0].endswith((".txt", ".toml")) else ["study.toml"]
    before = sorted(tmp_path.rglob("*"))
    outcome = inosgd("new", *study, "--from", "visits.csv", *SAID, *more)
    assert outcome.code == 2, outcome
    assert words in outcome.err
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


def test_options_of_a_table_need_one(inosgd, tmp_path):
    assert "--from: name your table" in inosgd("new", "study.toml", "--target", "x").err
    assert list(tmp_path.iterdir()) == []
