"""Declarations: features as a study file writes them, one key per column in ``[data.features]``.

| in the file                                             | the column                                              |
| ------------------------------------------------------- | ------------------------------------------------------- |
| ``age = [0, 120]``                                      | numeric, with its public range                          |
| ``sex = ["f", "m"]``                                    | categorical, with its categories                        |
| ``smoker = "boolean"``                                  | true or false, yes or no, 1 or 0                        |
| ``visit = { date = ["2015-01-01", "2025-12-31"] }``     | dates, with their public range                          |
| ``note = { text = "words", max_length = 80 }``          | text                                                    |
| ``weight = "numeric"``, ``city = "categorical"``        | what is left out is fitted to the training data         |

The first three, written out, are ``{ range = [0, 120] }``, ``{ categories = ["f", "m"] }`` and ``{ boolean = true }``,
and take the key ``missing``: a value that stands for a missing one, or ``"indicator"``. So do dates. This is also how
features are saved with a model.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inosgd.data.moments import CYCLES, check_format, last_moment, moment
from inosgd.data.scaling import Range
from inosgd.study.features import (
    INDICATOR,
    BooleanFeature,
    CategoricalFeature,
    DateFeature,
    Declared,
    NumericFeature,
    TextFeature,
    UnfittedFeature,
)

TOKENS = ("bytes", "words")
DEFAULT_VOCABULARY = 4096
MOST_SYMBOLS = 100_000
FITTED = "fitted"

_SHORT: dict[str, dict[str, Any]] = {
    "numeric": {"range": FITTED},
    "categorical": {"categories": FITTED},
    "boolean": {"boolean": True},
}
_ALL = (
    'give a range such as [0, 120], categories as text such as ["f", "m"], "boolean", dates such as { date = '
    '["2015-01-01", "2025-12-31"] }, a text column such as { text = "words", max_length = 80 }, or, with '
    'data.unaccounted_scaling = true, "numeric" or "categorical"'
)


def parse_feature(value: Any) -> Declared:
    """The feature that ``value`` declares; the inverse of a feature's ``to_json``.

    Raises:
        ValueError: With the fix as its message; the caller names file, key and value.
    """
    fields = _written_out(value)
    kinds = [key for key in _KINDS if key in fields]
    if len(kinds) != 1:
        raise ValueError(_ALL)
    kind = _KINDS[kinds[0]]
    unknown = sorted(str(key) for key in set(fields) - {kinds[0], *kind.keys})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no part of {kind.name}; give {', '.join((kinds[0], *kind.keys))}")
    return kind.parse(fields)


def parse_range(value: list[Any]) -> tuple[float, float]:
    """Two finite numbers, the lower one first."""
    low, high = (float(entry) if _is_finite(entry) else math.nan for entry in value)
    if not math.isfinite(high - low):
        raise ValueError("give two finite numbers, the lower one first")
    if not low < high:
        raise ValueError("a range is the lower number, then the higher one: exchange or correct them")
    return low, high


def _written_out(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return _SHORT.get(value, {})
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return {"categories": value}
    if isinstance(value, list) and len(value) == 2 and all(_is_number(entry) for entry in value):
        return {"range": value}
    return {}


def _numeric(fields: Mapping[str, Any]) -> Declared:
    given = fields["range"]
    missing: Any = fields.get("missing")
    if not (missing in (None, INDICATOR) or _is_finite(missing)):
        raise ValueError(_FILL.format("a number"))
    if given == FITTED:
        return UnfittedFeature("numeric", missing)
    if not (isinstance(given, list) and len(given) == 2):
        raise ValueError("give two numbers, the lower one first, such as range = [0, 120]")
    limits = Range(*parse_range(given))
    if _is_number(missing) and not limits.low <= missing <= limits.high:
        raise ValueError(f"missing = {missing:g} lies outside the range; give a number within it")
    return NumericFeature(limits, float(missing) if _is_number(missing) else missing)


def _categorical(fields: Mapping[str, Any]) -> Declared:
    given, missing = fields["categories"], fields.get("missing")
    if not (missing is None or (isinstance(missing, str) and missing.strip())):
        raise ValueError(_FILL.format("a category"))
    if given == FITTED:
        return UnfittedFeature("categorical", missing)
    if not (isinstance(given, list) and all(isinstance(entry, str) for entry in given)):
        raise ValueError('give categories as text, such as ["f", "m"]')
    categories = tuple(entry.strip() for entry in given)
    if len(set(categories)) < len(categories):
        raise ValueError("a category appears twice: give each once")
    if missing not in (None, INDICATOR, *categories):
        raise ValueError(f'missing = "{missing}": give one of the categories, or "{INDICATOR}"')
    return CategoricalFeature(categories, missing)


def _boolean(fields: Mapping[str, Any]) -> Declared:
    missing = fields.get("missing")
    if fields["boolean"] is not True or not (missing in (None, INDICATOR) or isinstance(missing, bool)):
        raise ValueError('give boolean = true, and missing = true, false or "indicator"')
    return BooleanFeature(missing)


def _date(fields: Mapping[str, Any]) -> Declared:
    given, missing, form = fields["date"], fields.get("missing"), fields.get("format")
    cycles = fields.get("cycles", [])
    if not (isinstance(given, list) and len(given) == 2):
        raise ValueError('give the first and the last date, such as date = ["2015-01-01", "2025-12-31"]')
    first, last = (_iso(entry) for entry in given)
    if not moment(first) < last_moment(last):
        raise ValueError("the first date comes after the last: exchange or correct them")
    if not (isinstance(cycles, list) and all(cycle in list(CYCLES) for cycle in cycles)) or len(cycles) > len(CYCLES):
        raise ValueError(f"give cycles as a list of {', '.join(CYCLES)}")
    if form is not None:
        if not isinstance(form, str):
            raise ValueError('give format as text, such as "%d.%m.%Y"')
        check_format(form)
    if missing not in (None, INDICATOR):
        missing = _iso(missing)
        if not moment(first) <= moment(missing) <= last_moment(last):
            raise ValueError(f'missing = "{missing}" lies outside the range; give a date within it')
    return DateFeature(first, last, missing, form, tuple(cycles))


def _text(fields: Mapping[str, Any]) -> Declared:
    tokens, length = fields["text"], fields.get("max_length", 0)
    size = fields.get("vocabulary_size", DEFAULT_VOCABULARY)
    if tokens not in TOKENS:
        raise ValueError('give text = "bytes" or text = "words"')
    if not (_is_whole(length) and 1 <= length <= MOST_SYMBOLS):
        raise ValueError(f"give max_length, a whole number from 1 to {MOST_SYMBOLS}")
    if not (_is_whole(size) and 2 <= size <= 10_000_000):
        raise ValueError("give vocabulary_size as a whole number from 2 to 10000000")
    return TextFeature(tokens, length, 257 if tokens == "bytes" else size)


@dataclass(frozen=True)
class _Kind:
    """A kind of feature: its name in messages, the keys beside the one that tells it, and its parser."""

    name: str
    keys: tuple[str, ...]
    parse: Callable[[Mapping[str, Any]], Declared]


_KINDS = {
    "range": _Kind("a column of numbers", ("missing",), _numeric),
    "categories": _Kind("a column of categories", ("missing",), _categorical),
    "boolean": _Kind("a column of true and false", ("missing",), _boolean),
    "date": _Kind("a column of dates", ("missing", "format", "cycles"), _date),
    "text": _Kind("a text column", ("max_length", "vocabulary_size"), _text),
}
"""By the key that tells it from the others."""

_FILL = 'missing: give {}, which stands for a missing value, or "indicator"'


def _iso(value: Any) -> str:
    """A date of ISO 8601, from text or from a date of TOML."""
    text = value.isoformat() if isinstance(value, datetime.date) else value
    try:
        moment(text)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r}: give dates as in ISO 8601, such as 2024-05-31") from None
    return str(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
