"""Extras: measurements beside a run that not every run has, each in a file of its own.

condition.json    {row: what `inosgd.compare.conditions.condition_along` gives}
weights.json      {row: {"steps": [...], "owners": {name: [mean weight, ...]}, "measured_on": "..."}}
audit.json        {row: {owner: {"false_positive_rates": [...], "true_positive_rates": [...], "area": ...,
                  "highest_true_positive_rates": [...], "highest_area": ...}}}, by ``inosgd audit lira --into``; the
                  highest ones are the most that the accounted profile allows to any attack
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inosgd.errors import InvalidArgumentError

FILES = {"condition": "condition.json", "weights": "weights.json", "roc": "audit.json"}


def read_extras(folder: Path, labels: Iterable[str]) -> dict[str, Any]:
    """What there is beside a run about its rows, by the name that `Material` has for it."""
    found = {name: _read(folder / file) for name, file in FILES.items() if (folder / file).is_file()}
    _check_curves(found.get("roc", {}), folder / FILES["roc"])
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


def _check_curves(rows: Mapping[str, Any], path: Path) -> None:
    """Refuse curves that cannot be drawn."""
    for label, owners in rows.items():
        for owner, fields in owners.items() if isinstance(owners, dict) else [("", None)]:
            if not _is_curve(fields):
                raise InvalidArgumentError(
                    f"{path}: {label!r}, owner {owner!r}: give false_positive_rates and as many true_positive_rates, "
                    "numbers from 0 to 1; remove the file or audit again"
                )


def _is_curve(fields: Any) -> bool:
    if not isinstance(fields, dict):
        return False
    false, true, area = (fields.get(name) for name in ("false_positive_rates", "true_positive_rates", "area"))
    if not (isinstance(false, list) and isinstance(true, list) and len(false) == len(true)):
        return False
    return all(map(_is_rate, [*false, *true])) and (area is None or _is_rate(area))


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
