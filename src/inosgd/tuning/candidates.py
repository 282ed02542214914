"""Candidates: the settings that a tuning chooses from, each as a whole study."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.method import METHODS
from inosgd.planning import VARIANTS
from inosgd.study.reading import StudyFile, parse_study
from inosgd.tuning.toml import toml_text


@dataclass(frozen=True)
class Candidate:
    """One choice of settings: how it differs from the others in words, and the study with them."""

    label: str
    study: StudyFile

    @property
    def training_text(self) -> str:
        """The study's section on training, to be put into another study file."""
        return toml_text({"training": tomllib.loads(self.study.text)["training"]})


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

    def candidates(self, study: StudyFile, *, allowed_factory: str | None = None) -> list[Candidate]:
        """Every combination, as a valid study, in a fixed order; knobs of fair plans only go to fair plans.

        Raises:
            InvalidArgumentError: If there is nothing to choose from.
            StudyFileError: If a combination is no valid study.
        """
        found: dict[str, Candidate] = {}
        for words, changes in self._combinations(study):
            text = _changed(study.text, changes)
            parsed = parse_study(text, study.path, study.folder, allowed_factory=allowed_factory)
            found.setdefault(text, Candidate(", ".join(words), parsed))
        if len(found) < 2:
            raise InvalidArgumentError("candidates: there is nothing to choose from; give at least two values of one")
        return list(found.values())

    def _combinations(self, study: StudyFile) -> Iterator[tuple[list[str], dict[str, Any]]]:
        training = study.schema.training
        own = training.variant or METHODS[training.method].variant
        common = [
            _choices("learning_rate", self.learning_rates),
            _choices("clipping_threshold", self.clipping_thresholds),
            _choices("tail.share", self.tail_shares),
        ]
        for variant in self.variants or (own,):
            fair = [_choices("fairness.exponent", self.exponents), _choices("fairness.max_ratio", self.max_ratios)]
            knobs = [_choices("variant", (variant,) if self.variants else ()), *(fair if variant == "fair" else [])]
            for chosen in itertools.product(*knobs, *common):
                given = dict(pair for pair in chosen if pair is not None)
                yield [f"{key} {_shown(value)}" for key, value in given.items()], given


def _choices(key: str, values: tuple[Any, ...]) -> list[tuple[str, Any] | None]:
    return [(key, value) for value in values] or [None]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _changed(text: str, changes: Mapping[str, Any]) -> str:
    """The study with other settings of training; a tail that is given as a share loses its length."""
    values = tomllib.loads(text)
    training = values["training"]
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        holder = training.setdefault(section, {}) if section else training
        holder[name] = value
        if section == "tail":
            holder.pop("length", None)
    return toml_text(values)
