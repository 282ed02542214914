"""Broken inputs of commands beyond `train`: one clear error with its fix, no traceback, nothing left behind.

`test_bad_studies.py` has those of study files, tables, budgets, images and arrays; `test_new.py` those of `new --from`.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_predict import trained
from tests.study.writers import table_text, write_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model, and everything that the cases below spoil."""
    folder = tmp_path_factory.mktemp("broken")
    trained(write_study(folder))
    (folder / "good.csv").write_text(table_text(5))
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("age,sex,dose\n")
    (folder / "open.csv").write_text('age,sex,dose\n30,"f,1\n31,f,1\n')
    (folder / "latin.csv").write_bytes("age,sex,dose\n30,fé,1\n".encode("latin-1"))
    (folder / "semicolons.csv").write_text(table_text(5).replace(",", ";"))
    (folder / "twice.csv").write_text("age,age,sex,dose\n30,30,f,1\n")
    (folder / "no.parquet").write_bytes(b"PAR1 and then nothing")
    pq.write_table(pa.table({"age": [[1]], "sex": ["f"], "dose": [1.0]}), folder / "lists.parquet")
    (folder / "lines.jsonl").write_text("[1]\n[2]\n")
    (folder / "long.jsonl").write_text(json.dumps({"age": "9" * (1 << 24), "sex": "f", "dose": 1}))
    (folder / "table.xlsx").write_bytes(b"PK")
    (folder / "torn").mkdir()
    (folder / "torn/model.json").write_text((folder / "run/model/model.json").read_text()[:100])
    (folder / "owners.csv").write_text("owner,epsilon,size\na,1,10\nb,one,10\n")
    (folder / "negative.csv").write_text("owner,epsilon,size\na,1,10\nb,-1,10\n")
    (folder / "half.csv").write_text("owner,epsilon,size\na,1,1.5\n")
    (folder / "nobody.csv").write_text("owner,epsilon,size\n")
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00owner")
    return folder


MODEL = "run/model"
PLAN = ("--batch", 5, "--steps", 10)
CASES = {
    "predict: no model": (("predict", "nowhere", "good.csv"), "there is no model"),
    "predict: a torn model": (("predict", "torn", "good.csv"), "torn"),
    "predict: no table": (("predict", MODEL, "none.csv"), "none.csv: there is no such file; correct the path"),
    "predict: an empty file": (("predict", MODEL, "empty.csv"), "empty.csv: the file is empty; give a table"),
    "predict: a header alone": (("predict", MODEL, "header.csv"), "header.csv: there are no rows in it; add some"),
    "predict: an open quote": (("predict", MODEL, "open.csv"), "opens a quote and does not close it; close it"),
    "predict: Latin-1": (("predict", MODEL, "latin.csv"), "line 2 is not UTF-8 text; save the file"),
    "predict: semicolons": (("predict", MODEL, "semicolons.csv"), "--delimiter"),
    "predict: a column twice": (("predict", MODEL, "twice.csv"), "two columns are called 'age'; rename one"),
    "predict: no Parquet": (("predict", MODEL, "no.parquet"), "cannot be read as Parquet"),
    "predict: lists": (("predict", MODEL, "lists.parquet"), "column 'age' holds values of type list"),
    "predict: no objects": (("predict", MODEL, "lines.jsonl"), "line 1 is no JSON object; write {...}"),
    "predict: an endless line": (("predict", MODEL, "long.jsonl"), "write one object to a line"),
    "predict: a spreadsheet": (("predict", MODEL, "table.xlsx"), ".jsonl, .ndjson or .parquet; convert it"),
    "predict: kept nothing": (("predict", MODEL, "good.csv", "--keep", "agee"), "did you mean 'age'?"),
    "predict: it is there": (("predict", MODEL, "good.csv", "-o", "good.csv"), "already exists; choose a new file"),
    "predict: no folder": (("predict", MODEL, "good.csv", "-o", "x/y.csv"), "there is no folder 'x'; create it first"),
    "predict: a long delimiter": (("predict", MODEL, "good.csv", "--delimiter", "::"), "--delimiter="),
    "plan: epsilon as text": (("plan", "--owners", "owners.csv", *PLAN), "line 3: epsilon='one' is not a number"),
    "plan: negative": (("plan", "--owners", "negative.csv", *PLAN), "line 3: epsilon='-1': give a number greater"),
    "plan: half an example": (("plan", "--owners", "half.csv", *PLAN), "size='1.5': give a whole number"),
    "plan: no owner": (("plan", "--owners", "nobody.csv", *PLAN), "no owner; add a line for each"),
    "plan: no text": (("plan", "--owners", "bytes.csv", *PLAN), "--owners='bytes.csv': cannot be read as UTF-8"),
    "plan: both": (("plan", "--owners", "owners.csv", "--epsilon", "1", *PLAN), "give either a file or --epsilon"),
    "check: no study": (("check", "none.toml"), "write an example with `inosgd new none.toml`"),
    "check: a table": (("check", "good.csv"), "not valid TOML"),
    "ledger: no run": (("ledger", "nowhere"), "nowhere"),
    "report: no run": (("report", "nowhere"), "nowhere"),
    "predict: into itself": (("predict", MODEL, "good.csv", "-o", "."), "--out='.': it already exists; choose"),
    "train: below a file": (
        ("train", "study.toml", "--out", "good.csv/run"),
        "it is there already; choose another place",
    ),
    "train: an unknown key": (("train", "study.toml", "--set", "rate=1"), "--set='rate=1': choose a key of learning"),
    "train: not a number": (("train", "study.toml", "--set", "learning_rate=nan"), "learning_rate=nan: give a finite"),
    "train: no step": (("train", "study.toml", "--steps", 0), "--steps=0: give a whole number of at least 1"),
    "account: no folder": (
        ("account", "create", "sqlite:///x/a.db", "--study", "study.toml"),
        "create the folder first",
    ),
    "account: no book": (("account", "show", "sqlite:///none.db"), "make one with `inosgd account create`"),
    "account: no database": (("account", "show", "sqlite:///good.csv"), "it cannot be read as a book"),
    "account: another kind": (("account", "show", "mysql://host/a"), "give sqlite:///accounts.db or postgresql://"),
    "serve: no database": (("serve", "sqlite:///good.csv"), "it cannot be read as a book"),
    "budgets: an unknown owner": (("budgets", "run", "--set", "nobody=1"), "--set='nobody': there is no such owner"),
    "publish: no checkpoint": (("publish", "run", "--step", 3), "--step=3: there are checkpoints after steps"),
    "publish: it is there": (("publish", "run", "--to", "torn"), "--to='torn': it already exists; choose a new folder"),
    "watch: without rest": (("watch", "run", "--every", 0), "--every=0.0: give a finite number greater than 0"),
    "compare: an unknown method": (("compare", "study.toml", "--methods", "sgd"), "choose one of dp-sgd, idp-sgd"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_error_and_nothing_left(inosgd, monkeypatch, folder, name):
    command, words = CASES[name]
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    outcome = inosgd(*command)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.count("error:") == 1
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert sorted(folder.rglob("*")) == before


def test_the_good_ones_are_good(inosgd, monkeypatch, folder):
    """The control: what the cases spoil works as it is."""
    monkeypatch.chdir(folder)
    assert inosgd("predict", MODEL, "good.csv").code == 0
    assert inosgd("plan", "--epsilon", "1", "--sizes", "10", *PLAN).code == 0
