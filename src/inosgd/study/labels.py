"""Labels: what each row of a study's data is, and whose.

Names repeat, a few of them for many rows. They are kept once, with a small number for each row. Targets are names of
classes, or numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inosgd._arrays import FloatArray, IntArray, RowArray
from inosgd.data.tables import Table, Texts
from inosgd.study.schema import ImageData, TableData
from inosgd.units import tidied


@dataclass(frozen=True, eq=False, repr=False)
class Names:
    """One name per row: row ``i`` is called ``names[codes[i]]``. Sensitive."""

    codes: RowArray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.names[int(self.codes[row])]

    def of(self, rows: IntArray) -> list[str]:
        """The names that some of ``rows`` have, each once."""
        return [self.names[code] for code in np.flatnonzero(np.bincount(self.codes[rows])).tolist()]

    def among(self, known: Sequence[str], rows: IntArray) -> RowArray:
        """For each of ``rows`` the position of its name among ``known``, in a small type; -1 if it is none of them."""
        position = {name: place for place, name in enumerate(known)}
        places = np.array([position.get(name, -1) for name in self.names], dtype=np.min_scalar_type(-len(known) - 1))
        found: RowArray = places[self.codes[rows]]
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Numbers:
    """Numbers of each row, shape (rows, len(names)): 0 and 1 for labels, else in units of their own. Sensitive."""

    values: FloatArray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """What each row is and whose it is.

    Attributes:
        targets: The class of each row, or its labels or numbers.
        targets_from: Where that was read, for messages.
        owners: The owner of each row.
        owners_from: Where that was read, for messages.
        epsilons: What each row allows, if rows have budgets of their own.
        units: The unit of each row, if rows are protected together.
        units_from: Where that was read, for messages.
        rows: Where in the file each row stands, counted from 0, if some rows of the file are left out. Whatever depends
            on the place of a row depends on this one, so that a row that is left out moves no other.
    """

    targets: Names | Numbers
    targets_from: str
    owners: Names | None
    owners_from: str
    epsilons: FloatArray | None
    rows: RowArray | None = None
    units: Names | None = None
    units_from: str = ""

    def __post_init__(self) -> None:
        if self.units is not None:
            object.__setattr__(self, "units", _of_units(self.units))

    def position(self, row: int) -> int:
        """Where in the file ``row`` stands, counted from 0."""
        return row if self.rows is None else int(self.rows[row])


def label_texts(data: TableData | ImageData, table: Table, column: str, known: Sequence[str] = ()) -> Texts:
    """The names in a column of classes or owners; those that are ``known`` are never missing."""
    refuse_missing_label(data, table, column, known)
    return table.texts(column, known)


def refuse_missing_label(data: TableData | ImageData, table: Table, column: str, known: Sequence[str] = ()) -> None:
    """Raise for the first row without a value in the column."""
    fix = "fill it in, or leave the row out"
    if isinstance(data, TableData):
        fix += f' (all such rows: data.drop_missing = ["{column}"]); if this is a name, keep it out of data.missing'
    table.refuse_missing(column, known, fix)


def _of_units(names: Names) -> Names:
    """The names of units, `tidied`; those that are then the same are one."""
    once = named(np.array([tidied(name) for name in names.names], dtype=object))
    return Names(once.codes[names.codes], once.names)


def named(texts: Texts) -> Names:
    """The names in ``texts``."""
    return gathered([texts])


def gathered(pieces: Iterable[Texts]) -> Names:
    """The names in all ``pieces``, which come one after the other and need not be in memory together."""
    codes: dict[str, int] = {}
    numbered = [_numbered(piece, codes) for piece in pieces]
    return Names(np.concatenate(numbered) if numbered else np.zeros(0, dtype=np.uint8), tuple(codes))


def _numbered(texts: Texts, codes: dict[str, int]) -> RowArray:
    found = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), dtype=np.int64, count=len(texts))
    return found.astype(np.min_scalar_type(len(codes)))
