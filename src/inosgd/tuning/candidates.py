"""Candidates: the settings that a tuning chooses from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inosgd import _validate
from inosgd._extras import needs
from inosgd.errors import InvalidArgumentError
from inosgd.plan_config import KNOBS
from inosgd.study.config import TrainingConfig
from inosgd.study.reading import StudyFile

with needs("data"):
    import tomlkit


@dataclass(frozen=True)
class Candidate:
    """One choice of settings: what it changes about a study's training section, and the configuration with that."""

    changes: Mapping[str, Any]
    config: TrainingConfig

    @property
    def label(self) -> str:
        """How it differs from the others, in words."""
        return ", ".join(f"{key} {_shown(value)}" for key, value in self.changes.items())

    def training_text(self, file: StudyFile | None) -> str:
        """The training section with the changes, to be put into a study file; of ``file``, if there is one."""
        document = tomlkit.document() if file is None else tomlkit.parse(file.text)
        section = document.get("training", tomlkit.table())
        for key, value in self.changes.items():
            _put(section, key.split("."), value)
        return tomlkit.dumps({"training": section})


def _put(section: Any, key: Sequence[str], value: Any) -> None:
    """Set a value in a section or below it; a tail that is given as a share loses its length."""
    for name in key[:-1]:
        section = section.setdefault(name, tomlkit.table())
        section.pop("length", None)
    section[key[-1]] = value


KEYS: Mapping[str, type] = {
    "variant": str,
    "fairness.exponent": float,
    "fairness.max_ratio": float,
    "learning_rate": float,
    "clipping_threshold": float,
    "tail.share": float,
    "adjustment.tau": float,
    "adjustment.target": str,
    "averaging": str,
}
"""What can be tuned: keys of the training section and their types, in the order in which they are combined."""


@dataclass(frozen=True)
class Space:
    """Values to choose from, by `KEYS`; where there are none, the study's own is kept."""

    values: Mapping[str, tuple[Any, ...]]

    def __post_init__(self) -> None:
        for key in self.values:
            _validate.one_of(KEYS, key=key)

    def candidates(self, config: TrainingConfig) -> list[Candidate]:
        """Every combination, in a fixed order; knobs of fair plans only go to fair plans.

        Raises:
            InvalidArgumentError: If there is nothing to choose from, or a combination is not valid.
        """
        found: dict[TrainingConfig, Candidate] = {}
        for changes in self._combinations(config.plan.variant):
            changed = config.changed(changes)
            found.setdefault(changed, Candidate(changes, changed))
        if len(found) < 2:
            raise InvalidArgumentError(
                "candidates: there is nothing to choose from; give at least two values of one, such as "
                "learning_rate=0.1,0.3 (on the command line with --try)"
            )
        return list(found.values())

    def _combinations(self, own: str) -> Iterator[dict[str, Any]]:
        for variant in self.values.get("variant", (own,)):
            given = {key: self.values[key] for key in KEYS if key in self.values} | {"variant": (variant,)}
            kept = [key for key in KEYS if key in self.values and (variant == "fair" or not key.startswith(KNOBS))]
            for chosen in itertools.product(*(given[key] for key in kept)):
                yield dict(zip(kept, chosen, strict=True))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
