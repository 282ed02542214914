"""Problems of a study's tables: once one is found, every column is looked at, so that all are said at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from inosgd.data.tables import Table, closest, read_table
from inosgd.errors import CellsError, InvalidArgumentError
from inosgd.owners import Budget
from inosgd.study.budgets import study_budgets
from inosgd.study.features import Feature, UnfittedFeature, encode, fit
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
    said = any(line.startswith(str(first)) or (WITHOUT in line and WITHOUT in str(first)) for line in found)
    lines = list(dict.fromkeys(found if said else [str(first), *found]))
    if lines == [str(first)]:
        return first
    if len(lines) == 1:
        return InvalidArgumentError(lines[0])
    return InvalidArgumentError(f"{study.path}: {len(lines)} problems" + "".join(f"\n  {line}" for line in lines))


def _table(study: StudyFile, data: TableData, names: Sequence[str]) -> Table:
    paths = [study.locate(name) for name in names]
    return rows_with_values(data, read_table(paths, used_columns(data), data.delimiter))


def _problems(study: StudyFile, data: TableData, table: Table) -> Iterator[InvalidArgumentError]:
    refuse = data.outside_range == "refuse"
    readings: list[Callable[[Table], Any]] = [
        partial(_fitted, feature, name)
        if isinstance(feature, UnfittedFeature)
        else partial(_encoded, feature, name, refuse)
        for name, feature in data.features.items()
    ]
    readings.append(lambda part: table_targets(study.schema, data, [part]))
    try:
        readings.append(partial(_owners, study, data, study_budgets(study)))
    except InvalidArgumentError as error:  # of rows of another table
        yield error
    for read in readings:
        yield from _all_of(read, table)


def _all_of(read: Callable[[Table], Any], table: Table) -> Iterator[InvalidArgumentError]:
    """Every problem that ``read`` finds: what is said of some rows is said, and the others are looked at again."""
    while len(table):
        try:
            read(table)
        except CellsError as error:
            yield error
            others = table.only(~np.isin(table.positions, error.rows))
            if len(others) == len(table):
                return
            table = others
        except InvalidArgumentError as error:
            yield error
            return
        else:
            return


def _fitted(feature: UnfittedFeature, name: str, table: Table) -> Any:
    return fit(feature, table, name)


def _encoded(feature: Feature, name: str, refuse_outside: bool, table: Table) -> Any:
    return encode(feature, table, name, refuse_outside=refuse_outside)


WITHOUT = "without a budget"


def _owners(study: StudyFile, data: TableData, budgets: Mapping[str, Budget] | None, table: Table) -> None:
    """Raise if rows have no owner, or owners that have no budget."""
    if data.owner is None or budgets is None:
        return
    names = label_texts(data, table, data.owner)
    unknown = Counter(name for name in names if name not in budgets)
    place = study.schema.budgets.file or "[budgets.owners]"
    if len(unknown) == 1:
        name = next(iter(unknown))
        fix = f"is an owner {WITHOUT}; add it to {place}, or correct it: {closest(name, list(budgets))}"
        raise table.cells_error(data.owner, names == name, fix)
    if len(unknown) > 1:
        shown = ", ".join(f"{name!r} ({rows} rows)" for name, rows in unknown.most_common(MOST_OWNERS))
        more = f" and {len(unknown) - MOST_OWNERS} more" * (len(unknown) > MOST_OWNERS)
        raise InvalidArgumentError(
            f"{table.path}: column {data.owner!r}: owners {WITHOUT}: {shown}{more}; add them to {place}, or "
            f"correct them: {closest(next(iter(unknown)), list(budgets))}"
        )
