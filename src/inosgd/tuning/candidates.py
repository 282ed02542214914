"""Candidates: the settings that a tuning chooses from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inosgd import _validate
from inosgd._extras import needs
from inosgd.errors import InvalidArgumentError
from inosgd.plan_config import VARIANTS
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


@dataclass(frozen=True)
class Space:
    """Values to choose from; where there are none, the study's own is kept.

    Attributes:
        learning_rates: Of the optimizer.
        clipping_thresholds: The mean threshold.
        tail_shares: The tail's length as a share of the batch, for methods with a tail.
        variants: How budgets become plans.
        exponents: Of fair plans.
        max_ratios: Of fair plans, the cap.
    """

    learning_rates: tuple[float, ...] = ()
    clipping_thresholds: tuple[float, ...] = ()
    tail_shares: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()
    exponents: tuple[float, ...] = ()
    max_ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("learning_rates", "clipping_thresholds", "tail_shares"):
            for value in getattr(self, name):
                _validate.finite_positive(**{name: value})
        for variant in self.variants:
            if variant not in VARIANTS:
                raise InvalidArgumentError(f"variants: {variant!r} is not one of {', '.join(VARIANTS)}")

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
            raise InvalidArgumentError("candidates: there is nothing to choose from; give at least two values of one")
        return list(found.values())

    def _combinations(self, own: str) -> Iterator[dict[str, Any]]:
        common = [
            _choices("learning_rate", self.learning_rates),
            _choices("clipping_threshold", self.clipping_thresholds),
            _choices("tail.share", self.tail_shares),
        ]
        for variant in self.variants or (own,):
            fair = [_choices("fairness.exponent", self.exponents), _choices("fairness.max_ratio", self.max_ratios)]
            knobs = [_choices("variant", (variant,) if self.variants else ()), *(fair if variant == "fair" else [])]
            for chosen in itertools.product(*knobs, *common):
                yield dict(pair for pair in chosen if pair is not None)


def _choices(key: str, values: tuple[Any, ...]) -> list[tuple[str, Any] | None]:
    return [(key, value) for value in values] or [None]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
