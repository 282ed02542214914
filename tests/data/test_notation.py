"""Numbers as tables write them, and texts that stand for nothing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.notation import PLAIN, Notation
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError


def table(*cells: object, notation: Notation = PLAIN) -> Table:
    return Table("t.csv", pa.table({"x": list(cells)}), notation=notation)


GERMAN, SWISS = Notation(decimal=",", thousands="."), Notation(thousands="'")


@pytest.mark.parametrize(
    ("notation", "cell", "number"),
    [
        (GERMAN, "1.234.567,5", 1234567.5),
        (GERMAN, "-1.234", -1234),
        (GERMAN, "1234,5", 1234.5),
        (GERMAN, "0,5e-3", 0.0005),
        (SWISS, "1'234.5", 1234.5),
        (Notation(thousands=","), "12,345", 12345),
        (Notation(thousands=" "), " 1 234 ", 1234),
        (Notation(decimal=","), "3", 3),
        (Notation(thousands="\u202f", decimal=","), "1\u202f234,5", 1234.5),
    ],
)
def test_numbers_in_other_notations(notation, cell, number):
    assert table(cell, notation=notation).numbers("x").tolist() == [number]


@pytest.mark.parametrize(
    ("notation", "cell"),
    [
        (PLAIN, "1,5"),
        (PLAIN, "1.234,5"),
        (PLAIN, "1'000"),
        (GERMAN, "1.5"),
        (GERMAN, "1.23.456"),
        (GERMAN, "1,234.5"),
        (Notation(decimal=","), "1.5"),
        (Notation(thousands=","), "1,5"),
        (Notation(thousands=","), "1234,567"),
        (SWISS, "1'23"),
    ],
)
def test_a_number_is_never_read_as_another(notation, cell):
    with pytest.raises(InvalidArgumentError, match=r"column 'x', row 2: .* is not a number: .*data\.decimal"):
        table("1", cell, notation=notation).numbers("x")


@given(st.floats(-1e9, 1e9), st.sampled_from([GERMAN, SWISS, Notation(thousands=","), Notation(decimal=",")]))
def test_what_is_written_is_read(number, notation):
    written = f"{number:,.6f}".replace(",", "t").replace(".", "d")
    text = written.replace("d", notation.decimal).replace("t", notation.thousands or "")
    assert table(text, notation=notation).numbers("x").tolist() == [float(f"{number:.6f}")]


@pytest.mark.parametrize(
    "fields",
    [
        {"decimal": ";"},
        {"thousands": "."},
        {"thousands": "1"},
        {"thousands": "ab"},
        {"thousands": "-"},
        {"missing": (1,)},
    ],
)
def test_notations_that_cannot_be_meant(fields):
    with pytest.raises(InvalidArgumentError, match=next(iter(fields))):
        Notation(**fields)


def test_what_counts_as_missing():
    cells = ("NA", " NA ", "", None, "na", "0", "north")
    listed = Notation(missing=("NA",))
    assert table(*cells, notation=listed).missing("x").tolist() == [True, True, True, True, False, False, False]
    assert table(*cells, notation=listed).missing("x", ["NA"]).tolist() == [False, False, True, True, *[False] * 3]
    assert table(*cells).missing("x").tolist() == [False, False, True, True, False, False, False]
    assert table(1.0, None, float("nan")).missing("x").tolist() == [False, True, True]
    assert table(None, None).missing("x").tolist() == [True, True]


def test_rows_keep_their_numbers_when_others_are_left_out():
    whole = table("1", "2", "three", "4")
    part = whole.only(np.array([False, True, True, True]))
    for some in (part, part.only(np.array([False, True, True]), "x")):
        with pytest.raises(InvalidArgumentError, match=r"row 3: 'three'"):
            some.numbers("x")
