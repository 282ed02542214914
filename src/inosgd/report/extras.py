"""Extras: measurements beside a run that not every run has, each in a file of its own.

condition.json    {row: what `inosgd.studies.conditions.condition_along` gives}
weights.json      {row: {"steps": [...], "owners": {name: [mean weight, ...]}, "measured_on": "..."}}
audit.json        {row: {owner: {"false_positive_rates": [...], "true_positive_rates": [...], "area": ...}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inosgd.errors import InvalidArgumentError

FILES = {"condition": "condition.json", "weights": "weights.json", "roc": "audit.json"}


def read_extras(folder: Path, labels: Iterable[str]) -> dict[str, Any]:
    """What there is beside a run about its rows, by the name that `Material` has for it."""
    found = {name: _read(folder / file) for name, file in FILES.items() if (folder / file).is_file()}
    known = set(labels)
    return {name: {label: each for label, each in rows.items() if label in known} for name, rows in found.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: it is not JSON ({error}); remove it or measure again") from None
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"{path}: give an object with one entry for each row")
    return fields
