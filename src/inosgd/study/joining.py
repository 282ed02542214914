"""Joining and withdrawing: the data of a run whose owners have changed since it began."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inosgd._arrays import RowArray
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.runs.folder import RunFolder
from inosgd.study.data import joined_data
from inosgd.study.fingerprints import fingerprint, keyed, refuse_changes
from inosgd.study.study import Groups, HeldOutExamples, Study, StudyData, only_rows

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
    """The data of the owners that ``table`` has examples of, in its rows: withdrawn owners leave, their rows stay."""
    if data.owners.table == table:
        return data
    rows_in_table = _rows_by_name(data.owners, {name: row for row, (name, _, size) in enumerate(table) if size > 0})
    kept = np.flatnonzero(rows_in_table >= 0)
    owners = Owners.from_rows(rows_in_table[kept], {name: budget for name, budget, _ in table})
    if owners.table != table:
        raise InvalidArgumentError(
            "the data hold other numbers of examples than the run's plan was made for; put back the files that the run "
            "began with, and those that owners joined with"
        )
    examples = data.examples.only(kept)
    return _owned(replace(data, examples=examples, held_out=_regrouped(data, table)), owners)


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
    row_of = {name: (row, size) for row, (name, _, size) in enumerate(table)}
    before = [(name, size) for name, _, size in data.owners.table]
    withdrawn = [size > 0 and row_of.get(name, (0, 1))[1] == 0 for name, size in before]
    new_rows = np.array([*(row_of.get(name, (-1, 0))[0] for name, _ in before), -1])
    groups = data.held_out.groups
    stays = np.flatnonzero(~np.array([*withdrawn, False])[groups])
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
    examples = data.examples.followed_by(extra.examples)
    judged = _regrouped(extra, owners.table)
    if data.held_out is not None and judged is not None:
        judged = data.held_out.followed_by(judged)
    return _owned(replace(data, examples=examples, held_out=judged or data.held_out), owners)


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
