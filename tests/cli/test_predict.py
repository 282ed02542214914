"""`inosgd predict`: all probabilities, columns that are kept, rows that cannot be used, files larger than memory."""

from __future__ import annotations

import csv
import datetime
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from inosgd.data import pieces
from inosgd.study.from_file import study_from
from inosgd.study.prediction import predict
from inosgd.study.reading import read_study
from inosgd.study.running import begin_training, create_run, finish, prepare
from tests.cli.test_bad_studies import ARRAYS, arrays
from tests.study.writers import IMAGE_STUDY, table_text, write_images, write_study

HEADER = "row,prediction,probability,probability_no,probability_yes,problem"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(write_study(tmp_path_factory.mktemp("finished")))


def trained(study):
    prepared = prepare(study_from(read_study(study)))
    run = create_run(study.parent / "run", prepared)
    with run.lock() as locked:
        finish(locked, prepared, begin_training(locked, prepared), every=20)
    return run.path / "model"


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def test_all_probabilities_are_written(inosgd, tmp_path, model):
    (tmp_path / "new.csv").write_text(table_text(20, seed=4))
    outcome = inosgd("predict", model, "new.csv")
    assert outcome.out.splitlines()[0] == HEADER
    for row in rows_of(outcome.out):
        chances = {name: float(row[f"probability_{name}"]) for name in ("yes", "no")}
        assert sum(chances.values()) == pytest.approx(1, abs=2e-6)
        assert row["prediction"] == max(chances, key=chances.get)
        assert float(row["probability"]) == max(chances.values())
        assert row["problem"] == ""


BAD = "id,age,sex,dose\na,30,f,0.5\nb,old,f,0.5\nc,31,x,0.5\nd,32,m,\ne,33,m,1\nf,34\ng,old,x,\n"


def test_rows_that_cannot_be_used_say_why(inosgd, tmp_path, model):
    (tmp_path / "new.csv").write_text(BAD)
    outcome = inosgd("predict", model, "new.csv", "--keep", "id,dose", "-o", "out.csv")
    assert outcome.code == 0, outcome.err
    rows = rows_of((tmp_path / "out.csv").read_text())
    assert [row["row"] for row in rows] == list("1234567")
    assert [row["id"] for row in rows] == ["a", "b", "c", "d", "e", "", "g"]
    assert [bool(row["prediction"]) for row in rows] == [True, False, False, False, True, False, False]
    assert [row["problem"] for row in rows] == [
        "",
        "age: 'old' is not a number",
        "sex: 'x' is none of the column's categories",
        "dose: '' is empty",
        "",
        "has 2 cells and the header 4",
        "age: 'old' is not a number",
    ]
    assert "5 of 7 rows have no prediction" in outcome.err
    assert "2 x age: is not a number" in outcome.err


def test_good_rows_are_predicted_as_if_there_were_no_bad_ones(inosgd, tmp_path, model):
    (tmp_path / "bad.csv").write_text(BAD)
    (tmp_path / "good.csv").write_text(
        "".join(line + "\n" for line in BAD.splitlines() if line[:2] in ("id", "a,", "e,"))
    )
    bad, good = (rows_of(inosgd("predict", model, name, "--keep", "id").out) for name in ("bad.csv", "good.csv"))
    wanted = {row["id"]: row["probability_yes"] for row in good}
    assert {row["id"]: row["probability_yes"] for row in bad if row["prediction"]} == wanted


def test_problems_can_be_refused(inosgd, tmp_path, model):
    (tmp_path / "new.csv").write_text(BAD)
    outcome = inosgd("predict", model, "new.csv", "-o", "out.csv", "--refuse-problems")
    assert outcome.code == 2
    assert "column 'age', row 2: 'old' is not a number" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_nothing_is_written_if_nothing_can_be_used(inosgd, tmp_path, model):
    (tmp_path / "new.csv").write_text("age,sex,dose\nold,f,1\nolder,f,1\n")
    outcome = inosgd("predict", model, "new.csv", "-o", "out.csv")
    assert outcome.code == 2
    assert "nothing in new.csv can be used" in outcome.err
    assert "(2 such cells, in rows 1, 2)" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_a_late_failure_leaves_nothing(inosgd, tmp_path, model, monkeypatch):
    """The second piece of the file cannot be read: neither a file nor anything on standard output."""
    (tmp_path / "new.csv").write_text(table_text(2000))
    real, seen = pieces._piece, []

    def failing(*arguments):
        seen.append(arguments)
        if len(seen) > 1:
            raise OSError("the disk is gone")
        return real(*arguments)

    monkeypatch.setattr(pieces, "_piece", failing)
    monkeypatch.setattr(pieces, "BLOCK", 4096)
    outcome = inosgd("predict", model, "new.csv", "-o", "out.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "the disk is gone" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]
    seen.clear()
    assert inosgd("predict", model, "new.csv").out == ""


def test_kept_columns_give_way_to_nothing(inosgd, tmp_path, model):
    """Columns of the table may be called as those of the predictions are."""
    (tmp_path / "new.csv").write_text("row,problem,prediction,age,sex,dose\n7,none,yes,30,f,0.5\n")
    outcome = inosgd("predict", model, "new.csv", "--keep", "row", "--keep", "problem,prediction")
    names = "_row,row,problem,prediction,predicted_prediction,probability,probability_no,probability_yes,_problem"
    assert outcome.out.splitlines()[0] == names
    assert outcome.out.splitlines()[1].startswith("1,7,none,yes,")
    missing = inosgd("predict", model, "new.csv", "--keep", "nothing")
    assert "there is no column 'nothing'" in missing.err


def test_every_format_gives_the_same(inosgd, tmp_path, model):
    rows = [line.split(",") for line in table_text(50, seed=3).splitlines()]
    columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    typed = {
        name: [float(x) for x in cells] if name in ("age", "dose") else list(cells) for name, cells in columns.items()
    }
    (tmp_path / "a.csv").write_text(table_text(50, seed=3))
    (tmp_path / "a.tsv").write_text(table_text(50, seed=3).replace(",", "\t"))
    pq.write_table(pa.table(typed), tmp_path / "a.parquet", row_group_size=7)
    lines = [json.dumps(dict(zip(typed, row, strict=True))) for row in zip(*typed.values(), strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    found = {ending: inosgd("predict", model, f"a.{ending}") for ending in ("csv", "tsv", "parquet", "jsonl")}
    assert all(each.code == 0 for each in found.values()), found
    assert len({each.out for each in found.values()}) == 1


def test_json_lines_in_and_out(inosgd, tmp_path, model):
    good = {"id": 17, "age": 30, "sex": "f", "dose": 0.5}
    lines = [
        json.dumps(good),
        "",
        "{not json",
        "[1, 2]",
        json.dumps({**good, "age": [1]}),
        json.dumps({**good, "dose": None}),
    ]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    outcome = inosgd("predict", model, "new.jsonl", "--keep", "id", "--json")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["row"] for row in rows] == [1, 3, 4, 5, 6]
    assert [row["id"] for row in rows] == [17, None, None, None, 17]
    assert rows[0]["problem"] is None
    problems = [row["problem"] for row in rows[1:]]
    assert problems == [
        "is not JSON", "is no JSON object", "age: holds a list or an object", "dose: 'None' is missing"
    ]  # fmt: skip
    (tmp_path / "typo.jsonl").write_text(json.dumps({"agee": 30, "sex": "f", "dose": 1}))
    assert "there is no column 'age'" in inosgd("predict", model, "typo.jsonl").err


def test_values_of_parquet_are_kept_as_they_are(inosgd, tmp_path, model):
    table = {"age": [30], "sex": ["f"], "dose": [0.5], "weight": [70.123456789], "when": [datetime.date(2024, 5, 1)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    outcome = inosgd("predict", model, "a.parquet", "--keep", "weight,when")
    assert outcome.out.splitlines()[1].startswith("1,70.123456789,2024-05-01,")


def test_memory_does_not_grow_with_the_file(tmp_path, model, monkeypatch):
    """Ten times the rows, about the same peak; the control holds all parts and needs several times as much."""
    monkeypatch.setattr(pieces, "BLOCK", 1 << 15)

    def peak(rows, *, hold):
        path = tmp_path / f"{rows}.csv"
        path.write_text(table_text(rows))
        tracemalloc.start()
        parts = [part if hold else None for part in predict(model, path).parts]
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(parts) > 1
        return most

    peak(2000, hold=False)  # warms up
    small, large = peak(2000, hold=False), peak(20_000, hold=False)
    assert large < 1.5 * small
    assert peak(20_000, hold=True) > 2 * large


def test_arrays_that_cannot_be_used(inosgd, tmp_path):
    (tmp_path / "a.npz").write_bytes(arrays(inputs=np.random.default_rng(0).uniform(0, 1, (30, 4))))
    (tmp_path / "study.toml").write_text(ARRAYS.replace("expected_batch_size = 30", "expected_batch_size = 10"))
    saved = trained(tmp_path / "study.toml")
    new = np.full((2100, 4), 0.5)
    new[1500, 2], new[3] = np.nan, 7.0
    np.savez(tmp_path / "new.npz", inputs=new)
    outcome = inosgd("predict", saved, "new.npz")
    rows = rows_of(outcome.out)
    assert [int(row["row"]) for row in rows] == list(range(1, 2101))
    assert {row["row"]: row["problem"] for row in rows if row["problem"]} == {"1501": "it holds NaN or infinity"}
    assert "4 values of 'inputs' lie outside the range" in outcome.err


def test_images_that_cannot_be_used(inosgd, tmp_path):
    write_images(tmp_path / "pictures", count=30)
    (tmp_path / "study.toml").write_text(IMAGE_STUDY.replace("expected_batch_size = 30", "expected_batch_size = 10"))
    saved = trained(tmp_path / "study.toml")
    (tmp_path / "new").mkdir()
    Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(tmp_path / "new/a.png")
    (tmp_path / "new/b.png").write_bytes(b"hello")
    rows = rows_of(inosgd("predict", saved, "new").out)
    assert [row["file"] for row in rows] == ["a.png", "b.png"]
    assert rows[0]["prediction"]
    assert rows[1]["problem"].startswith("cannot be read as an image")
    assert "only tables have columns" in inosgd("predict", saved, "new", "--keep", "id").err
