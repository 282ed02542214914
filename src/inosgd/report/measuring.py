"""Measuring: what a report shows beside results, along one seed of each row, kept in the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inosgd.compare.conditions import condition_along
from inosgd.compare.entrant import Entrant
from inosgd.compare.weights import weights_along
from inosgd.errors import InvalidArgumentError
from inosgd.files import write_private
from inosgd.report.extras import FILES
from inosgd.study.study import Study


def measure_and_keep(study: Study, rows: Sequence[Entrant], seed: int, folder: Path) -> None:
    """Train each row once more with ``seed``, and keep the condition of Thm. 3.1 and the weights along it."""
    conditions = {row.label: _condition(study, row, seed) for row in rows}
    keep(folder, "condition", {label: found for label, found in conditions.items() if found is not None})
    keep(folder, "weights", weights_of(study, rows, seed))


def weights_of(study: Study, rows: Sequence[Entrant], seed: int) -> dict[str, Any]:
    """The weights along one seed of the rows that have a tail; the others keep everything."""
    return {row.label: weights_along(study, row, seed) for row in rows if row.method.importance is not None}


def keep(folder: Path, name: str, found: Mapping[str, Any]) -> None:
    """Add to a measurement's file; what is there about other rows stays."""
    path = folder / FILES[name]
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_private(path, json.dumps({**known, **found}).encode())


def _condition(study: Study, row: Entrant, seed: int) -> dict[str, Any] | None:
    """None where there are no two owners whose gradients to compare."""
    try:
        return condition_along(study, row, seed)
    except InvalidArgumentError:
        return None
