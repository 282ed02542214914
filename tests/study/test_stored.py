"""Studies whose data stay on disk: the same training, and the same refusals, as from memory."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from inosgd import SeededSource, fit
from inosgd.owners import Budget
from inosgd.study import stored
from inosgd.study.data import joined_data, load_data
from inosgd.study.fingerprints import fingerprint, study_fingerprints
from inosgd.study.from_file import study_from
from inosgd.study.joining import _together, restricted
from inosgd.study.reading import read_study
from inosgd.study.running import prepare
from inosgd.training import TrainingState
from tests import tiny
from tests.study.writers import table_text, write_study

PARQUET = ('path = "cases.csv"', 'path = "cases.parquet"')
ON_DISK = ('path = "cases.csv"', 'path = "cases.parquet"\non_disk = true')
ROWS_PER_GROUP = 7


def columns(rows: int = 90, seed: int = 0) -> dict[str, list]:
    lines = [line.split(",") for line in table_text(rows, seed).splitlines()]
    found = {name: [line[place] for line in lines[1:]] for place, name in enumerate(lines[0])}
    return {**found, "age": [float(age) for age in found["age"]], "dose": [float(dose) for dose in found["dose"]]}


def write_parquet(path, **changes) -> None:
    pq.write_table(pa.table({**columns(), **changes}), path, row_group_size=ROWS_PER_GROUP)


@pytest.fixture
def table(tmp_path):
    write_parquet(tmp_path / "cases.parquet")
    return tmp_path


def array_study(folder, kind: str, more: str = "range = [-3, 120]"):
    data = f'[data]\nkind = "{kind}"\npath = "cases{".npz" * (kind == "npz")}"\nowner = "owners"\n{more}'
    text = (write_study(folder)).read_text()
    start, features, budgets = text.index("[data]"), text.index("[data.held_out]"), text.index("[data.features]")
    assert start == 0
    (folder / "study.toml").write_text(data + "\n" + text[features:budgets] + text[text.index("[budgets]") :])
    return folder / "study.toml"


def arrays(**changes) -> dict[str, np.ndarray]:
    found = columns()
    inputs = np.column_stack([found["age"], found["dose"]]).astype(np.float32)
    return {"inputs": inputs, "targets": np.array(found["ill"]), "owners": np.array(found["owner"]), **changes}


def write_arrays(folder, **changes) -> None:
    (folder / "cases").mkdir(exist_ok=True)
    np.savez(folder / "cases.npz", **arrays(**changes))
    for name, array in arrays(**changes).items():
        np.save(folder / "cases" / f"{name}.npy", array)


@pytest.fixture(params=["table", "arrays"])
def both(request, tmp_path, monkeypatch):
    """The same study with its data in memory, and on disk."""
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", ROWS_PER_GROUP)
    if request.param == "table":
        write_parquet(tmp_path / "cases.parquet")
        studies = [read_study(write_study(tmp_path, change)) for change in (PARQUET, ON_DISK)]
    else:
        write_arrays(tmp_path)
        studies = [read_study(array_study(tmp_path, kind)) for kind in ("npz", "npy")]
    return studies


def test_the_data_are_those_of_memory(both):
    one, other = (load_data(study) for study in both)
    assert isinstance(other.examples.inputs, stored.StoredInputs)
    assert one.owners == other.owners
    assert one.encoding == other.encoding
    assert one.task == other.task
    everything = np.arange(len(one.examples))
    torch.testing.assert_close(one.examples.take(everything), other.examples.take(everything), rtol=0, atol=0)
    assert [len(part) for part in other.examples.take(everything[:0])] == [0, 0]
    torch.testing.assert_close(one.held_out.inputs[3:9], other.held_out.inputs[3:9], rtol=0, atol=0)
    assert one.held_out.targets.tolist() == other.held_out.targets.tolist()
    assert one.held_out.groups.tolist() == other.held_out.groups.tolist()


def test_a_training_is_the_same_to_the_bit(both):
    models = []
    for study in both:
        ready = prepare(study_from(study))
        built = ready.built
        state = TrainingState.start(built.trainer, built.model, built.optimizer, SeededSource(3))
        models.append(tiny.bits(fit(ready.trainer, state, steps=4).model))
    assert models[0] == models[1]


def test_owners_join_and_withdraw(both, tmp_path):
    found = []
    for study in both:
        place = study.folder / {"npz": "cases.npz", "npy": "cases"}.get(study.schema.data.kind, "cases.parquet")
        new = tmp_path / f"new-{place.name}"
        shutil.copytree(place, new) if place.is_dir() else shutil.copy(place, new)
        data = load_data(study)
        joining = {name: Budget(epsilon=3.0, delta=1e-5) for name in data.owners.table.names}
        whole = _together(data, joined_data(study, data, new, joining))
        table = whole.owners.table
        without = type(table)(table.names, table.epsilons, table.deltas, [table.sizes[0], 0, table.sizes[2]])
        less = restricted(whole, without)
        found.append((less, less.examples.take(np.arange(len(less.examples)))))
    assert found[0][0].owners == found[1][0].owners
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=0)
    assert found[0][0].held_out.groups.tolist() == found[1][0].held_out.groups.tolist()
    torch.testing.assert_close(found[0][0].held_out.inputs[:], found[1][0].held_out.inputs[:], rtol=0, atol=0)


def refusal(study) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is what is compared)
        load_data(study)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "row", "value", "words"),
    [
        ("age", 50, float("nan"), "column 'age', row 51: 'nan' is missing"),
        ("age", 33, None, "column 'age', row 34: 'None' is missing"),
        ("age", 88, 130.0, "column 'age', row 89: '130.0' lies outside the declared range"),
        ("sex", 60, "x", "column 'sex', row 61: 'x' is none of the column's categories"),
        ("ill", 20, "", "column 'ill', row 21: '' is empty"),
        ("owner", 79, "nobody", "column 'owner', row 80: 'nobody' is an owner without a budget"),
    ],
)
def test_rows_of_tables_are_refused_by_the_same_words(tmp_path, column, row, value, words):
    values = columns()[column]
    values[row] = value
    write_parquet(tmp_path / "cases.parquet", **{column: values})
    in_memory, on_disk = (refusal(read_study(write_study(tmp_path, change))) for change in (PARQUET, ON_DISK))
    assert words in on_disk
    assert on_disk == in_memory


def changed(array: np.ndarray, row: int, value: object) -> np.ndarray:
    copy = array.copy()
    copy[row] = value
    return copy


@pytest.mark.parametrize(
    ("name", "row", "value", "words"),
    [
        ("inputs", 50, np.nan, "array 'inputs', row 51: it holds NaN"),
        ("inputs", 70, 500, "array 'inputs', row 71: it leaves the declared data.range"),
        ("owners", 79, "nobody", "array 'owners', row 80: 'nobody' is an owner without a budget"),
        ("targets", 9, "", "array 'targets', row 10: it is empty"),
    ],
)
def test_rows_of_arrays_are_refused_by_the_same_words(tmp_path, monkeypatch, name, row, value, words):
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", ROWS_PER_GROUP)
    write_arrays(tmp_path, **{name: changed(arrays()[name], row, value)})
    in_memory, on_disk = (refusal(read_study(array_study(tmp_path, kind))) for kind in ("npz", "npy"))
    assert words in on_disk
    assert on_disk == in_memory.replace("cases.npz", "cases")


def test_symbols_stay_on_disk_too(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", ROWS_PER_GROUP)
    write_arrays(tmp_path, inputs=np.arange(180).reshape(90, 2) % 30)
    path = array_study(tmp_path, "npy", "vocabulary_size = 30")
    path.write_text(path.read_text().replace('"mlp"\narguments = { hidden = [4] }', '"lstm"'))
    assert load_data(read_study(path)).examples.take(np.array([0]))[0].dtype == torch.int64
    write_arrays(tmp_path, inputs=np.arange(180).reshape(90, 2))
    assert "row 16: symbols are whole numbers" in refusal(read_study(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": np.zeros(90, dtype=np.float32)}, "give a second dimension"),
        ({"inputs": np.zeros((89, 2), dtype=np.float32)}, "'inputs' has 89, 'targets' has 90"),
        ({"targets": np.zeros(90)}, "store names and classes as text or whole numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, words):
    write_arrays(tmp_path, **changes)
    assert words in refusal(read_study(array_study(tmp_path, "npy")))


def test_absent_files_are_named(tmp_path):
    study = read_study(array_study(tmp_path, "npy"))
    assert "there is no such folder" in refusal(study)
    write_arrays(tmp_path)
    (tmp_path / "cases" / "owners.npy").rename(tmp_path / "cases" / "owner.npy")
    assert "there is no array 'owners' (data.owner); did you mean 'owner'?" in refusal(study)


def test_a_file_that_changes_under_the_training_is_refused(both):
    data = load_data(both[1])
    place = both[1].folder / "cases.parquet"
    os.utime(place if place.exists() else both[1].folder / "cases" / "inputs.npy", ns=(0, 1))
    with pytest.raises(ValueError, match="it was changed, replaced or removed while it was in use"):
        data.examples.take(np.array([0]))


FITTED = [("age = [0, 120]", 'age = "numeric"'), ('owner = "owner"', 'owner = "owner"\nunaccounted_scaling = true')]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([('cases.csv"', 'cases.csv"\non_disk = true')], "only Parquet files stay on disk; convert cases.csv"),
        ([ON_DISK, *FITTED], "nothing is fitted to data that stay on disk"),
    ],
    ids=["csv", "fitted"],
)
def test_contradictions_are_found_before_anything_is_read(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        read_study(write_study(tmp_path, *changes))


def test_arrays_on_disk_are_not_fitted(tmp_path):
    with pytest.raises(ValueError, match="nothing is fitted to data that stay on disk"):
        read_study(array_study(tmp_path, "npy", "unaccounted_scaling = true"))


def test_fingerprints_cover_every_array(tmp_path):
    write_arrays(tmp_path)
    study = read_study(array_study(tmp_path, "npy"))
    before, folder = study_fingerprints(study), fingerprint(tmp_path / "cases")
    assert set(before) == {"cases/inputs.npy", "cases/targets.npy", "cases/owners.npy"}
    np.save(tmp_path / "cases" / "owners.npy", np.array(columns()["owner"])[::-1])
    after = study_fingerprints(study)
    assert [name for name in before if before[name] != after[name]] == ["cases/owners.npy"]
    assert fingerprint(tmp_path / "cases") != folder
