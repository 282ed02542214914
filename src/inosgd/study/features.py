"""Features as a study file declares them, one key per column in ``[data.features]``.

| in the file                                  | the column                                                           |
| -------------------------------------------- | -------------------------------------------------------------------- |
| ``age = [0, 120]``                           | numeric, with its public range                                       |
| ``sex = ["f", "m"]``                         | categorical, with its categories                                     |
| ``note = {text = "words", max_length = 80}`` | text                                                                 |
| ``weight = "numeric"``                       | numeric, its range fitted to the training data: unaccounted          |
| ``city = "categorical"``                     | categorical, its categories read off the training data: unaccounted  |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

TOKENS = ("bytes", "words")
DEFAULT_VOCABULARY = 4096


@dataclass(frozen=True)
class NumericFeature:
    """A column of numbers; without a range, one is fitted."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CategoricalFeature:
    """A column of categories; without a list, they are read off the training data."""

    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TextFeature:
    """A column of text, cut after ``max_length`` tokens.

    Tokens are the bytes of the text, or its words by a public hash into ``vocabulary_size`` numbers: a vocabulary
    learnt from the data would publish words that only one example has.
    """

    tokens: str
    max_length: int
    vocabulary_size: int


Feature = NumericFeature | CategoricalFeature | TextFeature


def parse_feature(value: Any) -> Feature:
    """The feature that ``value`` declares.

    Raises:
        ValueError: With the fix as its message; the caller names file, key and value.
    """
    if value == "numeric":
        return NumericFeature()
    if value == "categorical":
        return CategoricalFeature()
    if isinstance(value, dict):
        return _parse_text(value)
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return _parse_categories(value)
    if isinstance(value, list) and all(_is_number(entry) for entry in value) and len(value) == 2:
        return NumericFeature(*parse_range(value))
    raise ValueError(
        'give a range such as [0, 120], categories as text such as ["f", "m"], a text column such as { text = "words", '
        'max_length = 80 }, or, with data.unaccounted_scaling = true, "numeric" or "categorical"'
    )


def parse_range(value: list[Any]) -> tuple[float, float]:
    """Two finite numbers, the lower one first."""
    low, high = (float(entry) if _is_number(entry) and abs(entry) <= 1e300 else math.nan for entry in value)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("give two finite numbers, the lower one first")
    if not low < high:
        raise ValueError("a range is the lower number, then the higher one: exchange or correct them")
    return low, high


def _parse_categories(value: list[str]) -> CategoricalFeature:
    categories = tuple(entry.strip() for entry in value)
    if "" in categories or len(set(categories)) < len(categories):
        raise ValueError("a category is empty or appears twice: give each once")
    if len(categories) < 2:
        raise ValueError("give at least two categories")
    return CategoricalFeature(categories)


def _parse_text(value: dict[str, Any]) -> TextFeature:
    unknown = set(value) - {"text", "max_length", "vocabulary_size"}
    if unknown:
        raise ValueError(f"{sorted(unknown)[0]!r} is no part of a text column; give text, max_length, vocabulary_size")
    tokens, length = str(value.get("text")), value.get("max_length", 0)
    size = value.get("vocabulary_size", DEFAULT_VOCABULARY)
    if tokens not in TOKENS:
        raise ValueError('give text = "bytes" or text = "words"')
    if not (_is_whole(length) and 1 <= length <= 100_000):
        raise ValueError("give max_length, a whole number from 1 to 100000")
    if not (_is_whole(size) and 2 <= size <= 10_000_000):
        raise ValueError("give vocabulary_size as a whole number from 2 to 10000000")
    return TextFeature(tokens, length, 257 if tokens == "bytes" else size)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
