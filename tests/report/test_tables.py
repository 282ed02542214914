"""The numbers behind the charts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.report import tables
from inosgd.report.page import compact
from inosgd.studies import views
from tests.report.materials import material_of


def expanded(packed):
    """What the page's script makes of a packed table."""
    columns = {
        name: [column["values"][code] for code in column["codes"]] if isinstance(column, dict) else column
        for name, column in packed["columns"].items()
    }
    return [{name: columns[name][row] for name in columns} for row in range(packed["count"])]


def test_tables_of_everything():
    material = material_of(owners=3, methods=4, seeds=2, points=5)
    made = tables.all_tables(material)
    assert set(made) == set(tables.TABLES)
    assert tables.length(made["curves"]) == 4 * 3 * 5
    assert tables.length(made["progress"]) == 4 * 3 * 5
    assert tables.length(made["ends"]) == tables.length(made["spending"]) == 4 * 3
    assert tables.length(made["changes"]) == 3 * 3
    for table in made.values():
        assert expanded(compact(table)) == tables.rows_of(table)


def test_tables_without_rows_are_left_out():
    material = material_of(methods=1, extras=False)
    assert set(tables.all_tables(material)) == {"curves", "progress", "ends", "spending", "terms", "classes"}


def test_curves_are_those_of_the_views():
    material = material_of(seeds=3)
    rows = {
        (row["method"], row["owner"], row["step"]): row for row in tables.rows_of(tables.all_tables(material)["curves"])
    }
    for label, found in views.curves(material.evaluated_main).items():
        for owner, bands in found["owners"].items():
            for step, recall, loss in zip(found["steps"], bands["recall"], bands["loss"], strict=True):
                row = rows[label, owner, step]
                assert row["recall"] == pytest.approx(recall["mean"], rel=1e-4)
                assert row["recall_sd"] == pytest.approx(recall["sd"], rel=1e-4)
                assert (row["loss"], row["loss_sd"]) == pytest.approx((loss["mean"], loss["sd"]), rel=1e-4)


def test_changes_are_paired_by_seed():
    material = material_of(methods=3, seeds=2)
    found = next(row for row in tables.change_rows(material) if row["method"] == "ino-sgd")
    ours, theirs = material.evaluated["ino-sgd"], material.evaluated["idp-sgd"]
    changes = [
        our.final.owners[found["owner"]].recall - their.final.owners[found["owner"]].recall
        for our, their in zip(ours, theirs, strict=True)
    ]
    assert found["change"] == pytest.approx(np.mean(changes), rel=1e-4)
    assert found["change_sd"] == pytest.approx(np.std(changes, ddof=1), rel=1e-4)


@given(st.floats(1e-9, 1e9))
def test_spent_is_never_rounded_down(spent):
    assert tables._up(spent) >= spent * (1 - 1e-9)
    assert tables._up(spent) <= spent * 1.0002


def test_rounding_to_the_nearest_would_be_caught():
    assert tables._short(0.99999901) == 1.0
    assert tables._short(1.000004) < 1.000004  # to the nearest: below what was spent
    assert tables._up(1.000004) > 1.000004


def test_numbers_that_are_none():
    assert tables._short(math.nan) is None
    assert tables._short(None) is None
    assert tables._up(math.inf) is None
    assert tables._up(0.0) == 0.0


def test_rows_far_below_do_not_squeeze_the_others():
    assert tables._lowest_drawn([0.5, 0.6]) == pytest.approx(0.4)
    assert tables._lowest_drawn([0.6]) == pytest.approx(0.55)
