"""Targets of study files: labels and numbers, from files to what a model is trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from inosgd.analysis.task import in_units, multi_label, regression
from inosgd.data.scaling import Range
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget
from inosgd.study.data import joined_data, load_data
from inosgd.study.description import FITTED, not_covered
from inosgd.study.from_file import study_from
from inosgd.study.labels import Labels, Numbers, named
from inosgd.study.reading import read_study
from inosgd.study.tasks import targets_of, task_of
from tests.study.diabetes import TASKS, diabetes_rows, write_diabetes
from tests.study.writers import write_exported

FORMATS = {
    "csv": ("cases.csv", ()),
    "parquet": ("cases.parquet", ()),
    "on disk": ("cases.parquet", (('"cases.parquet"', '"cases.parquet"\non_disk = true'),)),
}


def loaded(folder, kind, *changes, form="csv", rows=None):
    name, more = FORMATS[form]
    return load_data(read_study(write_diabetes(folder, kind, *more, *changes, rows=rows, name=name)))


def refusal(folder, kind, *changes, **options) -> str:
    with pytest.raises(InvalidArgumentError) as found:
        loaded(folder, kind, *changes, **options)
    return str(found.value)


def raw(kind) -> np.ndarray:
    """What the table says, of rows that have a value."""
    meaning = {"yes": 1.0, "no": 0.0}
    cells = [[row[name] for name in TASKS[kind][0]] for row in diabetes_rows()]
    return np.array([[meaning.get(cell, cell) for cell in row] for row in cells if None not in row], dtype=np.float64)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", TASKS)
def test_targets_are_those_of_the_file(tmp_path, kind, form):
    data = loaded(tmp_path, kind, form=form)
    wanted = raw(kind)
    assert data.task.names == tuple(TASKS[kind][0])
    assert len(data.examples) + len(data.judged_by) == len(wanted) < len(diabetes_rows())
    found = np.concatenate([data.examples.all()[1].numpy(), data.judged_by.targets.numpy()])
    values = found if kind == "multi-label" else in_units(data.task, found.astype(np.float64))
    assert sorted(map(tuple, values.round(3).tolist())) == sorted(map(tuple, wanted.round(3).tolist()))
    assert found.min() >= -1
    assert found.max() <= 1
    assert not data.fitted
    in_memory = loaded(tmp_path / "memory", kind)
    torch.testing.assert_close(data.examples.all(), in_memory.examples.all(), rtol=0, atol=0)


VALUES = st.floats(-1e6, 1e6)


class Rows:
    """Just enough of a source."""

    path = "rows"

    def __init__(self, values: list[float]) -> None:
        numbers = Numbers(np.array(values, dtype=np.float64)[:, None], ("y",))
        self.labels = Labels(numbers, "column 'y'", named(np.array(["o"] * len(values), dtype=object)), "", None)


def first_target(schema, values: list[float]) -> float:
    source, rows = Rows(values), np.arange(len(values))
    return float(targets_of(source, rows, task_of(schema, source, rows), "", within=True)[0, 0])


@pytest.fixture(scope="module")
def schemas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    fitted = (('kind = "table"', 'kind = "table"\nunaccounted_scaling = true'), ("range = [0, 400]\n", ""))
    return [read_study(write_diabetes(folder, "regression", *more)).schema for more in ((), fitted)]


@given(st.data())
def test_the_target_of_a_row_depends_on_that_row_alone(schemas, data):
    first, others = data.draw(VALUES), data.draw(st.lists(VALUES, min_size=1, max_size=5))
    assert first_target(schemas[0], [first]) == first_target(schemas[0], [first, *others])


def test_one_row_of_a_file_changes_no_other(tmp_path):
    before = loaded(tmp_path, "regression").examples.all()[1]
    after = loaded(tmp_path, "regression", rows=changed(1, "progression", 399.0)).examples.all()[1]
    assert (before != after).sum() == 1


def test_fitted_targets_depend_on_others_and_say_so(tmp_path, schemas):
    """The negative control of the test above."""
    assert first_target(schemas[1], [1.0, 0.0, 2.0]) != first_target(schemas[1], [1.0, 0.0, 3.0])
    changes = (('kind = "table"', 'kind = "table"\nunaccounted_scaling = true'), ("range = [0, 400]\n", ""))
    path = write_diabetes(tmp_path, "regression", *changes)
    study = study_from(read_study(path))
    data = study.split(0)
    assert data.fitted
    assert FITTED in not_covered(study, data)
    trained = in_units(data.task, data.examples.all()[1].double().numpy())
    assert data.task.ranges[0] == pytest.approx((trained.min(), trained.max()))
    plain = study_from(read_study(write_diabetes(tmp_path / "plain", "regression")))
    assert FITTED not in not_covered(plain, plain.split(0))


def test_targets_outside_their_range_are_refused_or_clamped(tmp_path):
    narrow, clamp = ("[0, 400]", "[100, 400]"), ('kind = "table"', 'kind = "table"\noutside_range = "clamp"')
    said = refusal(tmp_path, "regression", narrow)
    for words in ("column 'progression', row 2: '75", "[100, 400]", 'data.outside_range = "clamp"'):
        assert words in said
    assert "row 2" in refusal(tmp_path, "regression", narrow, form="on disk")
    data = loaded(tmp_path, "regression", narrow, clamp)
    assert (data.examples.all()[1] == -1).sum() > 10
    assert data.examples.all()[1].min() == -1
    judged = in_units(data.task, data.judged_by.targets.double().numpy())
    wide = loaded(tmp_path / "wide", "regression")
    np.testing.assert_allclose(judged, in_units(wide.task, wide.judged_by.targets.double().numpy()), rtol=1e-5)
    assert judged.min() < 100  # held-out targets are not clamped


def changed(row: int, column: str, value: object):
    return [each | ({column: value} if number == row else {}) for number, each in enumerate(diabetes_rows())]


SEVERAL = ("[[0, 400], [0, 120]]", "[[0, 400], [0, 120], [0, 1]]")
BAD = {
    "not a number": ("regression", (), changed(4, "progression", "much"), ["'progression', row 5", "'much' is not a"]),
    "a comma": ("regression", (), changed(4, "progression", "1,5"), ["'progression', row 5", "data.decimal"]),
    "not a truth": ("multi-label", (), changed(4, "old", 3), ["column 'old', row 5: '3' is neither true nor false"]),
    "no value": (
        "multi-label",
        (('drop_missing = ["fast", "old"]', ""),),
        None,
        ["column 'fast', row 9", 'data.drop_missing = ["fast"]'],
    ),
    "no range": ("regression", (("range = [0, 400]\n", ""),), None, ["task.range: it is missing", "[0, 400]", "unacc"]),
    "no kind": ("several numbers", (('kind = "regression"\n', ""),), None, ["data.target =", '"multi-label" or "regr']),
    "numbers as classes": (
        "regression",
        (('kind = "regression"\nrange = [0, 400]\nloss = "huber"', ""),),
        diabetes_rows(400),
        ["column 'progression' has", "different values in", 'task.kind = "regression"'],
    ),
    "range of labels": (
        "multi-label",
        (('kind = "multi-label"', 'kind = "multi-label"\nrange = [0, 1]'),),
        None,
        ["task.range = [[0, 1]]", "belongs to numbers"],
    ),
    "loss of labels": (
        "multi-label",
        (('kind = "multi-label"', 'kind = "multi-label"\nloss = "huber"'),),
        None,
        ['task.loss = "huber"', "belongs to numbers"],
    ),
    "ranges of others": ("several numbers", (SEVERAL,), None, ["task.range", "one range for all of data.target"]),
    "a range upside down": ("regression", (("[0, 400]", "[400, 0]"),), None, ["task.range = [400, 0]", "exchange"]),
    "three numbers": ("regression", (("[0, 400]", "[0, 4, 5]"),), None, ["task.range = [0, 4, 5]", "two numbers"]),
    "a kind of no sense": ("multi-label", (('"multi-label"', '"labels"'),), None, ['task.kind = "labels"', "choose"]),
    "twice": (
        "multi-label",
        (('target = ["fast", "old"]', 'target = ["old", "old"]'),),
        None,
        ["data.target", "twice"],
    ),
    "classes": (
        "multi-label",
        (('kind = "table"', 'kind = "table"\nclasses = ["a", "b"]'),),
        None,
        ["data.classes", "no classes"],
    ),
    "balanced": (
        "regression",
        (("[budgets]", "[evaluation]\nbalanced = true\n\n[budgets]"),),
        None,
        ["evaluation.bal"],
    ),
    "a target that is a feature": (
        "regression",
        (("lipids = [0, 10]", "lipids = [0, 10]\nprogression = [0, 400]"),),
        None,
        ["data.features.progression", "cannot be a feature"],
    ),
    "a number as target": (
        "regression",
        (('target = "progression"', "target = 3"),),
        None,
        ["data.target = 3", "text"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path, name):
    kind, changes, rows, words = BAD[name]
    said = refusal(tmp_path, kind, *changes, rows=rows)
    for each in words:
        assert each in said


def test_decimal_commas(tmp_path):
    commas = [row | {"progression": row["progression"] and f"{row['progression']:.1f}".replace(".", ",")}
              for row in diabetes_rows()]  # fmt: skip
    for row in commas:
        for name in ("age", "bmi", "lipids"):
            row[name] = row[name] and str(row[name]).replace(".", ",")
    data = loaded(tmp_path, "regression", ('kind = "table"', 'kind = "table"\ndecimal = ","'), rows=commas)
    torch.testing.assert_close(data.examples.all(), loaded(tmp_path / "plain", "regression").examples.all())


def test_held_out_files_and_joining_owners(tmp_path):
    apart = ("fraction = 0.25", 'path = "apart.csv"')
    write_exported(tmp_path / "apart.csv", diabetes_rows(30))
    path = write_diabetes(tmp_path, "several numbers", apart)
    file = read_study(path)
    data = load_data(file)
    assert len(data.judged_by) == sum(row["progression"] is not None for row in diabetes_rows(30))
    new = [row | {"hospital": "newcomer", "progression": 400.0} for row in diabetes_rows(12)]
    write_exported(tmp_path / "new.csv", new)
    joined = joined_data(file, data, tmp_path / "new.csv", {"newcomer": Budget(epsilon=1.0, delta=1e-5)})
    assert joined.task == data.task
    assert joined.examples.all()[1][:, 0].tolist() == [1.0] * 12
    write_exported(tmp_path / "new.csv", [new[0] | {"progression": 401.0}])
    with pytest.raises(InvalidArgumentError, match=r"row 1: '401\.0' lies outside"):
        joined_data(file, data, tmp_path / "new.csv", {"newcomer": Budget(epsilon=1.0, delta=1e-5)})


REST = """
[task]
@TASK@

[budgets]
delta = 1e-5
owners = { a = 1.0, b = 2.0 }

[model]
name = "@MODEL@"

[training]
steps = 2
expected_batch_size = 10
clipping_threshold = 1
learning_rate = 1.0
"""


def filled(text: str, **parts: str) -> str:
    """A study of that section of data, and of `REST`, with its marks replaced."""
    text += REST
    for mark, part in parts.items():
        text = text.replace(f"@{mark.upper()}@", part)
    return text


ARRAYS = """\
[data]
kind = "@KIND@"
path = "@PATH@"
target = @TARGET@
owner = "owners"
range = [-1, 1]
"""


def write_arrays(folder, kind, target, task, **arrays):
    rng = np.random.default_rng(0)
    every = {"inputs": rng.uniform(-1, 1, (40, 3)), "owners": np.array(["a", "b"] * 20), **arrays}
    (folder / "arrays").mkdir(exist_ok=True)
    for name, array in every.items():
        np.save(folder / "arrays" / f"{name}.npy", array)
    np.savez(folder / "arrays.npz", **every)
    path = "arrays" if kind == "npy" else "arrays.npz"
    (folder / "study.toml").write_text(filled(ARRAYS, kind=kind, path=path, target=target, task=task, model="mlp"))
    return read_study(folder / "study.toml")


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_arrays_of_numbers_and_of_labels(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("inosgd.study.stored.ROWS_AT_ONCE", 7)
    flat, wide = np.linspace(0, 10, 40), np.linspace(-1, 1, 80).reshape(40, 2)
    numbers = 'kind = "regression"\nrange = [[0, 10], [-1, 1], [-1, 1]]'
    data = load_data(write_arrays(tmp_path, kind, '["flat", "wide"]', numbers, flat=flat, wide=wide))
    limits = [(0, 10), (-1, 1), (-1, 1)]
    assert data.task == regression(["flat", "wide 1", "wide 2"], ranges=limits)
    found = torch.cat([data.examples.all()[1], data.judged_by.targets])
    scaled = torch.from_numpy(np.column_stack([Range(0, 10).scaled(flat), wide])).float()
    torch.testing.assert_close(found[found[:, 0].argsort()], scaled)
    labels = (np.arange(40)[:, None] % [2, 3] == 0).astype(np.int64)
    for each in (labels, labels.astype(np.bool_), labels.astype(np.float32)):
        data = load_data(write_arrays(tmp_path, kind, '"y"', 'kind = "multi-label"', y=each))
        assert data.task == multi_label(["y 1", "y 2"])
        assert data.examples.all()[1].unique().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["npz", "npy"])
@pytest.mark.parametrize(
    ("task", "values", "words"),
    [
        ("", np.linspace(0, 1, 40), 'store names and classes as text or whole numbers, or, to predict numbers'),
        ('kind = "multi-label"', np.arange(40) % 3, "array 'y', row 3: '2' is neither 0 nor 1"),
        ('kind = "regression"\nrange = [0, 38]', np.arange(40), "array 'y', row 40: '39' lies outside"),
        ('kind = "regression"\nrange = [0, 1]', np.full(40, np.nan), "array 'y', row 1: it holds NaN"),
        ('kind = "regression"\nrange = [0, 1]', np.zeros((40, 1, 1)), "has shape"),
        ('kind = "regression"\nrange = [0, 1]', np.array(["a"] * 40), "give numbers"),
        ('kind = "regression"\nrange = [[0, 1], [0, 1]]', np.zeros((40, 3)), "task.range: 2 ranges for 3 targets"),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(tmp_path, kind, task, values, words):
    with pytest.raises(InvalidArgumentError) as found:
        load_data(write_arrays(tmp_path, kind, '"y"', task, y=values))
    assert words in str(found.value)


def test_arrays_may_leave_the_range_of_targets_open(tmp_path):
    """Beside a declared range of inputs, which alone would make ``unaccounted_scaling`` a contradiction."""
    open_range = 'kind = "regression"'
    with pytest.raises(InvalidArgumentError, match=r"task\.range: it is missing"):
        write_arrays(tmp_path, "npz", '"y"', open_range, y=np.arange(40))
    with pytest.raises(InvalidArgumentError, match="the range is declared"):
        write_arrays(tmp_path, "npz", '"y"\nunaccounted_scaling = true', "", y=np.arange(40) % 2)
    data = load_data(write_arrays(tmp_path, "npz", '"y"\nunaccounted_scaling = true', open_range, y=np.arange(40)))
    assert data.fitted
    assert not data.encoding.fitted


IMAGES = """\
[data]
kind = "images"
path = "."
index = "index.csv"
target = @TARGET@
owner = "owner"
size = [8, 8]
channels = 1
"""


@pytest.mark.parametrize(
    ("target", "task", "wanted"),
    [
        ('"age"', 'kind = "regression"\nrange = [0, 120]', regression(["age"], ranges=[(0, 120)])),
        ('["ill", "smoker"]', 'kind = "multi-label"', multi_label(["ill", "smoker"])),
    ],
)
def test_columns_of_an_index_of_images(tmp_path, target, task, wanted):
    lines = ["file,age,ill,smoker,owner"]
    for number in range(30):
        Image.fromarray(np.full((8, 8), number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{number + 20},{'yes' if number % 2 else 'no'},{number % 3 // 2},{'ab'[number % 2]}")
    (tmp_path / "index.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "study.toml"
    path.write_text(filled(IMAGES, target=target, task=task, model="cnn"))
    study = study_from(read_study(path))
    data = study.split(0)
    assert data.task == wanted
    assert data.examples.all()[1].shape == (len(data.examples), wanted.outputs)
    assert study.model(data, 0)(data.examples.all()[0]).shape == (len(data.examples), wanted.outputs)
    folders = 'index = "index.csv"\n' + f"target = {target}\n" + 'owner = "owner"'
    path.write_text(path.read_text().replace(folders, 'layout = "owner/class"'))
    with pytest.raises(InvalidArgumentError, match=r"task\.kind = .*: folders name classes"):
        read_study(path)
