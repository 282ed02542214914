"""Owners and budgets: who owns which example, and what each owner allows.

`OwnerTable` is the public part, one row per owner: name, budget and number of examples. Plans are made from
it. `Owners` adds the sensitive part, which example belongs to whom; only training reads it.

>>> owners = Owners.from_labels(
...     ["hospital", "hospital", "clinic"],
...     {"hospital": Budget(epsilon=0.5, delta=1e-5), "clinic": Budget(epsilon=5.0, delta=1e-5)},
... )
>>> owners.table.sizes.tolist()
[2, 1]
>>> owners.of([2, 0]).tolist()
[1, 0]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray, RowArray, frozen_floats, frozen_integers, pieces
from inosgd.errors import InvalidArgumentError, UnknownOwnerError
from inosgd.tabled import Tabled, TextTable

EXAMPLE = "example"
"""The unit of privacy where nothing else is said: one example."""


@dataclass(frozen=True, kw_only=True)
class Budget(Tabled):
    """The privacy loss (epsilon, delta) that an owner allows for each of its units; both are given by name.

    Neighbouring data sets differ by the presence of one unit: one example, unless examples are gathered in units
    (`inosgd.units`). An infinite epsilon asks for no protection.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.open_unit(delta=self.delta)

    def tabled(self) -> TextTable:
        """Both numbers."""
        rows = [("epsilon", f"{self.epsilon:g}"), ("delta", f"{self.delta:g}")]
        return TextTable("budget for each unit", ("", "allowed"), rows, len(rows))


@dataclass(frozen=True, eq=False, repr=False)
class OwnerTable(Tabled, ArrayValue):
    """One row per owner: its name, its budget, the number of its units.

    Public: names, budgets and sizes are published with every plan, because rates, thresholds and the noise
    scale are functions of them. No unit is referred to.

    ``unit`` says what budgets protect and ``sizes`` count: each example, unless examples are gathered in units
    (`inosgd.units`), such as patients.
    """

    names: tuple[str, ...]
    epsilons: FloatArray
    deltas: FloatArray
    sizes: IntArray
    unit: str = EXAMPLE

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        object.__setattr__(self, "epsilons", frozen_floats(self.epsilons))
        object.__setattr__(self, "deltas", frozen_floats(self.deltas))
        object.__setattr__(self, "sizes", frozen_integers(self.sizes))
        if not self.names:
            raise InvalidArgumentError("names=(): give at least one owner")
        _validate.same_length(names=self.names, epsilons=self.epsilons, deltas=self.deltas, sizes=self.sizes)
        _validate.positive(epsilon=self.epsilons)
        _validate.open_unit(delta=self.deltas)
        _validate.non_negative(size=self.sizes)
        _refuse_duplicates(self.names)
        if not self.unit.strip():
            raise _validate.fail("unit", self.unit, "name what each budget protects, such as 'patient'")

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, Budget, int]]:
        for index, name in enumerate(self.names):
            yield name, self.budget(index), int(self.sizes[index])

    def budget(self, index: int) -> Budget:
        """The budget of the owner in row ``index``."""
        return Budget(epsilon=float(self.epsilons[index]), delta=float(self.deltas[index]))

    def tabled(self) -> TextTable:
        """Owners, budgets and sizes."""
        columns = zip(self.names, self.epsilons, self.deltas, self.sizes, strict=True)
        rows = ((name, f"{epsilon:g}", f"{delta:g}", f"{size:,}") for name, epsilon, delta, size in columns)
        return TextTable(f"{len(self):,} owners", ("owner", "epsilon", "delta", self.units), rows, len(self))

    @property
    def units(self) -> str:
        """The plural of what budgets protect."""
        return plural(self.unit)

    @cached_property
    def privacy_ranks(self) -> IntArray:
        """The rank of each owner, 0 for the most private: by epsilon, then delta, then row."""
        order = np.lexsort((np.arange(len(self)), self.deltas, self.epsilons))
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[order] = np.arange(len(self))
        return ranks

    def too_large_delta(self) -> tuple[float, str] | None:
        """The largest delta and what to give instead, if it is not below one over the number of units.

        Such a delta allows publishing one unit, picked at random, whole: it bounds nothing.
        """
        units, row = int(self.sizes.sum()), int(np.argmax(self.deltas))
        if self.deltas[row] * units < 1:
            return None
        fix = (
            f"owner {self.names[row]!r}: with {units} {self.units} this allows publishing one of them whole; give less "
            f"than 1 / {self.units}, such as {0.1 / units:.0e}"
        )
        return float(self.deltas[row]), fix

    def to_json(self) -> dict[str, Any]:
        """Columns as plain lists, and the unit if it is not an example."""
        return {
            "names": list(self.names),
            "epsilons": [_finite_or_text(epsilon) for epsilon in self.epsilons],
            "deltas": self.deltas.tolist(),
            "sizes": self.sizes.tolist(),
        } | ({} if self.unit == EXAMPLE else {"unit": self.unit})

    @classmethod
    def from_json(cls, columns: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        epsilons = frozen_floats([float(epsilon) for epsilon in columns["epsilons"]])
        unit = columns.get("unit", EXAMPLE)
        return cls(tuple(columns["names"]), epsilons, columns["deltas"], columns["sizes"], unit)


@dataclass(frozen=True, eq=False, repr=False)
class Owners(Tabled, ArrayValue):
    """The table of owners, and the row of the owner of each unit: of each example, unless `inosgd.units` gathers them.

    ``assignment`` is sensitive: it says which examples exist and whose they are. It may be of any integer type, two
    bytes for each of 100 million examples, and memory-mapped.
    """

    table: OwnerTable
    assignment: RowArray

    def __post_init__(self) -> None:
        if not np.array_equal(_counted(self.assignment, len(self.table)), self.table.sizes):
            raise InvalidArgumentError("assignment: its counts per owner differ from table.sizes; rebuild both")

    def __len__(self) -> int:
        return len(self.assignment)

    def tabled(self) -> TextTable:
        """The table; nothing of single examples."""
        return self.table.tabled()

    def of(self, examples: npt.ArrayLike) -> IntArray:
        """The table row of the owner of each of ``examples``."""
        return self.assignment[np.asarray(examples, dtype=np.int64)].astype(np.int64)

    @classmethod
    def from_labels(
        cls,
        labels: Sequence[object] | npt.NDArray[Any],
        budgets: Mapping[Any, Budget | float],
        *,
        delta: float | None = None,
    ) -> Self:
        """Owners from one label per example and one budget per label.

        A budget is a `Budget`, or an epsilon where a common ``delta`` is given.

        Rows follow the order of ``budgets``. An owner may have a budget and no example; a label without a
        budget is refused.

        >>> Owners.from_labels(["a", "b", "a"], {"a": 0.5, "b": 5.0}, delta=1e-5).table.deltas.tolist()
        [1e-05, 1e-05]
        """
        names = tuple(str(name) for name in budgets)
        _refuse_duplicates(names)
        row_of = {name: row for row, name in enumerate(names)}
        owned = [str(label) for label in labels]
        for label, size in Counter(owned).items():
            if label not in row_of:
                message = f"owner {label!r} owns {size} examples and has no budget: add it to budgets"
                raise UnknownOwnerError(label, message)
        rows = np.fromiter((row_of[label] for label in owned), dtype=np.int64, count=len(owned))
        return cls.from_rows(rows, budgets, delta=delta)

    @classmethod
    def from_rows(cls, rows: RowArray, budgets: Mapping[Any, Budget | float], *, delta: float | None = None) -> Self:
        """Owners from one number per example: the place of its owner in ``budgets``, counted from 0.

        For data too large for labels. The numbers keep their type, and are counted piece by piece. An array that
        cannot be written to, such as one mapped with ``numpy.load(path, mmap_mode="r")``, is kept where it is; any
        other is copied.

        >>> Owners.from_rows(np.array([1, 0, 1], dtype=np.uint8), {"a": 0.5, "b": 5.0}, delta=1e-5).table.sizes.tolist()
        [1, 2]
        """
        names = tuple(str(name) for name in budgets)
        _refuse_duplicates(names)
        sizes = _counted(rows, len(names))
        given = [_as_budget(name, budget, delta) for name, budget in budgets.items()]
        epsilons = frozen_floats([budget.epsilon for budget in given])
        deltas = frozen_floats([budget.delta for budget in given])
        return cls(OwnerTable(names, epsilons, deltas, sizes), _frozen_rows(rows))

    @classmethod
    def one_each(cls, epsilons: npt.ArrayLike, delta: float) -> Self:
        """Every example is its own owner, with its own epsilon and a common delta."""
        array = frozen_floats(epsilons)
        if array.ndim != 1:
            raise _validate.fail("epsilons", array.shape, "give one epsilon per example, a flat array")
        count = len(array)
        names = tuple(str(example) for example in range(count))
        table = OwnerTable(names, array, np.full(count, delta), np.ones(count, dtype=np.int64))
        return cls(table, frozen_integers(np.arange(count)))


def plural(unit: str) -> str:
    """Several of a unit.

    >>> plural("patient"), plural("family")
    ('patients', 'families')
    """
    return f"{unit[:-1]}ies" if unit.endswith("y") and unit[-2:-1] not in "aeiou" else f"{unit}s"


def _frozen_rows(rows: RowArray) -> RowArray:
    if rows.flags.writeable:
        rows = rows.copy()
        rows.flags.writeable = False
    return rows


def _counted(rows: RowArray, owners: int) -> IntArray:
    """How many examples each owner has; rows that no owner has are refused."""
    if rows.ndim != 1 or rows.dtype.kind not in "ui":
        raise InvalidArgumentError(
            f"assignment: an array of shape {rows.shape} and type {rows.dtype}; give one whole number per example"
        )
    sizes = np.zeros(owners, dtype=np.int64)
    for start, piece in pieces(rows):
        wrong = (piece < 0) | (piece >= owners)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise _validate.fail(f"assignment[{start + at}]", piece[at], f"give a row from 0 to {owners - 1}")
        sizes += np.bincount(piece.astype(np.int64), minlength=owners)
    return sizes


def _as_budget(name: object, given: Budget | float, delta: float | None) -> Budget:
    if isinstance(given, Budget):
        return given
    if delta is None:
        raise InvalidArgumentError(
            f"budgets: owner {name!r} has epsilon={given} alone; give Budgets, or a common delta"
        )
    return Budget(epsilon=float(given), delta=delta)


def _refuse_duplicates(names: tuple[str, ...]) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    repeated = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise _validate.fail("owner", repeated, "appears twice: give each owner one row")


def _finite_or_text(value: float) -> float | str:
    return float(value) if math.isfinite(value) else "inf"
