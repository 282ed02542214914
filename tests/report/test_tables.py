"""The numbers behind the charts."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.compare import views
from inosgd.report import tables
from inosgd.report.page import compact
from inosgd.report.sections import numbers
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
            for step, score, loss in zip(found["steps"], bands["score"], bands["loss"], strict=True):
                row = rows[label, owner, step]
                assert row["score"] == pytest.approx(score["mean"], rel=1e-4)
                assert row["score_sd"] == pytest.approx(score["sd"], rel=1e-4)
                assert (row["loss"], row["loss_sd"]) == pytest.approx((loss["mean"], loss["sd"]), rel=1e-4)


def test_methods_in_one_place_share_a_name():
    material = material_of(methods=3)
    first, second, third = material.rows
    material = dataclasses.replace(material, rows=(first, dataclasses.replace(second, results=first.results), third))
    names = {row["method"]: row["name"] for row in tables.rows_of(tables.all_tables(material)["pareto"])}
    assert names == {first.label: f"{first.label}, {second.label}", second.label: "", third.label: third.label}


def test_changes_are_paired_by_seed():
    material = material_of(methods=3, seeds=3)
    found = next(row for row in tables.change_rows(material) if row["method"] == "ino-sgd")
    ours, theirs = material.evaluated["ino-sgd"], material.evaluated["idp-sgd"]
    changes = [
        our.final.owners[found["owner"]].score - their.final.owners[found["owner"]].score
        for our, their in zip(ours, theirs, strict=True)
    ]
    assert found["change"] == pytest.approx(np.mean(changes), rel=1e-4)
    assert found["change_sd"] == pytest.approx(np.std(changes, ddof=1), rel=1e-4)
    two = next(row for row in tables.change_rows(material_of(methods=3, seeds=2)) if row["method"] == "ino-sgd")
    assert two["change_sd"] == 0  # too few for a standard deviation


def spending(spent: float) -> dict:
    material = material_of(names=("strict",), methods=1)
    row = dataclasses.replace(material.rows[0], spent={"strict": spent})
    return next(tables.spending_rows(dataclasses.replace(material, rows=(row,))))


@given(st.floats(1e-9, 2.0))
def test_spent_is_never_rounded_down(spent):
    found = spending(spent)  # of a budget of 1
    assert spent <= found["spent"] <= spent * 1.0011
    assert spent <= found["share"] <= spent * 1.011
    assert (found["spent"] <= 1) == (spent <= 1)


def test_rounding_to_the_nearest_would_be_caught(monkeypatch):
    assert spending(0.123412)["spent"] == 0.1235
    monkeypatch.setattr(tables, "rounded_up", lambda value, digits, within: f"{value:.{digits}g}")
    assert spending(0.123412)["spent"] < 0.123412


def test_pages_show_what_was_spent_as_the_table_has_it():
    material = material_of(names=("strict",), methods=1)
    row = dataclasses.replace(material.rows[0], spent={"strict": 0.123412})
    material = dataclasses.replace(material, rows=(row,))
    assert "<td class=number>0.1235</td>" in numbers(material, tables.all_tables(material))


def test_numbers_that_are_none():
    assert tables._short(math.nan) is None
    assert tables._short(None) is None
    assert spending(math.inf)["spent"] is None
    assert spending(0.0)["spent"] == 0.0


def test_rows_far_below_do_not_squeeze_the_others():
    assert tables._lowest_drawn([0.5, 0.6]) == pytest.approx(0.4)
    assert tables._lowest_drawn([0.6]) == pytest.approx(0.55)


def test_a_single_evaluation_is_no_curve():
    made = tables.all_tables(material_of(points=1))
    assert not {"curves", "progress", "classes"} & set(made)
    assert "ends" in made
    assert {"curves", "progress", "classes"} <= set(tables.all_tables(material_of(points=2)))  # the control


def test_a_single_owner_is_not_its_own_worst_off():
    alone = material_of(names=("registry",), methods=1)
    assert set(tables.all_tables(alone)["progress"]["measure"]) == {"overall"}
    assert "worst owner" not in alone.verdict
    assert "the owner's budget was kept" in alone.verdict
    assert "worst owner" in material_of(methods=1).verdict  # the control


def test_every_roc_has_the_highest_curve_that_the_epsilon_allows():
    """Nobody should read an area of 0.55 as safe, or as bad, without seeing what was possible."""
    material = material_of(owners=3, methods=4, seeds=2, points=5)
    rows = [row for row in tables.roc_rows(material) if row["false_positive_rate"] > 0]
    assert rows
    assert all(row["highest"] >= row["true_positive_rate"] for row in rows)
