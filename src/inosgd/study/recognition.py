"""What a column probably is: by its name, which is public, or by the first rows, which are not.

A kind is a proposal for a study file, and nothing that a training relies on: there a column is what is declared.

    id       tells rows apart: a number of a patient, an account, a key
    date     a day or a moment
    text     sentences
    boolean  true or false
    numeric, categorical    found by rows alone
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inosgd.data.moments import is_stored_moment
from inosgd.data.notation import USUAL_MISSING, Notation
from inosgd.data.tables import Table
from inosgd.errors import InvalidArgumentError
from inosgd.study.features import FALSE, TRUE
from inosgd.study.repeats import LIKE_AN_ID

LOOKED_AT = 200
"""How many rows are looked at, from the first on."""

FEW = 20
"""So many different texts may be categories."""

_BY_NAME = {
    "id": rf"{LIKE_AN_ID.pattern.removeprefix('(?i)')}|(^|[ _-])(guid|iban|key|identifier|nr)$|(?<=[a-z])I[dD]$",
    "date": r"(^|[ _-])(date|day|dob|timestamp|datetime|birthday|birthdate)($|[ _-])|[ _-](at|on)$|(?<=[a-z])Date$",
    "text": r"(^|[ _-])(note|notes|comment|comments|text|description|remark|remarks|report|letter|name|address|email)$",
    "boolean": r"^(is|has|was|had)[ _-]|[ _-](flag|yn|yesno)$",
}


@dataclass(frozen=True)
class Looked:
    """What the first rows look like. Unaccounted: it depends on them.

    Attributes:
        kinds: By column.
        missing: Columns in which a value is missing.
        decimal_comma: Whether numbers are written with a comma.
    """

    kinds: Mapping[str, str]
    missing: tuple[str, ...]
    decimal_comma: bool


def kind_by_name(name: str) -> str | None:
    """The kind that a column's name suggests.

    >>> [kind_by_name(name) for name in ("patient_id", "visit_date", "is_smoker", "notes", "age", "paid", "candidate")]
    ['id', 'date', 'boolean', 'text', None, None, None]
    """
    spellings = (name.strip(), name.strip().lower())  # camel case tells some apart
    found = (kind for kind, pattern in _BY_NAME.items() if any(re.search(pattern, text) for text in spellings))
    return next(found, None)


def look_at(table: Table) -> Looked:
    """What the columns of ``table``, some rows of a file, look like."""
    plain = replace(table, notation=Notation(USUAL_MISSING))
    missing = {name: plain.missing(name) for name in plain.columns.column_names}
    comma = any(_numbers_with_comma(plain, name, ~missing[name]) for name in missing)
    read = replace(plain, notation=Notation(USUAL_MISSING, "," if comma else "."))
    kinds = {name: _kind(read.only(~missing[name], name, complete=True), name) for name in missing}
    return Looked(kinds, tuple(name for name, cells in missing.items() if cells.any()), comma)


def _numbers_with_comma(table: Table, name: str, present: Any) -> bool:
    """Whether all cells are numbers if a comma separates decimals, and some are not otherwise."""
    cells = table.only(present, name, complete=True)
    if not len(cells) or _reads(cells, name):
        return False
    return _reads(replace(cells, notation=Notation(USUAL_MISSING, ",")), name)


def _reads(table: Table, name: str) -> bool:
    try:
        table.numbers(name)
    except InvalidArgumentError:
        return False
    return True


def _kind(cells: Table, name: str) -> str:
    if not len(cells):
        return "text"
    named, stored = kind_by_name(name), cells.columns.column(name).type
    if is_stored_moment(stored):
        return "date"
    if _reads(cells, name):
        numbers = cells.numbers(name)
        different = len(np.unique(numbers))
        if named in ("id", "boolean") and (different == len(cells) or set(numbers.tolist()) <= {0.0, 1.0}):
            return named
        return "boolean" if set(numbers.tolist()) == {0.0, 1.0} else "numeric"
    texts = cells.texts(name).tolist()
    if {text.lower() for text in texts} <= {*TRUE, *FALSE}:
        return "boolean"
    if _dates(cells, name):
        return "date"
    if len(set(texts)) <= FEW:
        return "categorical"
    return "text" if named == "text" or any(len(text.split()) > 2 for text in texts) else "id"


def _dates(cells: Table, name: str) -> bool:
    try:
        cells.moments(name)
    except InvalidArgumentError:
        return False
    return True
