"""Rows that are protected together, in studies: who is held out, who owns a unit, what is refused, what is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.study.data import held_out_names, joined_data
from inosgd.study.description import guarantee, never_covered
from inosgd.study.from_file import study_from
from inosgd.study.joining import _together, restricted
from inosgd.study.labels import Names
from inosgd.study.reading import read_study
from inosgd.study.repeats import repeated_ids
from inosgd.study.running import prepare
from inosgd.study.study import Study, StudyData, for_validation, only_examples
from inosgd.units import shared_units
from tests.study.writers import OWNERS, STUDY, table_text, write_study

pytestmark = pytest.mark.usefixtures("engine_tries_models")  # it has not seen units of so many rows before

UNIT = ('owner = "owner"', 'owner = "owner"\nunit = "patient_id"\nmax_rows = 3')


def visits(patients: int = 40, *, shared: bool = False, seed: int = 0, prefix: str = "P") -> str:
    """Cases of `table_text` as visits of patients, one to four of each, not next to each other."""
    rng = np.random.default_rng(seed)
    header, *lines = table_text(4 * patients, seed).splitlines()
    of_row = rng.permutation(np.concatenate([np.arange(patients), rng.integers(0, patients, 2 * patients)]))
    rows = []
    for number, (patient, line) in enumerate(zip(of_row, lines, strict=False)):
        cells = line.split(",")[:-1]
        owner = OWNERS[(patient + (number if shared and patient % 10 == 0 else 0)) % 3]
        rows.append(",".join([*cells, owner, f"{prefix}{patient}"]))
    return "\n".join([f"{header},patient_id", *rows]) + "\n"


def unit_study(folder, *changes, data: str | None = None) -> Study:
    return study_from(read_study(write_study(folder, UNIT, *changes, data=visits() if data is None else data)))


@pytest.fixture
def data(tmp_path) -> StudyData:
    return unit_study(tmp_path).split(0)


def patients_of(text: str) -> list[str]:
    return [line.rpartition(",")[2] for line in text.splitlines()[1:]]


# Reading -------------------------------------------------------------------------------------------------------------


def test_sizes_count_patients_and_no_patient_is_cut_in_two(data):
    everyone = patients_of(visits())
    units, table = data.units, data.owners.table
    assert table.unit == "patient"
    assert table.sizes.sum() == len(units) == len(data.owners) < len(set(everyone))
    assert len(data.held_out_units) + len(units) == len(set(everyone))
    assert not np.intersect1d(data.held_out_units, units.keys).size
    assert units.row_count == len(data.examples)
    assert len(data.held_out) + len(data.examples) == len(everyone)
    assert units.max_rows == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_unit_is_held_out_by_a_coin_of_its_own_whatever_else_there_is(seed):
    few, many = (Names(np.arange(count), tuple(f"P{each}" for each in range(count))) for count in (50, 400))
    first, second = (held_out_names(names, 0.3, seed) for names in (few, many))
    np.testing.assert_array_equal(first, second[:50])
    turned = Names(many.codes[::-1], many.names)
    np.testing.assert_array_equal(held_out_names(turned, 0.3, seed), second[::-1])
    assert 80 < second.sum() < 160
    assert not np.array_equal(second, held_out_names(many, 0.3, seed + 100))


def test_validation_and_subsets_take_whole_patients(data):
    inner = for_validation(data, 0)
    assert inner.units.row_count == len(inner.examples) == len(data.examples) - len(inner.held_out)
    assert len(inner.owners) == len(inner.units) == len(inner.train_groups)
    part = only_examples(data, np.array([4, 2]))
    assert part.units.counts.tolist() == data.units.counts[[4, 2]].tolist()
    wanted = [data.examples.inputs[data.units.rows_of(np.array([unit]))] for unit in (4, 2)]
    found = [part.examples.inputs[part.units.rows_of(np.array([unit]))] for unit in (0, 1)]
    assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))


@pytest.mark.parametrize("kind", ["npz", "npy", "parquet"])
def test_units_are_read_from_arrays_and_from_data_on_disk(tmp_path, kind):
    text = visits()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    columns = {
        "inputs": np.array([[float(row[0]) / 120, float(row[2]) / 3] for row in rows], dtype=np.float32),
        "ill": np.array([row[3] for row in rows]),
        "owner": np.array([row[4] for row in rows]),
        "patient_id": np.array([row[5] for row in rows]),
    }
    start, end = "[data.held_out]\nfraction = 0.25\nseed = 2\n", "[budgets]" + STUDY.partition("[budgets]")[2]
    if kind == "parquet":
        frame = {"age": columns["inputs"][:, 0], "dose": columns["inputs"][:, 1]}
        frame |= {name: columns[name] for name in ("ill", "owner", "patient_id")}
        pq.write_table(pa.table(frame), tmp_path / "d.parquet", row_group_size=7)
        section = 'kind = "table"\npath = "d.parquet"\non_disk = true\n'
        features = "[data.features]\nage = [-2, 2]\ndose = [-2, 2]\n"
    elif kind == "npz":
        np.savez(tmp_path / "d.npz", **columns)
        section, features = 'kind = "npz"\npath = "d.npz"\nrange = [-2, 2]\n', ""
    else:
        (tmp_path / "d").mkdir()
        for name, array in columns.items():
            np.save(tmp_path / "d" / f"{name}.npy", array)
        section, features = 'kind = "npy"\npath = "d"\nrange = [-2, 2]\n', ""
    path = tmp_path / "study.toml"
    labels = 'target = "ill"\nowner = "owner"\nunit = "patient_id"\nmax_rows = 3\n'
    path.write_text(f"[data]\n{section}{labels}{start}{features}{end}")
    stored = study_from(read_study(path))
    in_memory = unit_study(tmp_path)
    found, expected = stored.split(0), in_memory.split(0)
    assert found.owners.table == expected.owners.table
    np.testing.assert_array_equal(found.units.rows, expected.units.rows)
    np.testing.assert_array_equal(found.units.keys, expected.units.keys)
    prepare(stored)


def test_rows_with_budgets_of_their_own_hold_their_patient_to_the_smallest(tmp_path):
    header, *lines = visits().splitlines()
    rows = [f"{line},{1 + number % 4}" for number, line in enumerate(lines)]
    study = unit_study(
        tmp_path,
        ('owner = "owner"', 'epsilon = "epsilon"'),
        ("[budgets.owners]\nhospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n", ""),
        data="\n".join([f"{header},epsilon", *rows]) + "\n",
    )
    found = study.split(0)
    of_patient: dict[str, float] = {}
    for row in rows:
        *_, patient, epsilon = row.split(",")
        of_patient[patient] = min(of_patient.get(patient, 9.0), float(epsilon))
    by_budget = {float(epsilon): size for _, budget, size in found.owners.table for epsilon in [budget.epsilon]}
    assert set(by_budget) <= {1.0, 2.0, 3.0, 4.0}
    assert shared_units(found.owners.table) == 0
    counts = {value: list(of_patient.values()).count(value) for value in by_budget}
    assert all(by_budget[value] <= counts[value] for value in by_budget)


# What is refused -----------------------------------------------------------------------------------------------------


def problem_of(folder, *changes, data: str | None = None) -> str:
    with pytest.raises(InosgdError) as raised:
        unit_study(folder, *changes, data=data).split(0)
    return str(raised.value)


def test_a_missing_or_empty_unit_is_one_clear_error(tmp_path):
    lines = visits().splitlines()
    lines[3] = lines[3].rpartition(",")[0] + ","
    message = problem_of(tmp_path, data="\n".join(lines) + "\n")
    assert "patient_id" in message
    assert "row 3" in message
    assert "drop_missing" in message


def test_a_unit_in_the_training_file_and_in_the_held_out_one_is_one_clear_error(tmp_path):
    lines = visits().splitlines()
    (tmp_path / "test.csv").write_text("\n".join([lines[0], *lines[-3:]]) + "\n")
    message = problem_of(
        tmp_path, ("fraction = 0.25\nseed = 2", 'path = "test.csv"'), data="\n".join(lines[:-2]) + "\n"
    )
    assert "test.csv" in message
    assert "is a patient of the training data too; keep all rows of a patient on one side" in message


def test_files_without_a_common_patient_are_as_good_as_a_fraction(tmp_path):
    (tmp_path / "test.csv").write_text(visits(5, seed=3, prefix="Q"))
    found = unit_study(tmp_path, ("fraction = 0.25\nseed = 2", 'path = "test.csv"')).split(0)
    assert len(found.units) == 40
    assert len(found.held_out_units) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('unit = "patient_id"\n', ""), "it belongs to data.unit"),
        (('unit = "patient_id"', 'unit = "owner"'), "name the one that tells who each row is about"),
        (('unit = "patient_id"', 'unit = "patient_id"\nunit_name = "example"'), "give another name"),
        (("max_rows = 3", "max_rows = 0"), "max_rows"),
        (("max_rows = 3", 'several_owners = "loosest"'), "several_owners"),
        (("learning_rate = 2.0", "learning_rate = 2.0\naugmentation = { copies = 4 }"), "it crops images"),
    ],
)
def test_contradictions_in_the_study_file_are_refused(tmp_path, change, message):
    assert message in problem_of(tmp_path, change)


def test_patients_of_several_owners_are_held_to_the_smallest_budget_or_refused(tmp_path):
    text = visits(shared=True)
    found = unit_study(tmp_path, data=text).split(0)
    shared = shared_units(found.owners.table)
    assert shared > 0
    for name, budget, _ in found.owners.table:
        parts = name.split(" & ")
        assert budget.epsilon == min({"hospital_a": 1.0, "hospital_b": 2.0, "clinic": 8.0}[part] for part in parts)
    message = problem_of(tmp_path, ("max_rows = 3", 'several_owners = "refuse"'), data=text)
    assert f"rows of {shared} of {len(found.units)} belong to several owners" in message


# Joining and leaving -------------------------------------------------------------------------------------------------


def test_who_leaves_takes_its_rows_and_shared_patients_stay_with_those_of_the_others(tmp_path):
    found = unit_study(tmp_path, data=visits(shared=True)).split(0)
    table = found.owners.table
    leaving = table.names.index("hospital_a")
    sizes = table.sizes.copy()
    sizes[leaving] = 0
    left = restricted(found, dataclasses.replace(table, sizes=sizes))
    gone = int((found.row_owners == leaving).sum())
    assert len(left.examples) == len(found.examples) - gone
    assert not (left.row_owners == leaving).any()
    assert len(left.units) == len(found.units) - table.sizes[leaving]
    assert left.owners.table.sizes[len(OWNERS) :].tolist() == table.sizes[len(OWNERS) :].tolist()
    assert (left.units.counts > 0).all()


def test_who_joins_brings_new_patients_and_known_ones_are_refused(tmp_path):
    study = unit_study(tmp_path)
    found = study.split(0)
    lines = visits(8, seed=5, prefix="N").replace("hospital_a", "new").replace("hospital_b", "new")
    path = tmp_path / "new.csv"
    path.write_text(lines.replace("clinic", "new"))
    budgets = {"new": found.owners.table.budget(0)}
    extra = joined_data(study.file, found, path, budgets)
    both = _together(found, extra)
    assert both.owners.table.unit == "patient"
    assert len(both.units) == len(found.units) + len(extra.units)
    assert both.units.row_count == len(both.examples)
    np.testing.assert_array_equal(
        both.units.rows_of(np.array([len(found.units)])), extra.units.rows_of(np.array([0])) + len(found.examples)
    )
    path.write_text(visits(8).replace("hospital_a", "new").replace("hospital_b", "new").replace("clinic", "new"))
    with pytest.raises(InvalidArgumentError, match="a patient of this file is in the study's data already"):
        joined_data(study.file, found, path, budgets)


# What is said --------------------------------------------------------------------------------------------------------


def test_the_promise_names_the_unit():
    assert "For each single training example of that owner" in guarantee()
    assert "For each single patient, with all its training examples, of that owner" in guarantee("patient")
    assert any("one patient at a time" in each for each in never_covered("patient"))
    assert any("number of each owner's families" in each for each in never_covered("family"))


def test_an_id_that_repeats_and_is_ignored_is_a_finding(tmp_path):
    text = visits()
    path = write_study(tmp_path, ('owner = "owner"', 'owner = "owner"\nignore = ["patient_id"]'), data=text)
    (found,) = repeated_ids(read_study(path))
    assert 'data.unit = "patient_id"' in found.text
    assert not found.evidence  # numbers of training rows are not told
    once = "\n".join(f"{line.rpartition(',')[0]},P{row}" for row, line in enumerate(text.splitlines()[1:]))
    path = write_study(tmp_path, data=f"{text.splitlines()[0]}\n{once}\n")
    assert not list(repeated_ids(read_study(path)))
    path = write_study(tmp_path, data=text.replace("patient_id", "ward"))
    assert not list(repeated_ids(read_study(path)))
    path = write_study(tmp_path, UNIT, data=text)
    assert not list(repeated_ids(read_study(path)))


def test_a_patient_whose_name_is_coded_in_two_ways_is_one(tmp_path):
    """Also where one half of it is held out: composed and decomposed accents look the same."""
    composed, decomposed = "P\u00e9", "Pe\u0301"
    lines = visits(prefix="P").replace(",P0\n", f",{composed}\n").splitlines()
    row = next(row for row, line in enumerate(lines) if line.endswith(composed))
    both = [*lines, lines[row].replace(composed, decomposed)]
    assert len(unit_study(tmp_path, data="\n".join(both) + "\n").split(0).units) == len(
        unit_study(tmp_path, data="\n".join(lines) + "\n").split(0).units
    )
    (tmp_path / "test.csv").write_text("\n".join([lines[0], both[-1]]) + "\n")
    message = problem_of(tmp_path, ("fraction = 0.25\nseed = 2", 'path = "test.csv"'), data="\n".join(lines) + "\n")
    assert "is a patient of the training data too" in message


def test_an_owner_that_is_called_like_two_who_share_is_refused(tmp_path):
    """A change of one of the two would give it their budget."""
    text = visits().replace(",clinic,", ",hospital_a & hospital_b,")
    message = problem_of(tmp_path, ("clinic = 8.0", '"hospital_a & hospital_b" = 0.5'), data=text)
    assert "' & ' stands between the names of owners who share a patient" in message
