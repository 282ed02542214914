"""From files to training and held-out examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd.study.budgets import budgets_by_epsilon
from inosgd.study.data import held_out_rows, load_data
from inosgd.study.encoding import encoding_from_json
from inosgd.study.fingerprints import fingerprint, refuse_changes, study_fingerprints
from inosgd.study.joining import restricted
from inosgd.study.reading import read_study
from tests.study.writers import table_text, write_images, write_study


@given(st.integers(0, 300), st.integers(0, 50), st.floats(0, 0.99), st.integers(0, 2**40))
def test_one_row_more_moves_no_other(count, more, fraction, seed):
    """So that training sets which differ by one example differ by that one alone."""
    assert held_out_rows(count + more, fraction, seed)[:count].tolist() == held_out_rows(count, fraction, seed).tolist()


def test_a_shuffled_split_would_move_others():
    """The negative control: what the usual split by permutation does."""

    def shuffled(count: int) -> set[int]:
        return set(np.random.default_rng(0).permutation(count)[: count // 4].tolist())

    assert shuffled(101) - {100} != shuffled(100)


def test_every_example_is_in_one_place_with_its_owner(tmp_path):
    data = load_data(read_study(write_study(tmp_path)))
    assert len(data.examples) + len(data.held_out) == 90
    chosen = held_out_rows(90, 0.25, 2)
    rows = [line.split(",") for line in table_text().splitlines()[1:]]
    names = np.array(data.owners.table.names)
    assert names[data.owners.assignment].tolist() == [row[4] for row, out in zip(rows, chosen, strict=True) if not out]
    assert names[data.held_out.groups].tolist() == [row[4] for row, out in zip(rows, chosen, strict=True) if out]
    assert data.task.names == ("no", "yes")
    ages = [float(row[0]) / 60 - 1 for row, out in zip(rows, chosen, strict=True) if not out]
    torch.testing.assert_close(data.examples.inputs[:, 0], torch.tensor(ages))
    sexes = data.examples.inputs[:, 1:3]
    assert sexes.sum(1).tolist() == [1.0] * len(data.examples)


def test_an_encoding_survives_json(tmp_path):
    study = read_study(write_study(tmp_path))
    encoding = load_data(study).encoding
    assert encoding_from_json(encoding.to_json()) == encoding
    assert encoding.shape == (4,)
    assert not encoding.fitted


def test_what_is_fitted_is_fitted_to_training_rows_only(tmp_path):
    changes = [
        ("age = [0, 120]", 'age = "numeric"'),
        ('owner = "owner"', 'owner = "owner"\nunaccounted_scaling = true'),
    ]
    lines = table_text().splitlines()
    held_out = int(np.flatnonzero(held_out_rows(90, 0.25, 2))[0]) + 1
    lines[held_out] = "5000" + lines[held_out][lines[held_out].index(",") :]
    data = load_data(read_study(write_study(tmp_path, *changes, data="\n".join(lines) + "\n")))
    assert data.encoding.fitted
    assert data.encoding.columns["age"].range.high < 120
    assert float(data.held_out.inputs[:, 0].max()) == 1.0  # brought to the end of the range


def test_clamped_values_are_brought_to_the_ends(tmp_path):
    changes = [("age = [0, 120]", "age = [40, 60]"), ('owner = "owner"', 'owner = "owner"\noutside_range = "clamp"')]
    inputs = load_data(read_study(write_study(tmp_path, *changes))).examples.inputs[:, 0]
    assert float(inputs.min()) == -1
    assert float(inputs.max()) == 1


def test_rows_with_budgets_of_their_own_form_an_owner_per_budget(tmp_path):
    owners = "[budgets.owners]\nhospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n"
    text = table_text().replace("owner", "eps").replace("hospital_a", "0.5").replace("hospital_b", "3")
    study = write_study(
        tmp_path, ('owner = "owner"', 'epsilon = "eps"'), (owners, ""), data=text.replace("clinic", "0.50")
    )
    table = load_data(read_study(study)).owners.table
    assert table.names == ("rows at epsilon 0.5", "rows at epsilon 3")
    assert table.epsilons.tolist() == [0.5, 3.0]
    assert table.deltas.tolist() == [1e-5, 1e-5]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_names_after_budgets_are_as_many_as_budgets(epsilons):
    names, budgets = budgets_by_epsilon(np.array(epsilons), 1e-6)
    assert len(budgets) == len(set(epsilons))
    assert [budgets[name].epsilon for name in names] == epsilons


def test_withdrawn_owners_leave_with_their_held_out_examples(tmp_path):
    data = load_data(read_study(write_study(tmp_path)))
    table = data.owners.table
    without = type(table)(table.names, table.epsilons, table.deltas, [table.sizes[0], 0, table.sizes[2]])
    less = restricted(data, without)
    assert less.owners.table == without
    assert 1 not in less.held_out.groups
    assert len(less.examples) == len(data.examples) - table.sizes[1]
    assert len(less.held_out) == int((data.held_out.groups != 1).sum())


def test_fingerprints_find_every_change(tmp_path):
    study = read_study(write_study(tmp_path))
    recorded = study_fingerprints(study)
    refuse_changes(recorded, study_fingerprints(study))
    (tmp_path / "cases.csv").write_text(table_text() + "1,f,0.1,yes,clinic\n")
    with pytest.raises(ValueError, match="is not the file that this run began with"):
        refuse_changes(recorded, study_fingerprints(study))
    write_images(tmp_path / "pictures", count=6)
    before = fingerprint(tmp_path / "pictures")
    first, second = sorted((tmp_path / "pictures").rglob("*.png"))[:2]
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert fingerprint(tmp_path / "pictures") != before  # also if two files change places
    first.write_bytes(one)
    second.write_bytes(two)
    assert fingerprint(tmp_path / "pictures") == before
    second.rename(second.with_name("renamed.png"))
    assert fingerprint(tmp_path / "pictures") != before
