"""Joining and withdrawing: the data of a run whose owners have changed since it began."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inosgd._arrays import BoolArray, RowArray
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.runs.folder import RunFolder
from inosgd.study.data import joined_data
from inosgd.study.fingerprints import fingerprint, keyed, refuse_changes
from inosgd.study.study import Groups, HeldOutExamples, Study, StudyData, only_examples, only_rows

JOINED = "joined.json"
"""What owners brought who joined a run, in its folder."""


def joined_file(run: RunFolder, path: Path, budgets: Mapping[str, Budget]) -> dict[str, bytes]:
    """What owners who are about to join bring, as a file of the run; it counts once the ledger knows the owners."""
    entry = {
        "path": str(path.absolute()),
        "budgets": {name: [budget.epsilon, budget.delta] for name, budget in budgets.items()},
        "digest": keyed(run.data_key(), {"": fingerprint(path)})[""],
    }
    kept = [each for each in _joined_entries(run) if not set(each["budgets"]) & set(budgets)]
    return {JOINED: json.dumps([*kept, entry], indent=1).encode()}


def restricted(data: StudyData, table: OwnerTable) -> StudyData:
    """The data of the owners that ``table`` has units of, in its rows: withdrawn owners leave, their rows stay.

    Of units that an owner shared with others its own examples leave; the units stay under the budget that they have.
    """
    if data.owners.table == table:
        return data
    rows_in_table = _rows_by_name(data.owners, {name: row for row, (name, _, size) in enumerate(table) if size > 0})
    kept = np.flatnonzero(rows_in_table >= 0)
    sizes = np.bincount(rows_in_table[kept], minlength=len(table))
    if not np.array_equal(sizes, table.sizes):
        raise InvalidArgumentError(
            f"the data hold other numbers of {table.units} than the run's plan was made for; put back the files that "
            "the run began with, and those that owners joined with"
        )
    held_out, withdrawn = _regrouped(data, table), _withdrawn(data.owners.table, table)
    part = _without_rows_of(only_examples(data, kept), withdrawn)
    return _owned(replace(part, held_out=held_out), Owners(table, rows_in_table[kept]))


def _withdrawn(before: OwnerTable, table: OwnerTable) -> BoolArray:
    """Which owners have left: they had units, and have none now."""
    sizes = {name: size for name, _, size in table}
    return np.array([size > 0 and sizes.get(name, 1) == 0 for name, _, size in before])


def _without_rows_of(data: StudyData, withdrawn: BoolArray) -> StudyData:
    """The data without the examples of owners who have left, which are still in units that they shared."""
    if data.units is None or data.row_owners is None:
        return data
    stays = np.flatnonzero(~withdrawn[data.row_owners])
    if len(stays) == len(data.row_owners):
        return data
    return replace(
        data, examples=data.examples.only(stays), units=data.units.with_rows(stays), row_owners=data.row_owners[stays]
    )


def _owned(data: StudyData, owners: Owners) -> StudyData:
    """The data with other owners, which groups follow."""
    return replace(data, owners=owners, groups=Groups.of_owners(owners.table), train_groups=owners.assignment)


def with_joined(run: RunFolder, study: Study, data: StudyData, brought: Mapping[str, str]) -> StudyData:
    """The data with what owners brought who have joined the run; ``brought`` are checksums of that.

    Raises:
        InvalidArgumentError: If it is not what they joined with.
    """
    joined = _joined(run)
    if study.file is None or not joined:
        return data
    recorded = {each["path"]: each["digest"] for each in joined}
    refuse_changes(recorded, keyed(run.data_key(), brought))
    for each in joined:
        data = _together(data, joined_data(study.file, data, Path(each["path"]), each["budgets"]))
    return data


def brought_to(run: RunFolder) -> dict[str, str]:
    """Checksums of what owners brought who have joined the run."""
    return {each["path"]: fingerprint(Path(each["path"])) for each in _joined(run)}


def _rows_by_name(owners: Owners, row_of: Mapping[str, int]) -> RowArray:
    """For each example ``row_of`` its owner's name, in a small type; -1 where it has none."""
    rows = [row_of.get(name, -1) for name in owners.table.names]
    found: RowArray = np.array(rows, dtype=np.min_scalar_type(-len(row_of) - 1))[owners.assignment]
    return found


def _regrouped(data: StudyData, table: OwnerTable) -> HeldOutExamples | None:
    """Held-out examples with groups that are rows of ``table``; those of withdrawn owners leave too."""
    if data.held_out is None:
        return None
    row_of = {name: row for row, name in enumerate(table.names)}
    new_rows = np.array([*(row_of.get(name, -1) for name in data.owners.table.names), -1])
    groups = data.held_out.groups
    stays = np.flatnonzero(~np.append(_withdrawn(data.owners.table, table), False)[groups])
    rows = torch.from_numpy(stays)
    if not len(stays):
        return None
    return HeldOutExamples(only_rows(data.held_out.inputs, rows), data.held_out.targets[rows], new_rows[groups[stays]])


def _together(data: StudyData, extra: StudyData) -> StudyData:
    """The data of both; owners of ``extra`` come behind, and an owner of both is one."""
    budgets = {name: budget for table in (extra.owners.table, data.owners.table) for name, budget, _ in table}
    ordered = {name: budgets[name] for name in dict.fromkeys((*data.owners.table.names, *extra.owners.table.names))}
    row_of = {name: row for row, name in enumerate(ordered)}
    owners = Owners.from_rows(np.append(*(_rows_by_name(each.owners, row_of) for each in (data, extra))), ordered)
    owners = replace(owners, table=replace(owners.table, unit=data.owners.table.unit))
    examples = data.examples.followed_by(extra.examples)
    judged = _regrouped(extra, owners.table)
    if data.held_out is not None and judged is not None:
        judged = data.held_out.followed_by(judged)
    both = replace(data, examples=examples, held_out=judged or data.held_out, **_units_of_both(data, extra, row_of))
    return _owned(both, owners)


def _units_of_both(data: StudyData, extra: StudyData, row_of: Mapping[str, int]) -> dict[str, Any]:
    """The units of both, none of which is in both, and what goes with them."""
    if data.units is None or extra.units is None or data.row_owners is None or extra.row_owners is None:
        return {}
    places = np.array([row_of[name] for name in extra.owners.table.names])
    known = [each.held_out_units for each in (data, extra) if each.held_out_units is not None]
    return {
        "units": data.units.followed_by(extra.units),
        "row_owners": np.append(data.row_owners.astype(np.int64), places[extra.row_owners]),
        "held_out_units": np.concatenate(known) if known else None,
    }


def _joined_entries(run: RunFolder) -> list[dict[str, Any]]:
    if JOINED not in run.read_ledger().history.files:
        return []
    entries: list[dict[str, Any]] = json.loads(run.read_file(JOINED))
    return entries


def _joined(run: RunFolder) -> list[dict[str, Any]]:
    """What owners brought who have joined by the ledger."""
    names = set(run.read_ledger().table.names)
    return [
        {
            **entry,
            "budgets": {
                name: Budget(epsilon=epsilon, delta=delta) for name, (epsilon, delta) in entry["budgets"].items()
            },
        }
        for entry in _joined_entries(run)
        if set(entry["budgets"]) <= names
    ]
