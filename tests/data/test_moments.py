"""Dates and times, in text and as Parquet stores them."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.moments import CYCLES, check_format, last_moment, moment
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError

ZONE = datetime.timezone(datetime.timedelta(hours=2))
moments = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))


def table(values) -> Table:
    return Table("t.csv", pa.table({"x": values}))


def seconds(found: datetime.datetime) -> float:
    return (found - datetime.datetime(1970, 1, 1)).total_seconds()


@given(moments)
def test_texts_and_stored_types_agree(found):
    whole = found.replace(microsecond=0)
    texts = [whole.isoformat(), whole.isoformat(" "), whole.isoformat() + "Z", whole.strftime("%Y%m%dT%H%M%S")]
    assert table(texts).moments("x").tolist() == [seconds(whole)] * 4
    later = (whole + datetime.timedelta(hours=2)).isoformat() + "+02:00"
    assert table([later]).moments("x").tolist() == [seconds(whole)]
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "Europe/Berlin"):
            stored = pa.array([whole.replace(tzinfo=datetime.UTC)], pa.timestamp(unit, zone))
            assert table(stored).moments("x").tolist() == [seconds(whole)]
    day = datetime.datetime.combine(found.date(), datetime.time())
    for kind in (pa.date32(), pa.date64()):
        assert table(pa.array([found.date()], kind)).moments("x").tolist() == [seconds(day)]
    assert table([found.strftime("%d.%m.%Y")]).moments("x", "%d.%m.%Y").tolist() == [seconds(day)]


@pytest.mark.parametrize(
    "cell", ["2020-02-30", "31.12.2020", "yesterday", "2020", "2020-13-01", "20-01-01", "0000-01-01"]
)
def test_what_is_no_date(cell):
    with pytest.raises(InvalidArgumentError, match=r"column 'x', row 2: .* is not a date of ISO 8601.*format"):
        table(["2020-01-01", cell]).moments("x")


def test_other_types_are_refused():
    with pytest.raises(InvalidArgumentError, match="type double"):
        table([1.5]).moments("x")
    with pytest.raises(InvalidArgumentError, match=r"row 2: 'None' is missing"):
        table(["2020-01-01", None]).moments("x")
    assert table([20200102]).moments("x").tolist() == [moment("2020-01-02")]


def test_the_last_day_belongs_to_a_range():
    assert moment("2020-12-31T23:59:59") < last_moment("2020-12-31") < moment("2021-01-01")
    assert last_moment("2020-12-31T12:00") == moment("2020-12-31T12:00")


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%Y-%m", "%m/%d/%y %H:%M", "%Y%j"])
def test_formats(form):
    check_format(form)


@pytest.mark.parametrize(
    "form", ["", "%Y", "%H:%M", "%d.%m.", "%Q", "%Y%Y-%m", "%", "%Y-%m" + " " * 100, "\0%Y%m%d", "\ud800%Y%m"]
)
def test_formats_that_say_too_little(form):
    with pytest.raises(ValueError, match="give a format"):
        check_format(form)


@given(moments)
def test_cycles_are_what_the_calendar_says(found):
    at = np.array([seconds(found)])
    day = found.hour / 24 + found.minute / 1440 + found.second / 86400 + found.microsecond / 86400e6
    year = 366 if found.year % 4 == 0 and (found.year % 100 != 0 or found.year % 400 == 0) else 365
    wanted = {
        "year": (found.timetuple().tm_yday - 1 + day) / year,
        "week": (found.weekday() + day) / 7,
        "day": day,
    }
    for name, part in wanted.items():
        assert CYCLES[name](at)[0] == pytest.approx(part, abs=1e-9)
