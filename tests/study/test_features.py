"""Features: each row's inputs come from that row and from what is declared, and from nothing else."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.notation import USUAL_MISSING, Notation
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError
from inosgd.study.declarations import parse_feature
from inosgd.study.encoding import TableEncoding, encoding_from_json
from inosgd.study.features import INDICATOR, NumericFeature, encode, fit, outside, width

NOTATION = Notation(USUAL_MISSING, ",", ".")
DATES = ["2015-01-01", "2025-12-31"]
FEATURES = {
    "age": {"range": [0, 120], "missing": 60},
    "dose": {"range": [-3, 3], "missing": INDICATOR},
    "sex": {"categories": ["f", "m", "None"], "missing": INDICATOR},
    "region": {"categories": ["north", "south"], "missing": "south"},
    "smoker": {"boolean": True, "missing": False},
    "treated": {"boolean": True, "missing": INDICATOR},
    "visit": {"date": DATES, "missing": "2020-06-01", "cycles": ["year", "week", "day"]},
    "seen": {"date": DATES, "format": "%d.%m.%Y", "missing": INDICATOR},
    "note": {"text": "words", "max_length": 5},
}
ENCODING = TableEncoding({name: parse_feature(value) for name, value in FEATURES.items()}, NOTATION)

nothing = st.sampled_from(["", " ", "NA", "NaN", "?"])
number = st.floats(-200, 200).map(lambda value: f"{value:,.3f}".replace(",", "t").replace(".", ",").replace("t", "."))
truth = st.sampled_from(["yes", "No", "TRUE", "false", "1", "0", "y", "F"])
day = st.dates(min_value=datetime.date(2010, 1, 1), max_value=datetime.date(2030, 1, 1))
rows = st.fixed_dictionaries(
    {
        "age": number | nothing,
        "dose": number | nothing,
        "sex": st.sampled_from(["f", "m", "None"]) | nothing,
        "region": st.sampled_from(["north", " south "]) | nothing,
        "smoker": truth | nothing,
        "treated": truth | nothing,
        "visit": day.map(str) | nothing,
        "seen": day.map(lambda found: f"{found:%d.%m.%Y}") | nothing,
        "note": st.text("ab .", max_size=9),
    }
)


def table(found: list[dict[str, object]], notation: Notation = NOTATION) -> Table:
    return Table(Path("t.csv"), pa.Table.from_pylist(found), notation=notation)


def depends_on_others(encode_table, first: dict[str, str], others: list[dict[str, str]]) -> bool:
    """Whether the inputs of a row change when other rows come to stand beside it."""
    alone, together = encode_table(table([first])), encode_table(table([first, *others]))
    return any(not torch.equal(alone[:1][name], together[:1][name]) for name in alone[:1])


@given(rows, st.lists(rows, max_size=5))
def test_inputs_of_a_row_depend_on_that_row_alone(first, others):
    """So that encoding costs no privacy; with missing values, dates and everything else that may be declared."""
    assert not depends_on_others(ENCODING.encode, first, others)


def test_a_fitted_value_for_missing_ones_would_depend_on_others():
    """The negative control: the mean of the column for missing ages, as is often done."""

    def with_mean(found: Table):
        present = found.only(~found.missing("age"))
        mean = float(present.numbers("age").mean()) if len(present) else 60.0
        age = replace(ENCODING.columns["age"], missing=mean)
        return TableEncoding(ENCODING.columns | {"age": age}, NOTATION).encode(found)

    row = {"age": "NA", "dose": "1", "sex": "f", "region": "north", "smoker": "1", "treated": "0"}
    row |= {"visit": "2020-01-01", "seen": "01.01.2020", "note": ""}
    assert depends_on_others(with_mean, row, [row | {"age": "90"}])
    assert not depends_on_others(ENCODING.encode, row, [row | {"age": "90"}])


@pytest.mark.parametrize("kind", ["numeric", "categorical"])
def test_fitted_features_depend_on_others_and_say_so(kind):
    """The negative control for ranges and categories."""
    unfitted = parse_feature({"range": "fitted"} if kind == "numeric" else {"categories": "fitted"})
    one, two = (fit(unfitted, table([{"x": cell} for cell in cells]), "x") for cells in (["1", "2"], ["1", "2", "3"]))
    assert one != two
    assert one.fitted
    assert two.fitted


@given(st.lists(rows, min_size=1, max_size=4))
def test_an_encoding_survives_json(found):
    again = encoding_from_json(json.loads(json.dumps(ENCODING.to_json())))
    assert again == ENCODING
    for part, tensor in ENCODING.encode(table(found)).tensors.items():
        assert torch.equal(again.encode(table(found, Notation())).tensors[part], tensor)
        assert ENCODING.shape[part] == tuple(tensor.shape[1:])


def encoded(value, *cells: object, name: str = "x") -> list[list[float]]:
    return encode(parse_feature(value), table([{name: cell} for cell in cells]), name).round(4).tolist()


def test_what_missing_values_become():
    assert encoded({"range": [0, 10], "missing": 5}, "10", "NA", "") == [[1], [0], [0]]
    assert encoded({"range": [0, 10], "missing": INDICATOR}, "10", "NA", "5") == [[1, 0], [0, 1], [0, 0]]
    assert encoded({"range": [0, 10], "missing": INDICATOR}, 10.0, None, float("nan")) == [[1, 0], [0, 1], [0, 1]]
    assert encoded({"categories": ["a", "b"], "missing": "b"}, "a", "?") == [[1, 0], [0, 1]]
    assert encoded({"categories": ["a", "b"], "missing": INDICATOR}, "b", None) == [[0, 1, 0], [0, 0, 1]]
    assert encoded({"boolean": True, "missing": True}, "no", "-") == [[-1], [1]]
    assert encoded({"boolean": True, "missing": INDICATOR}, True, None, False) == [[1, 0], [0, 1], [-1, 0]]
    assert encoded({"text": "bytes", "max_length": 2}, "a", None) == [[98, 0], [0, 0]]
    ends = {"date": ["2020-01-01", "2020-01-02T00:00"], "missing": "2020-01-01T12:00"}
    assert encoded(ends, "2020-01-02", "NA", "2020-01-01") == [[1], [0], [-1]]
    assert encoded({"range": [0, 10], "missing": INDICATOR}, None, None) == [[0, 1], [0, 1]]


def test_a_declared_category_is_never_missing():
    """None is what some tables call a degree; NA is a country."""
    assert encoded({"categories": ["None", "mild"], "missing": INDICATOR}, "None", "NA") == [[1, 0, 0], [0, 0, 1]]
    assert encoded(["None", "mild"], "None") == [[1, 0]]


def test_fitted_features_know_the_value_for_missing_ones():
    ages = fit(parse_feature({"range": "fitted", "missing": 200}), table([{"x": "20"}, {"x": ""}, {"x": "80"}]), "x")
    assert (ages.range.low, ages.range.high) == (20, 200)
    kinds = fit(parse_feature({"categories": "fitted", "missing": "other"}), table([{"x": "b"}, {"x": "NA"}]), "x")
    assert kinds.categories == ("b", "other")
    encoding = TableEncoding({"x": replace(kinds, categories=("b",), missing=None)}, NOTATION)
    assert encoding_from_json(encoding.to_json()) == encoding  # a single category, which no study would declare
    with pytest.raises(InvalidArgumentError, match="no row to train on has a value"):
        fit(parse_feature({"range": "fitted", "missing": 200}), table([{"x": ""}]), "x")


@pytest.mark.parametrize(
    ("value", "cells", "words"),
    [
        (
            [0, 120],
            ("1", "NA"),
            "row 2: 'NA' is missing; .* data.features.x = { range = .0, 120., missing = \"indicator\"",
        ),
        (["a", "b"], ("a", " "), "row 2: ' ' is empty; .* { categories = ..a., .b..,"),
        ("boolean", ("1", "2"), "row 2: '2' is neither true nor false; write true or false"),
        ("boolean", ("1", ""), "row 2: '' is empty; .* { boolean = true, missing"),
        ({"date": DATES}, ("2020-01-01", "1.1.2020"), "row 2: '1.1.2020' is not a date of ISO 8601, .* with format"),
        ({"date": DATES, "format": "%d.%m.%Y"}, ("1.1.2020", "2020-01-01"), "row 2: .* written as '%d.%m.%Y'"),
        ({"date": DATES}, ("2020-01-01", "None"), "row 2: 'None' is missing; .* { date = "),
    ],
)
def test_what_cannot_be_used_is_named_with_its_fix(value, cells, words):
    with pytest.raises(InvalidArgumentError, match=f"t.csv: column 'x', {words}"):
        encoded(value, *cells)


def test_rows_behind_missing_ones_keep_their_numbers():
    with pytest.raises(InvalidArgumentError, match="row 4: 'c' is none"):
        encoded({"categories": ["a", "b"], "missing": INDICATOR}, "NA", "a", "", "c")


def test_missing_values_lie_within_every_range():
    feature = parse_feature({"range": [0, 10], "missing": INDICATOR})
    cells = table([{"x": cell} for cell in ("11", "NA", "5", "-1")])
    assert outside(feature, cells, "x").tolist() == [True, False, False, True]
    dates = table([{"x": cell} for cell in ("2014-12-31", "2025-12-31T23:00", "2026-01-01", "")])
    assert outside(parse_feature({"date": DATES}), dates, "x").tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"range": [0, 1], "missing": 2}, "outside the range"),
        ({"range": [0, 1], "missing": "mean"}, "give a number"),
        ({"range": [0, 1], "missing": float("nan")}, "give a number"),
        ({"range": [0, 1], "missing": True}, "give a number"),
        ({"range": [0, 1], "fill": 0}, "'fill' is no part of a column of numbers; give range, missing"),
        ({"range": [0, 1], "categories": ["a"]}, "such as"),
        ({"range": 5}, "two numbers"),
        ({"categories": ["a", "b"], "missing": "c"}, "one of the categories"),
        ({"categories": ["a", 1]}, "as text"),
        ({"boolean": False}, "boolean = true"),
        ({"boolean": True, "missing": "yes"}, "true, false"),
        ({"date": ["2020-01-01"]}, "the first and the last"),
        ({"date": ["2020-01-02", "2020-01-01"]}, "exchange"),
        ({"date": [5, "2020-01-01"]}, "ISO 8601"),
        ({"date": DATES, "missing": "1999-01-01"}, "outside the range"),
        ({"date": DATES, "missing": "soon"}, "ISO 8601"),
        ({"date": DATES, "format": "%H"}, "year and month"),
        ({"date": DATES, "format": 7}, "as text"),
        ({"date": DATES, "cycles": ["month"]}, "year, week, day"),
        ({"date": DATES, "cycles": ["year"] * 9}, "year, week, day"),
        ({"text": "words", "max_length": 4, "missing": "x"}, "no part of a text column"),
        ("bool", '"boolean"'),
        ({}, "such as"),
        (None, "such as"),
        ([[1], [2]], "such as"),
    ],
)
def test_declarations_that_cannot_be_used(value, words):
    with pytest.raises(ValueError, match=words):
        parse_feature(value)


def test_widths():
    assert [width(feature) for feature in ENCODING.columns.values()] == [1, 2, 4, 2, 1, 2, 7, 2, 5]
    assert parse_feature([0, 120]) == NumericFeature(parse_feature({"range": [0, 120]}).range)
    assert np.abs(encode(ENCODING.columns["visit"], table([{"visit": "2020-02-29"}]), "visit")).max() <= 1
