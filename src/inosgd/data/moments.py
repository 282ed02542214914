"""Moments: dates and times as seconds since the beginning of 1970 in UTC.

A text without a time is the beginning of its day, and one without a time zone is in UTC.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np

from inosgd._arrays import FloatArray
from inosgd._extras import needs

with needs("data"):
    import pyarrow as pa

DAY = 86400.0
LONGEST_FORMAT = 64
_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_PROBE = datetime.datetime(2001, 2, 1)


def moment(text: str, form: str | None = None) -> float:
    """The moment that ``text`` names, in ISO 8601 or in the format ``form`` of ``datetime.strptime``.

    Raises:
        ValueError: If it names none.

    >>> moment("1970-01-02"), moment("1970-01-01T01:00:00+01:00"), moment("2.1.1970", "%d.%m.%Y")
    (86400.0, 0.0, 86400.0)
    """
    found = datetime.datetime.fromisoformat(text) if form is None else datetime.datetime.strptime(text, form)
    aware = found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    return (aware - _START).total_seconds()


def last_moment(text: str) -> float:
    """The moment that ``text`` names in ISO 8601; of a date without a time, the end of the day.

    >>> last_moment("1970-01-01") < 86400 == last_moment("1970-01-02T00:00")
    True
    """
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return moment(text)
    return moment(text) + DAY - 1e-6


def check_format(form: str) -> None:
    """Raise unless ``form`` is a format for dates with at least year and month."""
    try:
        understood = len(form) <= LONGEST_FORMAT and datetime.datetime.strptime(_PROBE.strftime(form), form)
    except (ValueError, re.error):
        understood = False
    if not understood or understood.date() != _PROBE.date():
        raise ValueError('give a format with year and month, such as "%d.%m.%Y" or "%m/%d/%Y %H:%M"')


def is_stored_moment(kind: Any) -> bool:
    """Whether a column of this type holds dates or times that need no reading."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def stored_moments(values: Any) -> FloatArray:
    """A column of timestamps or dates without a missing value; times of a zone are stored in UTC."""
    kind = values.type
    if pa.types.is_date32(kind):
        days: FloatArray = values.cast(pa.int32()).to_numpy() * DAY
        return days
    ticks = _TICKS["ms" if pa.types.is_date64(kind) else kind.unit]
    whole, rest = np.divmod(values.cast(pa.int64()).to_numpy(), ticks)
    seconds: FloatArray = whole + rest / ticks
    return seconds


def of_year(seconds: FloatArray) -> FloatArray:
    """How much of its year has passed at each moment, from 0 to 1."""
    years = np.floor(seconds).astype("datetime64[s]").astype("datetime64[Y]")
    first, following = ((years + more).astype("datetime64[s]").astype(np.int64) for more in (0, 1))
    return (seconds - first) / (following - first)


def of_week(seconds: FloatArray) -> FloatArray:
    """The same for the week, which begins on Monday."""
    return (seconds / DAY + 3) % 7 / 7


def of_day(seconds: FloatArray) -> FloatArray:
    """The same for the day."""
    return seconds / DAY % 1


CYCLES = {"year": of_year, "week": of_week, "day": of_day}
