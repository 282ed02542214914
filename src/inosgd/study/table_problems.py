"""Problems of a study's tables: once one is found, every column is looked at, so that all are said at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from inosgd.data.tables import Table, closest, read_table
from inosgd.errors import InvalidArgumentError
from inosgd.study.budgets import study_budgets
from inosgd.study.features import UnfittedFeature, encode, fit
from inosgd.study.labels import label_texts
from inosgd.study.problems import StudyFileError
from inosgd.study.reading import StudyFile
from inosgd.study.schema import TableData, used_columns
from inosgd.study.sources import rows_with_values
from inosgd.study.targets import table_targets

MOST_OWNERS = 5
"""How many owners without a budget a message lists."""


def with_all_problems(study: StudyFile, first: InvalidArgumentError) -> InvalidArgumentError:
    """An error that says all that is wrong with the study's tables, if ``first`` is not all of it.

    Cells are looked at column by column, so that a column that cannot be read does not hide the next one.
    """
    data = study.schema.data
    if isinstance(first, StudyFileError) or not isinstance(data, TableData) or data.on_disk:
        return first
    try:
        tables = [_table(study, data, names) for names in (data.path, data.held_out.path or ()) if names]
    except InvalidArgumentError:
        return first
    found = [str(error) for table in tables for error in _problems(study, data, table)]
    lines = list(dict.fromkeys(found if str(first) in found else [str(first), *found]))
    if len(lines) == 1:
        return first
    return InvalidArgumentError(f"{study.path}: {len(lines)} problems" + "".join(f"\n  {line}" for line in lines))


def _table(study: StudyFile, data: TableData, names: Sequence[str]) -> Table:
    paths = [study.locate(name) for name in names]
    return rows_with_values(data, read_table(paths, used_columns(data), data.delimiter))


def _problems(study: StudyFile, data: TableData, table: Table) -> Iterator[InvalidArgumentError]:
    refuse = data.outside_range == "refuse"
    readings: list[Callable[[], Any]] = [
        partial(fit, feature, table, name)
        if isinstance(feature, UnfittedFeature)
        else partial(encode, feature, table, name, refuse_outside=refuse)
        for name, feature in data.features.items()
    ]
    readings += [partial(table_targets, study.schema, data, [table]), partial(_owners, study, data, table)]
    for read in readings:
        try:
            read()
        except InvalidArgumentError as error:
            yield error


def _owners(study: StudyFile, data: TableData, table: Table) -> None:
    """Raise if rows have no owner, or owners that have no budget."""
    budgets = study_budgets(study)
    if data.owner is None or budgets is None:
        return
    unknown = Counter(name for name in label_texts(data, table, data.owner) if name not in budgets)
    if len(unknown) > 1:
        shown = ", ".join(f"{name!r} ({rows} rows)" for name, rows in unknown.most_common(MOST_OWNERS))
        place = study.schema.budgets.file or "[budgets.owners]"
        more = f" and {len(unknown) - MOST_OWNERS} others" * (len(unknown) > MOST_OWNERS)
        raise InvalidArgumentError(
            f"{table.path}: column {data.owner!r}: owners without a budget: {shown}{more}; add them to {place}, or "
            f"correct them: {closest(next(iter(unknown)), list(budgets))}"
        )
