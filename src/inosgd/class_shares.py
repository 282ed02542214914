"""Class shares: which share of each owner's examples is of each class, as far as it is public.

Owners *declare* them ("this registry holds only cases of melanoma"), or they are *counted* under the budgets
(`inosgd.counting`). An owner for whom there is neither is taken to be like all others together (*pooled*). They are
never read off the examples: that would be a release without noise.

>>> shares = ClassShares.declared({"north": {"ill": 0.25, "well": 0.75}, "south": {"well": 1.0}}, ["ill", "well"])
>>> shares.rows_for(("south", "north")).tolist()
[[0.0, 1.0], [0.25, 0.75]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, frozen_floats
from inosgd.errors import InvalidArgumentError

SOURCES = ("declared", "counted")

SUM_TOLERANCE = 1e-3
"""How far declared shares may be from adding up to 1: they are rounded by hand. They are then scaled to add up."""


@dataclass(frozen=True, eq=False)
class ClassShares(ArrayValue):
    """A row of shares for each owner that declared them or was counted. Public.

    Attributes:
        owners: Whose the rows are.
        classes: What the columns are.
        shares: Non-negative numbers; each row adds up to 1.
        sources: ``declared`` or ``counted``, for each owner.
    """

    owners: tuple[str, ...]
    classes: tuple[str, ...]
    shares: FloatArray
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", frozen_floats(self.shares))
        _validate.same_length(owners=self.owners, shares=self.shares, sources=self.sources)
        twice = [name for name, number in Counter(self.owners).items() if number > 1]
        if twice:
            raise _validate.fail("owners", twice[0], "it has shares twice; give each owner one row")
        if len(self.classes) < 2 or self.shares.shape != (len(self.owners), len(self.classes)):
            raise InvalidArgumentError(
                f"shares of shape {self.shares.shape}: give one row for each of {len(self.owners)} owners and one "
                f"column for each of {len(self.classes)} classes, at least one and two"
            )
        for source in set(self.sources):
            _validate.one_of(SOURCES, sources=source)
        totals = self.shares.sum(axis=1)
        possible = ((self.shares >= 0) & (self.shares <= 1)).all(axis=1) & (abs(totals - 1) <= SUM_TOLERANCE)
        for row in np.flatnonzero(~possible)[:1].tolist():
            _refuse_row(self.owners[row], self.shares[row])
        object.__setattr__(self, "shares", frozen_floats(self.shares / totals[:, None]))

    @classmethod
    def declared(cls, shares: Mapping[str, Mapping[str, float]], classes: Sequence[str]) -> Self:
        """What owners declare, by owner and class; a class that an owner does not name has share 0.

        Raises:
            InvalidArgumentError: If a class is unknown, a share is not a number from 0 to 1, or their sum is not 1.
        """
        rows = [_row(owner, given, classes) for owner, given in shares.items()]
        return cls(tuple(shares), tuple(classes), np.array(rows), ("declared",) * len(rows))

    @classmethod
    def counted(cls, owners: Sequence[str], classes: Sequence[str], counts: FloatArray) -> Self:
        """From noisy counts, a row per owner: negative ones are 0; if nothing is left, all classes are alike."""
        kept = np.maximum(counts, 0.0)
        kept[kept.sum(axis=1) == 0] = 1.0
        rows = kept / kept.sum(axis=1, keepdims=True)
        return cls(tuple(owners), tuple(classes), rows, ("counted",) * len(rows))

    def and_those_of(self, other: ClassShares) -> ClassShares:
        """These rows, and those of ``other`` for owners that have none here."""
        if self.classes != other.classes:
            raise InvalidArgumentError(f"classes={other.classes!r}: they are {self.classes!r} elsewhere; give the same")
        known = set(self.owners)
        more = [row for row, owner in enumerate(other.owners) if owner not in known]
        return ClassShares(
            (*self.owners, *(other.owners[row] for row in more)),
            self.classes,
            np.concatenate([self.shares, other.shares[more]]),
            (*self.sources, *(other.sources[row] for row in more)),
        )

    def rows_for(self, names: Sequence[str], sizes: Sequence[float] | None = None) -> FloatArray:
        """A row for each of ``names``; where there is none, the mean of the others, weighted by ``sizes``."""
        place = {owner: row for row, owner in enumerate(self.owners)}
        known = np.array([name in place for name in names])
        if not known.any():
            raise InvalidArgumentError(f"shares: none of {', '.join(names[:5])} has any; declare or count them")
        rows = self.shares[[place.get(name, 0) for name in names]]
        weights = np.ones(len(names)) if sizes is None else np.asarray(sizes, dtype=np.float64)
        weights = np.where(known, np.maximum(weights, 1e-9), 0.0)
        return np.where(known[:, None], rows, weights @ rows / weights.sum())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "owners": list(self.owners),
            "classes": list(self.classes),
            "shares": self.shares.tolist(),
            "sources": list(self.sources),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        names = {key: tuple(str(name) for name in fields[key]) for key in ("owners", "classes", "sources")}
        return cls(names["owners"], names["classes"], fields["shares"], names["sources"])


def _row(owner: str, given: Mapping[str, float], classes: Sequence[str]) -> list[float]:
    unknown = [name for name in given if name not in classes]
    if unknown:
        raise _validate.fail(f"shares[{owner!r}]", unknown[0], f"give shares of the classes {', '.join(classes)}")
    try:
        return [float(given.get(name, 0.0)) for name in classes]
    except (TypeError, ValueError):
        raise _validate.fail(f"shares[{owner!r}]", dict(given), "give a number from 0 to 1 for each class") from None


def _refuse_row(owner: str, row: FloatArray) -> None:
    """The error for shares that cannot be."""
    _validate.closed_unit(**{f"shares[{owner!r}]": row})
    raise InvalidArgumentError(f"shares[{owner!r}]: they add up to {row.sum():g}; give shares that add up to 1")
