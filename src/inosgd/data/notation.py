"""Notation: what separates cells, which texts stand for a missing value, and how numbers are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from inosgd._extras import needs
from inosgd.errors import InvalidArgumentError

with needs("data"):
    import pyarrow.compute as pc

USUAL_MISSING = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "-", "?")
"""What programs write for a missing value, beside an empty cell."""

_NO_SEPARATOR = re.compile(r"[\w+\-]")


@dataclass(frozen=True)
class Notation:
    """How the cells of a table are written. Public, and the same for every row.

    Attributes:
        missing: Texts that stand for a missing value, beside empty cells, which always do.
        decimal: What separates decimals.
        thousands: What separates groups of three digits; by default nothing does.
        delimiter: What separates cells in a text file; by default a comma, in .tsv a tab.
    """

    missing: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str | None = None
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in self.missing):
            raise InvalidArgumentError(f"missing={self.missing!r}: give texts")
        if self.decimal not in (".", ","):
            raise InvalidArgumentError(f'decimal={self.decimal!r}: give "." or ","')
        if not isinstance(self.delimiter, str | None):
            raise InvalidArgumentError(f"delimiter={self.delimiter!r}: give one character, or leave it out")
        mark = self.thousands
        if mark is None:
            return
        if not isinstance(mark, str) or len(mark) != 1 or mark == self.decimal or _NO_SEPARATOR.match(mark):
            raise InvalidArgumentError(
                f"thousands={mark!r}: give one character that is no digit, letter or sign, and not the decimal one"
            )

    def plain(self, texts: Any) -> Any:
        """Numbers as Arrow reads them; what is not in this notation becomes something that Arrow does not read.

        A separator of thousands must be followed by groups of three digits: ``1,5`` is not 15.
        """
        if self.thousands is not None:
            mark, point = re.escape(self.thousands), re.escape(self.decimal)
            grouped = pc.match_substring_regex(texts, f"^[+-]?[0-9]{{1,3}}({mark}[0-9]{{3}})+({point}[0-9]*)?$")
            texts = pc.if_else(grouped, pc.replace_substring(texts, self.thousands, ""), texts)
        if self.decimal == ",":
            texts = pc.replace_substring(pc.replace_substring(texts, ".", "_"), ",", ".")
        return texts

    def problem(self, text: str) -> str:
        """What is wrong with a text that is not a number, and how to correct it."""
        if any(mark in text for mark in ".,' ") and all(mark in "+-.,' 0123456789" for mark in text):
            thousands = "nothing" if self.thousands is None else repr(self.thousands)
            other = "," if self.decimal == "." else "."
            return (
                f"is not a number: decimals are separated by {self.decimal!r} and thousands by {thousands}; correct "
                f'it, or, for the tables of a study, set data.decimal = "{other}" or data.thousands'
            )
        return "is not a number; correct it, declare the column's categories, or list it in data.missing"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "missing": list(self.missing)}


PLAIN = Notation()
"""Points for decimals, and nothing but empty cells is missing."""
