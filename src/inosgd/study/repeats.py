"""Repeated ids: a table that looks as if several of its rows were about one person, and protects each row by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from inosgd.analysis.findings import THE_MODEL, Finding
from inosgd.data.tables import column_names, read_table
from inosgd.errors import InosgdError
from inosgd.study.reading import StudyFile
from inosgd.study.schema import TableData

LIKE_AN_ID = re.compile(
    r"(?i)(^|[_ .-])(id|ids|uid|uuid|pid|mrn|ssn|person|patient|subject|participant|user|customer|client|member|writer"
    r"|speaker|author|household|family)([_ .-]|$)"
)
"""Names of columns that tell people apart."""

FEWEST_IDS = 10
"""A column of fewer values tells groups apart rather than people."""

REPEATED = 1.1
"""From this many rows for each value on, values repeat."""


def repeated_ids(study: StudyFile) -> Iterator[Finding]:
    """A finding for each column that is not used, is named like an id, and has values that repeat.

    Rule: the study gathers no units; the column has at least 10 values, and at least 1.1 rows for each. Numbers are not
    told: they are exact, and of training examples. Tables that stay on disk are not read for this.
    """
    data = study.schema.data
    if not isinstance(data, TableData) or data.unit is not None or data.on_disk:
        return
    paths = [path for path in map(study.locate, data.path) if path.is_file()]
    used = {*data.features, *data.target, data.owner, data.epsilon}
    for column in dict.fromkeys(name for path in paths for name in column_names(path, data.delimiter)):
        if column not in used and LIKE_AN_ID.search(column) and _repeats(paths, column, data.delimiter):
            text = (
                f"Values of the column {column!r}, which is not used, repeat. If it names people, one with several "
                "rows is protected row by row only, and spends several times the ε that is shown. Protect each of them "
                f'with all rows: data.unit = "{column}".'
            )
            yield Finding("repeated-ids", THE_MODEL, text, {})


def _repeats(paths: list[Path], column: str, delimiter: str | None) -> bool:
    try:
        texts = read_table(paths, {column: "data.ignore"}, delimiter).texts(column)
    except InosgdError:  # it is not used: whatever is wrong with it is no error
        return False
    values = len(np.unique(texts.astype(str)))
    return values >= FEWEST_IDS and len(texts) >= REPEATED * values
