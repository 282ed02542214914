"""Whatever is wrong with a study, its table or its budgets: one clear error, and nothing left behind."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.study.writers import IMAGE_STUDY, STUDY, table_text, write_images, write_study


def outcome_of(inosgd, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    outcome = inosgd("train", "study.toml", "--out", "run")
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err
    assert sorted(tmp_path.rglob("*")) == before  # no run folder, nor anything else
    return outcome


STUDY_ERRORS = {
    "no such section": (('[model]\nname = "mlp"', '[modell]\nname = "mlp"'), ["model: it is missing", "modell"]),
    "typo in a key": (("steps = 12", "stesp = 12"), ["training.stesp = 12", "did you mean 'steps'?"]),
    "typo in data": (('path = "cases.csv"', 'pth = "cases.csv"'), ["data.pth", "did you mean 'path'?", "data.path"]),
    "no kind": (('kind = "table"\n', ""), ["data.kind", '"table", "images", "npz"']),
    "unknown kind": (('kind = "table"', 'kind = "sql"'), ['data.kind = "sql"', '"table"']),
    "steps of zero": (("steps = 12", "steps = 0"), ["training.steps = 0", "at least 1"]),
    "steps as text": (("steps = 12", 'steps = "12"'), ['training.steps = "12"', "whole number"]),
    "steps as float": (("steps = 12", "steps = 12.5"), ["training.steps = 12.5", "whole number"]),
    "steps as truth": (("steps = 12", "steps = true"), ["training.steps = true", "whole number"]),
    "huge steps": (("steps = 12", "steps = 99999999999999999999999"), ["training.steps = 9999", "at most 1e+07"]),
    "endless number": (("steps = 12", f"steps = {'9' * 5000}"), ["study.toml", "not valid TOML"]),
    "no steps": (("steps = 12\n", ""), ["training.steps", "noise_scale"]),
    "three of three": (("steps = 12", "steps = 12\nnoise_scale = 1.0"), ["training.noise_scale = 1", "give exactly"]),
    "no batch": (("expected_batch_size = 16\n", ""), ["training.expected_batch_size", "give exactly"]),
    "NaN": (("learning_rate = 2.0", "learning_rate = nan"), ["training.learning_rate = nan", "give a"]),
    "infinite": (("clipping_threshold = 0.5", "clipping_threshold = inf"), ["clipping_threshold = inf", "give a"]),
    "negative rate": (("learning_rate = 2.0", "learning_rate = -1"), ["training.learning_rate = -1", "greater than 0"]),
    "unknown method": (('"idp-sgd"', '"adam-sgd"'), ['training.method = "adam-sgd"', "'ino-sgd'"]),
    "uniform by name": (('"idp-sgd"', '"dp-sgd"'), ['training.variant = "scale"', "idp-sgd"]),
    "tail without ino": (("steps = 12", "steps = 12\ntail = {share = 0.5}"), ["training.tail", "ino-sgd"]),
    "rising tail": (
        ('method = "idp-sgd"', 'method = "ino-sgd"\ntail = {shape = "step", levels = [0.1, 0.5]}'),
        ["training.tail.levels = [0.1, 0.5]", "never increase"],
    ),
    "momentum of adam": (("steps = 12", 'steps = 12\noptimizer = "adam"\nmomentum = 0.9'), ["training.momentum = 0.9"]),
    "noise units of adam": (
        ("steps = 12", 'steps = 12\noptimizer = "adam"\nlearning_rate_unit = "noise"'),
        ['training.learning_rate_unit = "noise"', "adam rescales gradients"],
    ),
    "decay of a tail": (
        ("steps = 12", 'steps = 12\naveraging = "tail"\naveraging_decay = 0.5'),
        ["training.averaging_decay = 0.5", 'averaging = "exponential"'],
    ),
    "averaging share of zero": (
        ("steps = 12", 'steps = 12\naveraging = "tail"\naveraging_share = 0'),
        ["training.averaging_share = 0", "greater than 0"],
    ),
    "delta of one": (("delta = 1e-5", "delta = 1.0"), ["budgets.delta = 1", "below 1"]),
    "delta too large": (("delta = 1e-5", "delta = 0.2"), ["budgets.delta = 0.2", "1 / examples"]),
    "no delta": (("[budgets]\ndelta = 1e-5\n", ""), ["budgets.delta", "1e-6"]),
    "epsilon of zero": (("hospital_a = 1.0", "hospital_a = 0"), ["budgets.owners.hospital_a", "greater than 0"]),
    "epsilon negative": (("hospital_a = 1.0", "hospital_a = {epsilon = -2}"), ["hospital_a.epsilon = -2"]),
    "epsilon infinite": (("hospital_a = 1.0", "hospital_a = inf"), ["budgets.owners.hospital_a", "inf"]),
    "epsilon as text": (("hospital_a = 1.0", 'hospital_a = "1"'), ["budgets.owners.hospital_a", "without quotes"]),
    "typo in a budget": (
        ("hospital_a = 1.0", "hospital_a = {epsilon = 1.0, dleta = 1e-6}"),
        ["hospital_a.dleta", "did you mean 'delta'?"],
    ),
    "owner without budget": (
        ("clinic = 8.0", "clinics = 8.0"),
        ["cases.csv", "column 'owner', row", "'clinic' is an owner without a budget", "did you mean 'clinics'?"],
    ),
    "no budgets": (
        ("[budgets.owners]\nhospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n", ""),
        ["budgets.owners", "budgets.file"],
    ),
    "both owner and epsilon": (('owner = "owner"', 'owner = "owner"\nepsilon = "dose"'), ["data.epsilon", "leave one"]),
    "neither owner nor epsilon": (('owner = "owner"\n', ""), ["data.owner", "it is missing"]),
    "range upside down": (("age = [0, 120]", "age = [120, 0]"), ["data.features.age = [120, 0]", "exchange"]),
    "range without width": (("age = [0, 120]", "age = [5, 5]"), ["data.features.age = [5, 5]", "lower number"]),
    "range of NaN": (("age = [0, 120]", "age = [nan, 120]"), ["data.features.age", "finite"]),
    "range of three": (("age = [0, 120]", "age = [0, 1, 2]"), ["data.features.age = [0, 1, 2]", "such as [0, 120]"]),
    "no range": (
        ("age = [0, 120]", 'age = "numeric"'),
        ["data.features.age", "declare its public range", "unaccounted_scaling = true"],
    ),
    "repeated category": (('["f", "m"]', '["f", "f"]'), ["data.features.sex", "appears twice"]),
    "no features": (
        ('[data.features]\nage = [0, 120]\nsex = ["f", "m"]\ndose = [-3, 3]', "[data.features]"),
        ["data.features", "at least 1"],
    ),
    "target as feature": (("dose = [-3, 3]", 'ill = ["yes", "no"]'), ["data.features.ill", "cannot be a feature"]),
    "text beside numbers": (
        ("dose = [-3, 3]", 'dose = { text = "words", max_length = 5 }'),
        ["model.name", "a model of your own"],
    ),
    "missing column": (("age = [0, 120]", "aeg = [0, 120]"), ["cases.csv", "'aeg' (data.features.aeg)", "'age'"]),
    "missing target": (('target = "ill"', 'target = "sick"'), ["cases.csv", "'sick' (data.target)"]),
    "missing file": (('path = "cases.csv"', 'path = "case.csv"'), ["case.csv", "no such file"]),
    "unknown format": (('path = "cases.csv"', 'path = "study.toml"'), ["study.toml", ".csv, .tsv or .parquet"]),
    "outside the range": (
        ("age = [0, 120]", "age = [0, 20]"),
        ["cases.csv: column 'age', row", "outside the declared range [0, 20]", 'outside_range = "clamp"'],
    ),
    "unknown category": (('["f", "m"]', '["f", "d"]'), ["cases.csv: column 'sex', row 2: 'm'", "categories"]),
    "class not declared": (
        ('target = "ill"', 'target = "ill"\nclasses = ["yes", "perhaps"]'),
        ["column 'ill', row", "'no' is none of data.classes"],
    ),
    "fraction of one": (("fraction = 0.25", "fraction = 1.0"), ["data.held_out.fraction = 1", "below 1"]),
    "fraction and path": (("seed = 2", 'path = "cases.csv"'), ["data.held_out.fraction = 0.25", "not both"]),
    "unknown model": (('name = "mlp"', 'name = "resnet 50"'), ['model.name = "resnet 50"', "package.module:factory"]),
    "model for images": (('name = "mlp"', 'name = "cnn"'), ['model.name = "cnn"', '"mlp" for a table']),
    "model for text": (('name = "mlp"', 'name = "lstm"'), ['model.name = "lstm"', "mlp"]),
    "unknown argument": (("hidden = [4]", "hiden = [4]"), ["model.arguments.hiden", "did you mean 'hidden'?"]),
    "impossible argument": (("hidden = [4]", "hidden = [0]"), ["model.arguments", "width=0"]),
    "argument of no sense": (("hidden = [4]", "hidden = 1979-05-27"), ["model.arguments", "give text"]),
    "factory not allowed": (
        ('name = "mlp"\narguments = { hidden = [4] }', 'name = "os:system"'),
        ['model.name = "os:system"', "--allow-factory os:system"],
    ),
    "batch above the data": (("expected_batch_size = 16", "expected_batch_size = 1000"), ["expected_batch_size=1000"]),
    "too little noise": (("steps = 12\n", "noise_scale = 1e-9\n"), ["training.noise_scale=1e-09", "give at least"]),
    "broken TOML": (("[model]", "[model"), ["study.toml", "not valid TOML", "line"]),
    "key twice": (("steps = 12", "steps = 12\nsteps = 13"), ["study.toml", "not valid TOML"]),
    "unknown in evaluation": (("[model]", "[evaluation]\nper_clas = true\n[model]"), ["'per_class'"]),
    "no owner listed": (
        ("[budgets.owners]", 'file = "none.csv"\n[budgets.owners]'),
        ["budgets.owners", "budgets.file"],
    ),
}


@pytest.mark.parametrize("name", STUDY_ERRORS)
def test_a_spoiled_study(inosgd, tmp_path, name):
    change, words = STUDY_ERRORS[name]
    write_study(tmp_path, change)
    outcome = outcome_of(inosgd, tmp_path)
    for word in words:
        assert word in outcome.err


ROWS = table_text()
LINES = ROWS.splitlines()


def with_cell(line: int, column: int, value: str) -> str:
    lines = [text.split(",") for text in LINES]
    lines[line][column] = value
    return "\n".join(map(",".join, lines)) + "\n"


TABLE_ERRORS = {
    "empty file": ("", ["cases.csv", "the file is empty"]),
    "blank lines": ("\n\n\n", ["cases.csv", "first line is empty"]),
    "header alone": (LINES[0] + "\n", ["cases.csv", "no rows below the header"]),
    "one row": ("\n".join(LINES[:2]) + "\n", ["cases.csv", "1 row, of which data.held_out.fraction = 0.25"]),
    "text in a number": (with_cell(7, 0, "forty"), ["cases.csv: column 'age', row 7: 'forty' is not a number"]),
    "missing number": (with_cell(7, 0, ""), ["column 'age', row 7: '' is empty", "fill it in"]),
    "NaN": (
        with_cell(7, 2, "NaN"),
        ["column 'dose', row 7: 'NaN' is missing", 'dose = { range = [-3, 3], missing = "indicator" }'],
    ),
    "infinity": (with_cell(7, 2, "-inf"), ["column 'dose', row 7: '-inf' is not a finite number"]),
    "huge integer": (with_cell(7, 0, "9" * 30), ["column 'age', row 7", "outside the declared range [0, 120]"]),
    "missing owner": (with_cell(7, 4, " "), ["column 'owner', row 7", "is empty"]),
    "missing target": (with_cell(7, 3, ""), ["column 'ill', row 7", "is empty"]),
    "unknown owner": (with_cell(7, 4, "hospital_c"), ["row 7: 'hospital_c' is an owner without a budget"]),
    "unknown category": (with_cell(7, 1, "F"), ["column 'sex', row 7: 'F' is none of the column's categories"]),
    "too few cells": (ROWS + "1,f,0.5\n", ["cases.csv: row 91 has 3 cells and the header 5"]),
    "too many cells": (ROWS + "1,f,0.5,yes,clinic,9\n", ["cases.csv: row 91 has 6 cells and the header 5"]),
    "columns of one name": (ROWS.replace("age,sex", "age,age"), ["two columns are called 'age'", "rename"]),
    "semicolons": (ROWS.replace(",", ";"), ["cases.csv", "data.delimiter", "now ','"]),
    "Latin-1": (with_cell(7, 4, "Zürich").encode("latin-1"), ["cases.csv: line 8 is not UTF-8", "save the file"]),
    "UTF-16": (ROWS.encode("utf-16"), ["cases.csv: line 1 is not UTF-8"]),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ["cases.csv: line 1 is not UTF-8"]),
    "a single class": (ROWS.replace(",yes,", ",no,"), ["column 'ill'", "the class 'no'", "at least two classes"]),
}


@pytest.mark.parametrize("name", TABLE_ERRORS)
def test_a_spoiled_table(inosgd, tmp_path, name):
    data, words = TABLE_ERRORS[name]
    write_study(tmp_path, data=data)
    outcome = outcome_of(inosgd, tmp_path)
    for word in words:
        assert word in outcome.err


def test_a_class_that_only_held_out_rows_have(inosgd, tmp_path):
    write_study(tmp_path, ("fraction = 0.25\nseed = 2", 'path = "later.csv"'))
    (tmp_path / "later.csv").write_text(with_cell(3, 3, "unclear"))
    outcome = outcome_of(inosgd, tmp_path)
    assert "later.csv: column 'ill', row 3: 'unclear' is a class that only held-out examples have" in outcome.err


BUDGET_ERRORS = {
    "empty": ("", ["budgets.csv", "the file is empty"]),
    "no epsilon": ("owner,delta\nclinic,1e-5\n", ["budgets.csv", "'epsilon' (budgets.file)"]),
    "no owner": ("name,epsilon\nclinic,1\n", ["budgets.csv", "'owner' (budgets.file)"]),
    "text": ("owner,epsilon\nclinic,much\n", ["budgets.csv: column 'epsilon', row 1: 'much' is not a number"]),
    "negative": ("owner,epsilon\nclinic,-1\n", ["column 'epsilon', row 1: '-1' give a number greater than 0"]),
    "NaN": ("owner,epsilon\nclinic,nan\n", ["column 'epsilon', row 1: 'nan' is not a finite number"]),
    "delta of one": ("owner,epsilon,delta\nclinic,1,1\n", ["column 'delta', row 1: '1'", "strictly between 0 and 1"]),
    "twice": ("owner,epsilon\nclinic,1\nclinic,2\n", ["column 'owner', row 2: 'clinic' appears twice"]),
    "not everybody": ("owner,epsilon\nclinic,1\nhospital_a,2\n", ["'hospital_b' is an owner without a budget", ".csv"]),
    "absent": (None, ["budgets.csv", "no such file"]),
}


@pytest.mark.parametrize("name", BUDGET_ERRORS)
def test_spoiled_budgets(inosgd, tmp_path, name):
    content, words = BUDGET_ERRORS[name]
    owners = "\n[budgets.owners]\nhospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n"
    write_study(tmp_path, (owners, 'file = "budgets.csv"\n'))
    if content is not None:
        (tmp_path / "budgets.csv").write_text(content)
    outcome = outcome_of(inosgd, tmp_path)
    for word in words:
        assert word in outcome.err


def test_budgets_of_rows_must_be_positive(inosgd, tmp_path):
    owners = "[budgets.owners]\nhospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n"
    write_study(tmp_path, ('owner = "owner"', 'epsilon = "dose"'), (owners, ""), ("dose = [-3, 3]\n", ""))
    assert "column 'dose', row" in outcome_of(inosgd, tmp_path).err


def broken_png() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(out, "png")
    return out.getvalue()[:-40]


@pytest.mark.parametrize(
    ("name", "content", "change", "words"),
    [
        ("clinic/class_1/torn.png", broken_png(), None, ["torn.png", "cannot be read as an image"]),
        ("clinic/class_1/text.png", b"hello", None, ["text.png", "cannot be read as an image"]),
        ("clinic/loose.png", b"", None, ["loose.png", "owner/class/"]),
        ("clinic/class_1/notes.txt", b"", None, ["notes.txt", "not an image"]),
        ("nobody/class_1/x.png", None, None, ["'nobody' is an owner without a budget"]),
        (None, None, ("size = [28, 28]", "size = [32, 32]"), ["28 x 28 pixels", "data.resize = true"]),
        (None, None, ("size = [28, 28]", "size = [28]"), ["data.size = [28]", "at least 2"]),
        (None, None, ("channels = 1", "channels = 2"), ["data.channels = 2"]),
        (None, None, ('layout = "owner/class"\n', ""), ["data.layout", "index"]),
        (None, None, ('path = "pictures"', 'path = "photos"'), ["photos", "no such folder"]),
        (None, None, ('layout = "owner/class"', 'index = "list.csv"'), ["data.target", "data.owner"]),
    ],
    ids=["torn", "text", "loose", "notes", "nobody", "other size", "one side", "channels", "layout", "folder", "index"],
)
def test_spoiled_images(inosgd, tmp_path, name, content, change, words):
    write_images(tmp_path / "pictures", count=30)
    if name is not None:
        place = tmp_path / "pictures" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            Image.fromarray(np.zeros((28, 28), dtype=np.uint8)).save(place)
        else:
            place.write_bytes(content)
    (tmp_path / "study.toml").write_text(IMAGE_STUDY if change is None else IMAGE_STUDY.replace(*change))
    outcome = outcome_of(inosgd, tmp_path)
    for word in words:
        assert word in outcome.err


ARRAYS = (
    IMAGE_STUDY.replace('"images"', '"npz"')
    .replace('"pictures"', '"a.npz"')
    .replace('layout = "owner/class"\nsize = [28, 28]\nchannels = 1', 'owner = "owners"\nrange = [0, 1]')
    .replace('"cnn"', '"mlp"')
    .replace("first_width = 4, hidden = 8", "hidden = []")
)


def arrays(**changes) -> bytes:
    good = {
        "inputs": np.full((30, 4), 0.5),
        "targets": np.arange(30) % 2,
        "owners": np.array(["hospital_a", "hospital_b", "clinic"] * 10),
    }
    out = io.BytesIO()
    np.savez(out, **{key: value for key, value in {**good, **changes}.items() if value is not None})
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "change", "words"),
    [
        (b"not a zip", None, ["a.npz", "numpy.savez"]),
        (arrays()[:-200], None, ["a.npz"]),
        (arrays(owners=None), None, ["a.npz", "no array 'owners' (data.owner)"]),
        (arrays(targets=np.arange(29) % 2), None, ["'targets' has 29", "one entry per example"]),
        (arrays(inputs=np.full((30, 4), np.nan)), None, ["array 'inputs', row 1", "NaN"]),
        (arrays(inputs=np.full((30, 4), 2.0)), None, ["array 'inputs', row 1", "data.range [0, 1]"]),
        (arrays(inputs=np.array([["x"]] * 30)), None, ["array 'inputs' holds values of type"]),
        (arrays(inputs=np.full(30, 0.5)), None, ["array 'inputs' has one number per example"]),
        (arrays(targets=np.arange(30) / 2), None, ["array 'targets' holds values of type float64"]),
        (arrays(targets=np.zeros((30, 2), dtype=int)), None, ["array 'targets' has shape (30, 2)"]),
        (arrays(owners=np.array([object()] * 30)), None, ["a.npz", "without Python objects"]),
        (arrays(), ("range = [0, 1]\n", ""), ["data.range", "unaccounted_scaling = true"]),
        (arrays(), ("range = [0, 1]", "range = [0]"), ["data.range = [0]", "two numbers"]),
        (arrays(), ("range = [0, 1]", "vocabulary_size = 9"), ["model.name", "lstm"]),
    ],
)
def test_spoiled_arrays(inosgd, tmp_path, content, change, words):
    (tmp_path / "a.npz").write_bytes(content)
    (tmp_path / "study.toml").write_text(ARRAYS if change is None else ARRAYS.replace(*change))
    outcome = outcome_of(inosgd, tmp_path)
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "the file is empty"), (b"\xff\xfe[\x00", "not UTF-8"), (b"a = [" * 3000, "not valid TOML")],
)
def test_files_that_are_no_studies(inosgd, tmp_path, content, words):
    (tmp_path / "study.toml").write_bytes(content)
    assert words in outcome_of(inosgd, tmp_path).err


def test_no_study_at_all(inosgd, tmp_path):
    assert "inosgd new study.toml" in outcome_of(inosgd, tmp_path).err


def test_all_problems_of_a_file_are_reported_at_once(inosgd, tmp_path):
    write_study(tmp_path, ("steps = 12", "steps = -1"), ("delta = 1e-5", "delta = 7"), ('name = "mlp"', "name = 3"))
    outcome = outcome_of(inosgd, tmp_path)
    assert "study.toml: 3 problems" in outcome.err
    for word in ("training.steps = -1", "budgets.delta = 7", "model.name = 3"):
        assert word in outcome.err


def test_an_existing_folder_is_not_touched(inosgd, tmp_path):
    write_study(tmp_path)
    (tmp_path / "run").mkdir()
    assert "it already exists" in outcome_of(inosgd, tmp_path).err


def test_a_model_that_mixes_examples_is_refused_before_a_run_exists(inosgd, tmp_path):
    (tmp_path / "mixing.py").write_text(
        "from torch import nn\n"
        "def factory(inputs, classes, *, seed):\n"
        "    return nn.Sequential(nn.BatchNorm1d(inputs[0]), nn.Linear(inputs[0], classes))\n"
    )
    write_study(tmp_path, ('name = "mlp"\narguments = { hidden = [4] }', 'name = "mixing:factory"'))
    outcome = inosgd("train", "study.toml", "--out", "run", "--allow-factory", "mixing:factory")
    assert outcome.code == 2
    assert 'model.name = "mixing:factory"' in outcome.err
    assert "BatchNorm" in outcome.err
    assert not (tmp_path / "run").exists()


def test_the_base_study_is_good(inosgd, tmp_path):
    """The negative control of this file: without a spoiled part it trains."""
    assert write_study(tmp_path).read_text() == STUDY
    assert inosgd("train", "study.toml", "--out", "run", "--json").code == 0
