"""Owners, budgets and who owns what."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inosgd import Budget, Owners, OwnerTable
from inosgd.errors import InvalidArgumentError, UnknownOwnerError

BUDGETS = {"a": Budget(epsilon=1.0, delta=1e-5), "b": Budget(epsilon=5.0, delta=1e-6)}


def test_rows_follow_the_order_of_budgets():
    owners = Owners.from_labels(["b", "a", "b", "b"], BUDGETS)
    assert owners.table.names == ("a", "b")
    assert owners.table.sizes.tolist() == [1, 3]
    assert owners.of([0, 1]).tolist() == [1, 0]
    assert owners.table.budget(1) == Budget(epsilon=5.0, delta=1e-6)
    assert len(owners) == 4


def test_an_owner_may_have_no_example():
    owners = Owners.from_labels(["a", "a"], BUDGETS)
    assert owners.table.sizes.tolist() == [2, 0]
    assert Owners.from_labels([], BUDGETS).table.sizes.tolist() == [0, 0]


def test_labels_may_be_numbers_or_arrays():
    owners = Owners.from_labels(
        np.array([3, 7, 3]), {3: Budget(epsilon=1, delta=1e-5), 7: Budget(epsilon=2, delta=1e-5)}
    )
    assert owners.table.names == ("3", "7")
    assert owners.assignment.tolist() == [0, 1, 0]


def test_fifty_thousand_owners_with_one_record_each():
    owners = Owners.one_each(np.linspace(0.25, 5.25, 50_000), delta=1e-5)
    assert len(owners.table) == 50_000
    assert owners.of([49_999]).tolist() == [49_999]
    assert owners.table.privacy_ranks[[0, 49_999]].tolist() == [0, 49_999]


def test_privacy_ranks_go_by_epsilon_then_delta():
    table = OwnerTable(("a", "b", "c"), [2.0, 1.0, 1.0], [1e-5, 1e-5, 1e-6], [1, 1, 1])
    assert table.privacy_ranks.tolist() == [2, 1, 0]


def test_a_table_equals_itself_after_json():
    table = OwnerTable(("a", "b"), [0.1, math.inf], [1e-5, 1e-6], [3, 4])
    assert OwnerTable.from_json(table.to_json()) == table
    assert table != OwnerTable(("a", "b"), [0.1, 2.0], [1e-5, 1e-6], [3, 4])


def test_arrays_cannot_be_changed_behind_the_tables_back():
    sizes = np.array([1, 2])
    table = OwnerTable(("a", "b"), [1.0, 2.0], [1e-5, 1e-5], sizes)
    sizes[0] = 99
    assert table.sizes.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        table.epsilons[0] = 100.0


def test_budgets_are_given_by_name_so_that_epsilon_and_delta_cannot_be_exchanged():
    with pytest.raises(TypeError, match="positional"):
        Budget(1e-5, 0.5)


def test_a_delta_is_too_large_from_one_over_the_number_of_examples():
    def found(delta):
        return OwnerTable(("a", "b"), [1.0, 2.0], [1e-9, delta], [60, 40]).too_large_delta()

    assert found(0.0099) is None
    for delta in (0.01, 0.5):
        value, fix = found(delta)
        assert value == delta
        assert "'b': with 100 examples" in fix


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: Budget(epsilon=0.0, delta=1e-5), InvalidArgumentError, "epsilon=0.0: give a number greater than 0"),
        (lambda: Budget(epsilon=math.nan, delta=1e-5), InvalidArgumentError, "epsilon=nan"),
        (lambda: Budget(epsilon=-1.0, delta=1e-5), InvalidArgumentError, "epsilon=-1.0"),
        (
            lambda: Budget(epsilon=1.0, delta=0.0),
            InvalidArgumentError,
            "delta=0.0: give a number strictly between 0 and 1",
        ),
        (lambda: Budget(epsilon=1.0, delta=1.0), InvalidArgumentError, "delta=1.0"),
        (lambda: Budget(epsilon=1.0, delta=math.nan), InvalidArgumentError, "delta=nan"),
        (lambda: OwnerTable(("a",), [1.0, 2.0], [1e-5], [1]), InvalidArgumentError, r"len\(epsilons\)=2"),
        (lambda: OwnerTable(("a", "a"), [1.0, 2.0], [1e-5] * 2, [1, 1]), InvalidArgumentError, "'a': appears twice"),
        (lambda: OwnerTable(("a",), [1.0], [1e-5], [-1]), InvalidArgumentError, r"size\[0\]=-1"),
        (lambda: OwnerTable((), [], [], []), InvalidArgumentError, "at least one owner"),
        (lambda: Owners.from_labels(["a", "zoe"], BUDGETS), UnknownOwnerError, "owner 'zoe' owns 1 examples"),
        (lambda: Owners.one_each([1.0, -2.0], 1e-5), InvalidArgumentError, r"epsilon\[1\]=-2.0"),
        (lambda: Owners.one_each([[1.0]], 1e-5), InvalidArgumentError, "flat array"),
    ],
)
def test_bad_owners_are_refused_by_name(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64])
def test_rows_of_any_width_are_the_labels_they_stand_for(kind, monkeypatch):
    monkeypatch.setattr(
        "inosgd.owners.pieces", lambda rows: ((start, rows[start : start + 2]) for start in range(0, 5, 2))
    )
    rows = np.array([1, 0, 1, 1, 0], dtype=kind)
    owners = Owners.from_rows(rows, BUDGETS)
    assert owners == Owners.from_labels(["ab"[row] for row in rows], BUDGETS)
    assert owners.assignment.dtype == kind
    assert owners.of([4, 3]).dtype == np.int64
    rows[0] = 0
    assert owners.of([0]).tolist() == [1]


def test_a_mapped_array_of_owners_stays_on_disk(tmp_path):
    np.save(tmp_path / "owners.npy", np.array([1, 0, 1], dtype=np.uint16))
    mapped = np.load(tmp_path / "owners.npy", mmap_mode="r")
    assert Owners.from_rows(mapped, BUDGETS).assignment is mapped


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.array([0, 2]), r"assignment\[1\]=2: give a row from 0 to 1"),
        (np.array([0, -1]), r"assignment\[1\]=-1"),
        (np.array([0.0, 1.0]), "type float64; give one whole number per example"),
        (np.array([[0, 1]]), r"shape \(1, 2\)"),
    ],
)
def test_rows_that_are_no_owners_are_refused(rows, words):
    with pytest.raises(InvalidArgumentError, match=words):
        Owners.from_rows(rows, BUDGETS)


def test_epsilons_with_a_common_delta():
    owners = Owners.from_labels(["a", "b"], {"a": 0.5, "b": Budget(epsilon=2.0, delta=1e-6)}, delta=1e-5)
    assert owners.table.epsilons.tolist() == [0.5, 2.0]
    assert owners.table.deltas.tolist() == [1e-5, 1e-6]
    with pytest.raises(InvalidArgumentError, match=r"owner 'a' has epsilon=0.5 alone"):
        Owners.from_labels(["a"], {"a": 0.5})
