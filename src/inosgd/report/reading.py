"""Reading runs: folders of ``inosgd compare`` and ``inosgd train`` become the material of one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inosgd.errors import InvalidArgumentError
from inosgd.report.comparisons import read_comparison
from inosgd.report.material import Material, MethodRow, main_labels
from inosgd.report.trainings import read_training
from inosgd.report.verdicts import verdict_of

READERS = {"results.jsonl": read_comparison, "run.json": read_training}
"""The file that tells a folder's kind, and who reads it."""


def read_run(folder: Path) -> Material:
    """The material of one run folder."""
    for name, reader in READERS.items():
        if (folder / name).is_file():
            return reader(folder)
    raise InvalidArgumentError(
        f"run={str(folder)!r}: no {', '.join(READERS)} there; give a folder of inosgd compare or train"
    )


def read_runs(folders: Sequence[Path], rows: Sequence[str] | None = None) -> Material:
    """The material of several runs with the same owners and budgets, on one page.

    Args:
        folders: Run folders, at least one.
        rows: Labels of the rows that all charts show; chosen by `main_labels` if not given.
    """
    if not folders:
        raise InvalidArgumentError("runs=[]: give at least one run folder")
    found = [read_run(folder) for folder in folders]
    material = found[0] if len(found) == 1 else _together(found, folders)
    return replace(material, main=main_labels(material.rows, rows)) if rows is not None else material


def _together(found: Sequence[Material], folders: Sequence[Path]) -> Material:
    """One material of all; a label that occurs twice gets the name of its folder."""
    first = found[0]
    for material, folder in zip(found, folders, strict=True):
        _refuse_other_owners(first, material, folder)
    labels = [row.label for material in found for row in material.rows]
    rows: list[MethodRow] = []
    for material, folder in zip(found, folders, strict=True):
        for row in material.rows:
            unique = row.label if labels.count(row.label) == 1 else f"{row.label} ({folder.name})"
            rows.append(replace(row, label=unique))
    joined = replace(
        first,
        title=" and ".join(dict.fromkeys(material.title for material in found)),
        rows=tuple(rows),
        main=main_labels(rows),
        facts=tuple(fact for fact in first.facts if all(fact in material.facts for material in found)),
        unaccounted=tuple(dict.fromkeys(each for material in found for each in material.unaccounted)),
        findings=tuple(each for material in found for each in material.findings),
        condition={},
        weights={},
        roc={},
    )
    return replace(joined, verdict=verdict_of(joined))


def _refuse_other_owners(first: Material, other: Material, folder: Path) -> None:
    budgets = [{owner.name: owner.epsilon for owner in material.owners} for material in (first, other)]
    if budgets[0] != budgets[1]:
        raise InvalidArgumentError(
            f"run={str(folder)!r}: its owners or budgets are not those of the first run, so a chart cannot hold both; "
            "make a report of each"
        )
