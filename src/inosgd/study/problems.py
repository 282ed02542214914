"""Problems of a study file: each names the key, the value and the fix, and all of them are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inosgd.data.tables import shortened
from inosgd.errors import InvalidArgumentError

ABSENT = object()
"""The value of a key that is not there."""

MOST_SHOWN_LEVELS = 4
"""How many levels of a nested value a message shows."""


@dataclass(frozen=True)
class Problem:
    """One thing that must change: the dotted key, its value, and what to give instead."""

    key: str
    value: Any
    fix: str

    def __str__(self) -> str:
        shown = "" if self.value is ABSENT else f" = {shortened(as_toml(self.value))}"
        return f"{self.key}{shown}: {self.fix}"


class StudyFileError(InvalidArgumentError):
    """A study file that cannot be used.

    Attributes:
        path: The file.
        problems: Everything that was found.
    """

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.path, self.problems = path, tuple(problems)
        if len(problems) == 1:
            super().__init__(f"{path}: {problems[0]}")
            return
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{path}: {len(problems)} problems{lines}")


def as_toml(value: Any, depth: int = 0) -> str:
    """About what stands in the file."""
    if depth > MOST_SHOWN_LEVELS:
        return "..."
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(inner, depth + 1)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(inner, depth + 1) for inner in value) + "]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
