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
from inosgd._arrays import ArrayValue, FloatArray, IntArray, frozen_floats, frozen_integers
from inosgd.errors import InvalidArgumentError, UnknownOwnerError


@dataclass(frozen=True)
class Budget:
    """The privacy loss (epsilon, delta) that an owner allows for each of its examples.

    Neighbouring data sets differ by the presence of one example. An infinite epsilon asks for no protection.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.open_unit(delta=self.delta)


@dataclass(frozen=True, eq=False)
class OwnerTable(ArrayValue):
    """One row per owner: its name, its budget, the number of its examples.

    Public: names, budgets and sizes are published with every plan, because rates, thresholds and the noise
    scale are functions of them. No example is referred to.
    """

    names: tuple[str, ...]
    epsilons: FloatArray
    deltas: FloatArray
    sizes: IntArray

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

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, Budget, int]]:
        for index, name in enumerate(self.names):
            yield name, self.budget(index), int(self.sizes[index])

    def budget(self, index: int) -> Budget:
        """The budget of the owner in row ``index``."""
        return Budget(float(self.epsilons[index]), float(self.deltas[index]))

    @cached_property
    def privacy_ranks(self) -> IntArray:
        """The rank of each owner, 0 for the most private: by epsilon, then delta, then row."""
        order = np.lexsort((np.arange(len(self)), self.deltas, self.epsilons))
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[order] = np.arange(len(self))
        return ranks

    def to_json(self) -> dict[str, Any]:
        """Columns as plain lists."""
        return {
            "names": list(self.names),
            "epsilons": [_finite_or_text(epsilon) for epsilon in self.epsilons],
            "deltas": self.deltas.tolist(),
            "sizes": self.sizes.tolist(),
        }

    @classmethod
    def from_json(cls, columns: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        epsilons = frozen_floats([float(epsilon) for epsilon in columns["epsilons"]])
        return cls(tuple(columns["names"]), epsilons, columns["deltas"], columns["sizes"])


@dataclass(frozen=True, eq=False, repr=False)
class Owners(ArrayValue):
    """The table of owners, and the row of the owner of each example.

    ``assignment`` is sensitive: it says which examples exist and whose they are.
    """

    table: OwnerTable
    assignment: IntArray

    def __post_init__(self) -> None:
        counted = np.bincount(self.assignment, minlength=len(self.table))
        if len(counted) > len(self.table) or not np.array_equal(counted, self.table.sizes):
            raise InvalidArgumentError("assignment: its counts per owner differ from table.sizes; rebuild both")

    def __len__(self) -> int:
        return len(self.assignment)

    def of(self, examples: npt.ArrayLike) -> IntArray:
        """The table row of the owner of each of ``examples``."""
        rows: IntArray = self.assignment[np.asarray(examples, dtype=np.int64)]
        return rows

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
        return cls._from_rows(rows, names, [_as_budget(name, given, delta) for name, given in budgets.items()])

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

    @classmethod
    def _from_rows(cls, rows: IntArray, names: tuple[str, ...], budgets: Sequence[Budget]) -> Self:
        sizes = np.bincount(rows, minlength=len(names))
        epsilons = frozen_floats([budget.epsilon for budget in budgets])
        deltas = frozen_floats([budget.delta for budget in budgets])
        return cls(OwnerTable(names, epsilons, deltas, sizes), frozen_integers(rows))


def _as_budget(name: object, given: Budget | float, delta: float | None) -> Budget:
    if isinstance(given, Budget):
        return given
    if delta is None:
        raise InvalidArgumentError(
            f"budgets: owner {name!r} has epsilon={given} alone; give Budgets, or a common delta"
        )
    return Budget(float(given), delta)


def _refuse_duplicates(names: tuple[str, ...]) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    repeated = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise _validate.fail("owner", repeated, "appears twice: give each owner one row")


def _finite_or_text(value: float) -> float | str:
    return float(value) if math.isfinite(value) else "inf"
