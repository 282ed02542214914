"""Tables as programs export them: ids, dates, missing values; in every format, from training to prediction."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from inosgd.study.data import held_out_rows, load_data
from inosgd.study.reading import read_study
from tests.cli.test_train import interrupted_run
from tests.study.writers import DROPPED, EXPORTED, exported_rows, write_exported, write_study

NO_REPORT = ("--json", "--no-report")
PATHS = {"csv": "cases.csv", "tsv": "cases.tsv", "parquet": "cases.parquet", "on disk": "cases.parquet"}
SHORT = ("steps = 12", "steps = 3")


def study_of(folder, kind: str, rows=None, *changes):
    more = "\non_disk = true" if kind == "on disk" else ""
    path = write_study(folder, EXPORTED, DROPPED, ('"cases.csv"', f'"{PATHS[kind]}"{more}'), SHORT, *changes)
    write_exported(folder / PATHS[kind], exported_rows() if rows is None else rows)
    return path


def loaded(folder, kind: str, rows=None):
    folder.mkdir(exist_ok=True)
    return load_data(read_study(study_of(folder, kind, rows)))


def everything(data):
    return data.examples.take(np.arange(len(data.examples)))


def test_every_format_gives_the_same_data(tmp_path):
    found = [loaded(tmp_path / kind.replace(" ", "-"), kind) for kind in PATHS]
    dropped = sum(row["ill"] is None or row["owner"] is None for row in exported_rows())
    assert dropped > 3
    for data in found:
        assert len(data.examples) + len(data.held_out) == 90 - dropped
        assert data.owners == found[0].owners
        assert data.encoding == found[0].encoding
        torch.testing.assert_close(everything(data), everything(found[0]), rtol=0, atol=0)
        torch.testing.assert_close(data.held_out.inputs[:], found[0].held_out.inputs[:], rtol=0, atol=0)
        assert data.held_out.groups.tolist() == found[0].held_out.groups.tolist()


@pytest.mark.parametrize("kind", ["csv", "on disk"])
@pytest.mark.parametrize("column", ["ill", "owner"])
def test_a_row_that_is_left_out_moves_no_other(tmp_path, kind, column):
    """Not from held out to trained on, nor its inputs: leaving it out is a matter of that row alone."""
    rows = exported_rows()
    chosen = held_out_rows(90, 0.25, 2)
    row = next(n for n in range(5, 90) if not chosen[n] and rows[n]["ill"] and rows[n]["owner"])
    place = sum(not chosen[n] and rows[n]["ill"] is not None and rows[n]["owner"] is not None for n in range(row))
    before = loaded(tmp_path / "before", kind, rows)
    rows[row] |= {column: None}
    after = loaded(tmp_path / "after", kind, rows)
    stay = np.delete(np.arange(len(before.examples)), place)
    torch.testing.assert_close(before.examples.take(stay), everything(after), rtol=0, atol=0)
    assert before.owners.assignment[stay].tolist() == after.owners.assignment.tolist()
    torch.testing.assert_close(before.held_out.inputs[:], after.held_out.inputs[:], rtol=0, atol=0)
    counted = [held_out_rows(90 - less, 0.25, 2)[row:].tolist() for less in (0, 1)]
    assert counted[0][1:] != counted[1]  # the negative control: coins by place among the rows that stay


@pytest.mark.parametrize("kind", PATHS)
def test_it_trains_joins_resumes_and_predicts(inosgd, tmp_path, monkeypatch, kind):
    rows = [row | {"comment": "none"} for row in exported_rows()]
    study_of(tmp_path, kind, rows)
    interrupted_run(inosgd, tmp_path, monkeypatch, 2)
    name = f"new.{PATHS[kind].split('.')[1]}"
    write_exported(tmp_path / name, [row | {"owner": row["owner"] and "newcomer"} for row in exported_rows(40)])
    joined = inosgd("budgets", "run", "--add", "newcomer=5", "--data", name, "--yes")
    assert joined.code == 0, joined.err
    outcome = inosgd("resume", "run", *NO_REPORT)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["unused_columns"] == ["comment"]
    assert 20 < found["owners"]["newcomer"]["examples"] < 40
    unlabelled = [{key: row[key] for key in ("smoker", "visit", "age", "sex", "dose")} for row in exported_rows(30)]
    write_exported(tmp_path / name, unlabelled)
    predicted = inosgd("predict", "run/model", name)
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) == 31
    card = (tmp_path / "run/model/model-card.md").read_text()
    assert "| visit | date | 2019-01-01 to 2021-12-31; cycles year, week, day | 2020-06-01 | no |" in card
    assert "| sex | categorical | f, m, None | indicator | no |" in card


def test_people_are_told_of_columns_that_are_not_used(inosgd, tmp_path):
    study_of(tmp_path, "csv", None, ('ignore = ["id"]\n', ""))
    outcome = inosgd("train", "study.toml", "--out", "run", "--no-report")
    assert outcome.code == 0, outcome.err
    assert "Columns that are neither used nor listed in data.ignore: id" in outcome.out


def test_only_texts_that_are_listed_are_missing(tmp_path):
    path = study_of(tmp_path, "csv", None, ("\nignore", '\nmissing = ["?"]\nignore'))
    with pytest.raises(ValueError, match=r"column 'age', row .*: 'NA' is not a number; .* list it in data.missing"):
        load_data(read_study(path))


def test_decimal_commas(inosgd, tmp_path):
    study_of(tmp_path, "csv", None, ("\nignore", '\ndelimiter = ";"\ndecimal = ","\nthousands = "."\nignore'))
    content = (tmp_path / "cases.csv").read_text().replace(",", ";")
    lines = [line.split(";") for line in content.splitlines()]
    numbers = [lines[0].index(name) for name in ("age", "dose")]
    for line in lines[1:]:
        for place in numbers:
            line[place] = line[place].replace(".", ",")
    (tmp_path / "cases.csv").write_text("\n".join(map(";".join, lines)) + "\n")
    data = load_data(read_study(tmp_path / "study.toml"))
    (tmp_path / "plain").mkdir()
    torch.testing.assert_close(everything(data), everything(loaded(tmp_path / "plain", "csv")), rtol=0, atol=0)
    assert inosgd("train", "study.toml", "--out", "run", *NO_REPORT).code == 0
    predicted = inosgd("predict", "run/model", "cases.csv").out  # the delimiter is saved with the model
    assert len(predicted.splitlines()) == 91
    (tmp_path / "tabs.csv").write_text("\n".join(map("\t".join, lines)) + "\n")
    assert inosgd("predict", "run/model", "tabs.csv", "--delimiter", "\t").out == predicted


BAD = {
    "missing target": (
        ('drop_missing = ["ill", ', "drop_missing = ["),
        ["column 'ill', row", 'data.drop_missing = ["ill"]'],
    ),
    "missing owner": (('"ill", "owner"]', '"ill"]'), ["column 'owner', row", 'data.drop_missing = ["owner"]']),
    "no value for missing": (
        ('dose = { range = [-3, 3], missing = "indicator" }', "dose = [-3, 3]"),
        ["column 'dose', row", 'data.features.dose = { range = [-3, 3], missing = "indicator" }'],
    ),
    "drop of a column that is not used": (('"owner"]', '"id"]'), ['data.drop_missing = "id"', "not used"]),
    "ignore of a column that is used": (('["id"]', '["age"]'), ['data.ignore = "age"', "data.features.age uses"]),
    "one mark for two": (("\nignore", '\nthousands = "."\nignore'), ['data.thousands = "."', "not the decimal one"]),
    "decimal of no sense": (("\nignore", '\ndecimal = "x"\nignore'), ['data.decimal = "x"', "choose one of"]),
    "one category": (('["f", "m", "None"]', '["f"]'), ["data.features.sex", "at least two categories"]),
    "date outside": (("2021-12-31", "2020-12-31"), ["column 'visit', row", "[2019-01-01, 2020-12-31]"]),
    "nothing left": (
        ('"ill", "owner"]', '"ill", "owner"]\nmissing = ["yes", "no", "NA", "?"]'),
        ["cases", "every row lacks a value in one of data.drop_missing, 'ill', 'owner'"],
    ),
}


@pytest.mark.parametrize("kind", ["csv", "on disk"])
@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(inosgd, tmp_path, name, kind):
    change, words = BAD[name]
    study_of(tmp_path, kind, None, change)
    outcome = inosgd("train", "study.toml", "--out", "run")
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()
    for word in words:
        assert word in outcome.err
