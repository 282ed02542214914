"""Budgets of a study: in its file, in a CSV file ``owner,epsilon[,delta]``, or in a column of the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.data.notation import Notation
from inosgd.data.tables import Table, Texts, column_names, delimiter_of, read_table
from inosgd.owners import Budget
from inosgd.study.labels import Names
from inosgd.study.reading import StudyFile
from inosgd.study.schema import OwnerBudget


def study_budgets(study: StudyFile) -> dict[str, Budget] | None:
    """The budget of each owner; None if every row of the data brings its own."""
    section = study.schema.budgets
    if section.owners is not None:
        return {name.strip(): _budget(budget, section.delta) for name, budget in section.owners.items()}
    if section.file is None:
        return None
    return read_budgets(study.locate(section.file), section.delta)


def read_budgets(path: Path, default_delta: float | None) -> dict[str, Budget]:
    """The budgets in a CSV file; without a column ``delta`` all owners have the default one.

    Its header says what separates cells, whatever it is in the data. Where that is no comma, commas separate decimals.

    Raises:
        InvalidArgumentError: Naming the file, the column, the row and the value.
    """
    wanted = {"owner": "budgets.file", "epsilon": "budgets.file"}
    delimiter = delimiter_of(path)
    table = read_table([path], wanted | _delta_column(path, delimiter, default_delta), delimiter)
    if delimiter is not None and any(
        "," in text for column in _figures(table) for text in table.texts(column, empty=True)
    ):
        table = replace(table, notation=Notation(decimal=","))
    names = table.texts("owner")
    epsilons = _numbers(table, "epsilon", 0, np.inf, "give a number greater than 0")
    if "delta" in table.columns.column_names:
        deltas = _numbers(table, "delta", 0, 1, "give a number strictly between 0 and 1")
    else:
        deltas = np.full(len(table), default_delta)
    refuse_repeated(table, names)
    rows = zip(names, epsilons.tolist(), deltas.tolist(), strict=True)
    return {name: Budget(epsilon=epsilon, delta=delta) for name, epsilon, delta in rows}


def budgets_by_epsilon(epsilons: FloatArray, delta: float) -> tuple[Names, dict[str, Budget]]:
    """Rows that allow the same form one owner, called after what they allow: its name for each row, and its budget.

    The guarantee is per example, so it is the same as if every row were an owner of its own.
    """
    values, of_row = np.unique(epsilons, return_inverse=True)
    names = tuple(_name(value) for value in values.tolist())
    return Names(of_row, names), {
        name: Budget(epsilon=value, delta=delta) for name, value in zip(names, values.tolist(), strict=True)
    }


def row_epsilons(table: Table, column: str) -> FloatArray:
    """The column of budgets, each greater than 0."""
    return _numbers(table, column, 0, np.inf, "is no budget: give an epsilon greater than 0, or leave the row out")


def _name(epsilon: float) -> str:
    return f"rows at epsilon {epsilon:g}" if float(f"{epsilon:g}") == epsilon else f"rows at epsilon {epsilon!r}"


def _budget(given: OwnerBudget, default_delta: float | None) -> Budget:
    """The budget that an owner names; `inosgd.study.checks` has made sure of a delta."""
    return Budget(epsilon=given.epsilon, delta=(default_delta if given.delta is None else given.delta) or 0.0)


def _figures(table: Table) -> list[str]:
    return [name for name in ("epsilon", "delta") if name in table.columns.column_names]


def _delta_column(path: Path, delimiter: str | None, default_delta: float | None) -> dict[str, str]:
    """The column is read where it is there, and asked for where it is needed."""
    if default_delta is None:
        return {"delta": "or budgets.delta in the study, for all owners"}
    return {"delta": "budgets.file"} if "delta" in column_names(path, delimiter) else {}


def _numbers(table: Table, column: str, low: float, high: float, fix: str) -> FloatArray:
    values = table.numbers(column)
    wrong = ~((values > low) & (values < high))
    if wrong.any():
        raise table.cells_error(column, wrong, fix)
    return values


def refuse_repeated(table: Table, names: Texts) -> None:
    """Raise if an owner has several rows of a table about owners."""
    seen: set[str] = set()
    for row, name in enumerate(names):
        if name in seen:
            raise table.cell_error("owner", row, "appears twice; give each owner one row")
        seen.add(name)
