"""Units: what the guarantee protects, where that is more than one example.

Owners own units, and a unit holds one or more rows of the examples: the visits of a patient, the pages of a writer.
Without units each example is one by itself. With them, everything that bears on privacy counts units: plans (the
sizes of an `inosgd.owners.OwnerTable`), sampling, order, weights, clipping, counts of classes and the ledger.

    units = Units.of(patient_of_row, name="patient", max_rows=8)
    owners = units.owned_by(Owners.from_labels(hospital_of_row, budgets))
    plan = make_plan(owners.table, config)
    trainer = Trainer(plan, owners, examples, losses, method, units=units)

**Rows of a unit.** A step takes at most ``max_rows`` rows of a unit, drawn afresh without replacement. Which ones is a
function of one word of the step and of the unit's own name and number of rows, `Units.draw`. The unit's loss is the
mean of the losses of these rows, or their sum, and its gradient is that of its loss: it is clipped once.

Guarantee:
    Whatever the word of a step is, what a unit adds to a batch (its loss, its place in the order, its clipped gradient)
    is a function of that unit, the word and the model alone. So a unit of owner n, with any number of rows, moves the
    weighted sum of a batch by at most C_n (Thm. 3.4, which is stated for any vectors), and because the word is drawn
    without looking at the data, a step is a sampled Gaussian mechanism for each unit. How random the draw is has no
    part in this: it decides on the law of the gradient alone.

    Rows drawn from one stream for all units, a mean over all rows of a batch, or a key that reads other units' rows
    would break it.

**Units of several owners** are held to the smallest epsilon and the smallest delta among them, by an owner of their own
in the table, which is called after all of them (`JOINT` between the names), or are refused.

>>> units = Units.of(["ann", "ben", "ann", "cas"], name="patient")
>>> len(units), units.counts.tolist(), units.rows_of(np.array([0])).tolist()
(3, [2, 1, 1], [0, 2])
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray, RowArray, frozen_floats, pieces
from inosgd.errors import InvalidArgumentError
from inosgd.owners import EXAMPLE, Owners, OwnerTable
from inosgd.randomness import WordArray, mixed_words

JOINT = " & "
"""Between the names of owners who share a unit."""

SEVERAL_OWNERS = ("strictest", "refuse")
REDUCTIONS = ("mean", "sum")

_ROW = np.uint64(0x5851F42D4C957F2D)
"""Sets what is drawn for rows apart from what they are chosen by."""


@dataclass(frozen=True, eq=False, repr=False)
class DrawnRows:
    """The rows of some units in one step, unit after unit. Sensitive.

    Attributes:
        rows: Rows of the examples.
        counts: How many of them each unit has.
        starts: Where those of each unit begin.
        draw_words: Gives a random word for each of them.
    """

    rows: IntArray
    counts: IntArray
    starts: IntArray
    draw_words: Callable[[], WordArray]

    @cached_property
    def words(self) -> WordArray:
        """A random word for each row, a function of the step's word, the unit and the row's place in it."""
        return self.draw_words()

    def copied(self, copies: int) -> DrawnRows:
        """Each row so many times, every copy with a word of its own."""
        numbers = np.tile(np.arange(copies), len(self.rows))
        words = partial(mixed_words, numbers, np.repeat(self.words, copies))
        return DrawnRows(np.repeat(self.rows, copies), self.counts * copies, self.starts * copies, words)


@dataclass(frozen=True, eq=False, repr=False)
class Units:
    """Which rows each unit holds. Sensitive, but for ``name``, ``max_rows`` and ``reduction``.

    Memory: 4 bytes for each row and 16 for each unit, up to 2 billion rows.

    Attributes:
        name: What a unit is called, in the singular: what epsilon protects.
        rows: All rows, those of the first unit first, ascending within a unit.
        ends: Behind the last row of each unit.
        keys: A number for each unit, a function of its own name alone: what its draws are keyed by.
        max_rows: How many rows of a unit a step takes at most; None for all.
        reduction: Whether a unit's loss is the ``mean`` or the ``sum`` of the losses of its rows.
    """

    name: str
    rows: RowArray
    ends: IntArray
    keys: WordArray
    max_rows: int | None = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _validate.one_of(REDUCTIONS, reduction=self.reduction)
        if self.max_rows is not None:
            _validate.whole(1, max_rows=self.max_rows)
        if not self.name.strip():
            raise _validate.fail("name", self.name, "name what a unit is, such as 'patient'")

    def __len__(self) -> int:
        return len(self.ends)

    @classmethod
    def of(
        cls,
        labels: Sequence[object] | npt.NDArray[Any],
        *,
        name: str = "unit",
        max_rows: int | None = None,
        reduction: str = "mean",
    ) -> Self:
        """Units from one label per row: a whole number, or text; rows with equal labels are of one unit.

        They are numbered in the order of their first rows. Text is `tidied`, and a number is the unit that its digits
        name: 1, 1.0 and "1" are one.

        Raises:
            InvalidArgumentError: If a label is missing (None, NaN) or empty, is neither a whole number nor text, or
                there is none.
        """
        if isinstance(labels, np.ma.MaskedArray):
            masked, labels = np.ma.getmaskarray(labels), labels.data.astype(object)
            labels[masked] = None
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
            _check_flat(labels)
            numbers, first, of_row = np.unique(labels, return_index=True, return_inverse=True)
            keys = np.fromiter(map(key_of, map(str, numbers)), dtype=np.uint64, count=len(numbers))
        else:
            first, of_row, keys = _of_texts(labels)
        return cls._numbered(first, of_row, keys, name, max_rows, reduction)

    @classmethod
    def from_codes(
        cls,
        codes: RowArray,
        names: Sequence[str],
        *,
        name: str = "unit",
        max_rows: int | None = None,
        reduction: str = "mean",
    ) -> Self:
        """Units from one number per row, the place of its unit in ``names``; names without a row are no units."""
        found, first, of_row = np.unique(codes, return_index=True, return_inverse=True)
        keys = np.array([key_of(names[code]) for code in found.tolist()], dtype=np.uint64)
        return cls._numbered(first, of_row, keys, name, max_rows, reduction)

    @classmethod
    def one_each(cls, count: int) -> Self:
        """Every row is a unit, as it is without units."""
        rows = np.arange(count, dtype=_type_for(count))
        return cls(EXAMPLE, rows, np.arange(1, count + 1), np.arange(count, dtype=np.uint64))

    @classmethod
    def _numbered(
        cls, first: IntArray, of_row: IntArray, keys: WordArray, name: str, max_rows: int | None, reduction: str
    ) -> Self:
        """Units from groups in any order; ``first`` has the first row of each."""
        if not len(of_row):
            raise InvalidArgumentError("labels: there is no row; give the unit of each row of the examples")
        order = np.argsort(first)
        number = np.empty(len(order), dtype=_type_for(len(order)))
        number[order] = np.arange(len(order), dtype=number.dtype)
        numbered = number[of_row]
        counts = np.bincount(numbered, minlength=len(order))
        rows = np.argsort(numbered, kind="stable").astype(_type_for(len(numbered)))
        return cls(name, rows, np.cumsum(counts), keys[order], max_rows, reduction)

    @property
    def row_count(self) -> int:
        """How many rows all units have."""
        return len(self.rows)

    @cached_property
    def counts(self) -> IntArray:
        """How many rows each unit has."""
        return np.diff(self.ends, prepend=0)

    @property
    def first_rows(self) -> IntArray:
        """The first row of each unit."""
        first: IntArray = self.rows[self.ends - self.counts].astype(np.int64)
        return first

    @cached_property
    def of_row(self) -> RowArray:
        """The unit of each row."""
        found = np.empty(self.row_count, dtype=_type_for(len(self)))
        found[self.rows] = np.repeat(np.arange(len(self), dtype=found.dtype), self.counts)
        return found

    def rows_of(self, units: IntArray) -> IntArray:
        """All rows of some units, unit after unit."""
        counts = self.counts[units]
        places = _within(counts, np.cumsum(counts) - counts)
        return self.rows[np.repeat(self.ends[units] - counts, counts) + places].astype(np.int64)

    def only(self, units: IntArray) -> Units:
        """Some of the units; rows are numbered anew, in the order that they had."""
        kept = np.sort(self.rows_of(units))
        places = np.full(self.row_count, -1, dtype=self.rows.dtype)
        places[kept] = np.arange(len(kept), dtype=places.dtype)
        rows = places[self.rows_of(units)]
        return replace(self, rows=rows, ends=np.cumsum(self.counts[units]), keys=self.keys[units])

    def with_rows(self, rows: IntArray) -> Units:
        """The units with some of their rows, which are numbered anew; each unit keeps at least one.

        Raises:
            InvalidArgumentError: If a unit is left without rows.
        """
        of_row = self.of_row[rows]
        counts = np.bincount(of_row, minlength=len(self))
        if not counts.all():
            raise _validate.fail("rows", len(rows), f"a {self.name} would be left without rows; leave it out whole")
        ordered = np.argsort(of_row, kind="stable").astype(_type_for(len(rows)))
        return replace(self, rows=ordered, ends=np.cumsum(counts))

    def followed_by(self, other: Units) -> Units:
        """These units, then those of ``other``, whose rows come behind.

        Raises:
            InvalidArgumentError: If a unit is in both: it would be protected as two.
        """
        if np.intersect1d(self.keys, other.keys).size:
            raise InvalidArgumentError(
                f"units: a {self.name} of the new rows is known already; keep all rows of a {self.name} together"
            )
        rows = np.append(self.rows.astype(np.int64), other.rows.astype(np.int64) + self.row_count)
        return replace(
            self,
            rows=rows.astype(_type_for(len(rows))),
            ends=np.append(self.ends, other.ends + self.row_count),
            keys=np.append(self.keys, other.keys),
        )

    def draw(self, units: IntArray, word: np.uint64) -> DrawnRows:
        """The rows of some units in a step with this ``word``.

        Guarantee:
            The rows of a unit and their words are a function of ``word``, the unit's key and its number of rows: the
            other units have no influence on them. Over random words each row of a unit is as likely as any other.
        """
        counts = self.counts[units]
        taken = counts if self.max_rows is None else np.minimum(counts, self.max_rows)
        starts = np.cumsum(taken) - taken
        places = _within(taken, starts)
        if taken is not counts:
            larger = np.flatnonzero(counts > taken)
            for unit, seed in zip(larger.tolist(), mixed_words(self.keys[units[larger]], word), strict=True):
                places[starts[unit] :][: taken[unit]] = _chosen(seed, int(counts[unit]), int(taken[unit]))
        rows = self.rows[np.repeat(self.ends[units] - counts, taken) + places].astype(np.int64)

        def words() -> WordArray:
            return mixed_words(places, np.repeat(mixed_words(self.keys[units], word) ^ _ROW, taken))

        return DrawnRows(rows, taken, starts, words)

    def shares_of(self, numbers: RowArray, classes: int, owners: Owners, parts: int) -> IntArray:
        """For every owner and class the sum over its units of the share of the unit's rows that are of the class.

        It is counted in whole ``parts`` of 1, each share rounded down, so that sums are exact.

        Guarantee:
            One unit moves the row of its owner by at most ``parts``, in the 1-norm and hence in the 2-norm.
        """
        table = np.zeros((len(owners.table), classes), dtype=np.int64)
        for start, piece in pieces(self.ends):
            begin = int(self.ends[start - 1]) if start else 0
            rows = self.rows[begin : int(piece[-1]) if len(piece) else begin]
            of_row = np.repeat(np.arange(len(piece)), self.counts[start : start + len(piece)])
            cells, members = np.unique(of_row * classes + numbers[rows].astype(np.int64), return_counts=True)
            unit, of_class = start + cells // classes, cells % classes
            np.add.at(table, (owners.assignment[unit], of_class), members * parts // self.counts[unit])
        return table

    def owned_by(self, owners: Owners, several: str = "strictest") -> Owners:
        """The owners of units, from the owners of rows.

        Guarantee:
            A unit's budget is at most that of the owner of each of its rows, in epsilon and in delta.

        Args:
            owners: Whose each row is.
            several: What becomes of a unit whose rows belong to several owners: with ``strictest`` it is held to the
                smallest epsilon and the smallest delta among them, by an owner behind the others; or ``refuse``.
        """
        _validate.one_of(SEVERAL_OWNERS, several=several)
        if self.row_count != len(owners):
            raise InvalidArgumentError(
                f"units: there are {self.row_count} rows in units and {len(owners)} rows with an owner; give one unit "
                "and one owner for each row"
            )
        lowest, highest = self._extremes(owners.assignment)
        shared = np.flatnonzero(lowest != highest)
        if len(shared) and several == "refuse":
            raise InvalidArgumentError(
                f"{self.name}: rows of {len(shared)} of {len(self)} belong to several owners; give each one owner, or "
                "hold them to the smallest budget among their owners ('strictest')"
            )
        assignment = lowest.astype(np.int64)
        groups: dict[tuple[int, ...], int] = {}
        for unit in shared.tolist():
            group = tuple(np.unique(owners.of(self.rows_of(np.array([unit])))).tolist())
            assignment[unit] = groups.setdefault(group, len(owners.table) + len(groups))
        return _owners_with(owners.table, list(groups), assignment, self.name)

    def _extremes(self, values: RowArray) -> tuple[RowArray, RowArray]:
        """The least and the greatest value of each unit's rows."""
        ordered, begins = values[self.rows], self.ends - self.counts
        return np.minimum.reduceat(ordered, begins), np.maximum.reduceat(ordered, begins)


def parts_of(name: str, known: Collection[str]) -> tuple[str, ...]:
    """The owners among ``known`` whose shared units the owner ``name`` stands for; none if it stands for itself."""
    parts = tuple(name.split(JOINT))
    return parts if len(parts) > 1 and all(part in known for part in parts) else ()


def shared_units(table: OwnerTable) -> int:
    """How many units have rows of several owners."""
    names = set(table.names)
    shared = [size for name, _, size in table if parts_of(name, names)]
    return sum(shared) if table.unit != EXAMPLE else 0


def key_of(label: str) -> int:
    """The key of a unit with this name."""
    return int.from_bytes(hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def tidied(label: str) -> str:
    """A unit's name without white space around it, and with one code for a character that Unicode has several for."""
    return unicodedata.normalize("NFC", label).strip()


def _owners_with(table: OwnerTable, groups: list[tuple[int, ...]], assignment: IntArray, unit: str) -> Owners:
    """The owners of units, with one more for each of the groups of owners that share some."""
    named = [name for name in table.names if JOINT in name]
    if named:
        raise _validate.fail(
            "owner", named[0], f"{JOINT!r} stands between the names of owners who share a {unit}; give it another name"
        )
    names = [JOINT.join(table.names[row] for row in group) for group in groups]
    epsilons = [float(table.epsilons[list(group)].min()) for group in groups]
    deltas = [float(table.deltas[list(group)].min()) for group in groups]
    sizes = np.bincount(assignment, minlength=len(table) + len(groups))
    small = assignment.astype(np.min_scalar_type(len(sizes)))
    small.flags.writeable = False
    return Owners(
        OwnerTable(
            (*table.names, *names),
            _appended(table.epsilons, epsilons),
            _appended(table.deltas, deltas),
            sizes,
            unit,
        ),
        small,
    )


def _appended(values: FloatArray, more: list[float]) -> FloatArray:
    return frozen_floats(np.append(values, more))


def _within(counts: IntArray, starts: IntArray) -> IntArray:
    """0, 1, 2, ... for each of some numbers of rows, one after the other."""
    return np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _chosen(seed: np.uint64, count: int, most: int) -> IntArray:
    """Which of ``count`` places are drawn: those with the smallest words, in ascending order."""
    return np.sort(np.argpartition(mixed_words(np.arange(count), seed), most)[:most])


def _of_texts(labels: Sequence[object] | npt.NDArray[Any]) -> tuple[IntArray, IntArray, WordArray]:
    """First row, group of each row, and key of each group, for labels of any type."""
    if isinstance(labels, np.ndarray):
        _check_flat(labels)
    places: dict[str, int] = {}
    first: list[int] = []
    of_row = np.empty(len(labels), dtype=np.int64)
    for row, label in enumerate(labels):
        text = _text_of(label)
        if not text:
            fix = "the unit of a row is missing; name it, or leave the row out of the examples"
            raise _validate.fail(f"labels[{row}]", label, fix if text == "" else "give a whole number, or text")
        of_row[row] = place = places.setdefault(text, len(places))
        if place == len(first):
            first.append(row)
    return np.array(first, dtype=np.int64), of_row, np.array([key_of(text) for text in places], dtype=np.uint64)


def _text_of(label: object) -> str | None:
    """What a label is called: "" if it is missing, None if it is no label."""
    if isinstance(label, str):
        return tidied(label)
    if label is None or type(label).__name__ in ("NAType", "NaTType"):  # of pandas
        return ""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float | np.floating):
        return "" if math.isnan(label) else str(int(label)) if float(label).is_integer() else None
    return None


def _check_flat(labels: npt.NDArray[Any]) -> None:
    if labels.ndim != 1:
        raise _validate.fail("labels", labels.shape, "give one label per row, a flat array")


def _type_for(count: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if count < 2**31 else np.int64
