"""From an assignment and a data set to owners of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, IntArray
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners
from inosgd.paper.datasets.assignments import Assignment, Spread
from inosgd.paper.datasets.labelled import DataSet


@dataclass(frozen=True, eq=False)
class AssignedExamples(ArrayValue):
    """Training examples with owners, and held-out examples by kind of data.

    Attributes:
        owners: Who owns each training example.
        train_rows: Rows of ``data.train``.
        train_targets: The class of each training example, after flips; a row of ``class_names``.
        train_groups: The kind of data that each training example is by its true class; a row of ``group_names``.
        held_out_rows: Rows of ``data.test``.
        held_out_targets: The class of each held-out example; a row of ``class_names``.
        held_out_groups: The kind of data that each held-out example is; a row of ``group_names``.
        class_names: The classes that models tell apart, in the data set's order.
        group_names: Kinds of data: the owners' names, unless every example is its own owner.
        group_epsilons: The budget of each group; where every example has its own, the one that they spread around.
    """

    owners: Owners
    train_rows: IntArray
    train_targets: IntArray
    train_groups: IntArray
    held_out_rows: IntArray
    held_out_targets: IntArray
    held_out_groups: IntArray
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    group_epsilons: FloatArray


def assign(assignment: Assignment, data: DataSet, seed: int) -> AssignedExamples:
    """Carry out ``assignment`` on ``data``; whatever is random in it is a function of ``seed``."""
    _validate.whole(0, seed=seed)
    numbers = _class_numbers(assignment, data)
    groups = _group_of_class(assignment, numbers, data, _generator(seed, 0))
    train = np.flatnonzero(groups[data.train.targets] >= 0)
    if assignment.per_class is not None:
        train = _draw_per_class(train, data.train.targets, assignment.per_class, _generator(seed, 1))
    held_out = np.flatnonzero(groups[data.test.targets] >= 0)
    classes, train_groups = numbers[data.train.targets[train]], groups[data.train.targets[train]]
    used = tuple(name for name, number in zip(data.classes, numbers, strict=True) if number >= 0)
    return AssignedExamples(
        owners=_owners(assignment, train_groups, seed),
        train_rows=train,
        train_targets=_flip(classes, assignment.flipped, len(used), _generator(seed, 2)),
        train_groups=train_groups,
        held_out_rows=held_out,
        held_out_targets=numbers[data.test.targets[held_out]],
        held_out_groups=groups[data.test.targets[held_out]],
        class_names=used,
        group_names=tuple(group.name for group in assignment.groups),
        group_epsilons=np.array([group.epsilon for group in assignment.groups]),
    )


def _generator(seed: int, purpose: int) -> np.random.Generator:
    """One generator for each random part, so that none depends on how many numbers another one took."""
    return np.random.default_rng([seed, purpose])


def _class_numbers(assignment: Assignment, data: DataSet) -> IntArray:
    """The new number of each class of ``data``, -1 for those that are not assigned."""
    if data.name not in assignment.data_sets:
        allowed = " or ".join(repr(name) for name in assignment.data_sets)
        raise InvalidArgumentError(f"assignment {assignment.name!r} is for {allowed}, not for {data.name!r}")
    wanted = set(assignment.classes)
    used = np.array([name in wanted for name in data.classes])
    for part, targets in (("training", data.train.targets), ("test", data.test.targets)):
        counts = np.bincount(targets, minlength=len(data.classes))
        present = {name for name, count in zip(data.classes, counts, strict=True) if count}
        _refuse_absent(assignment, data, part, [name for name in assignment.classes if name not in present])
    return np.where(used, np.cumsum(used) - 1, -1)


def _refuse_absent(assignment: Assignment, data: DataSet, part: str, absent: Sequence[str]) -> None:
    if absent:
        shown = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
        raise InvalidArgumentError(
            f"assignment {assignment.name!r} needs classes that the {part} examples of {data.name!r} lack: {shown}; "
            "is this a part of the data set?"
        )


def _group_of_class(
    assignment: Assignment, numbers: IntArray, data: DataSet, generator: np.random.Generator
) -> IntArray:
    """The group of each class of ``data``, -1 for those that are not assigned."""
    classes = list(assignment.classes)
    if assignment.random_classes:
        classes = generator.permutation(classes).tolist()
    rows = np.repeat(np.arange(len(assignment.groups)), [len(group.classes) for group in assignment.groups])
    row_of = dict(zip(classes, rows.tolist(), strict=True))
    return np.array([row_of[name] if number >= 0 else -1 for name, number in zip(data.classes, numbers, strict=True)])


def _draw_per_class(rows: IntArray, targets: IntArray, count: int, generator: np.random.Generator) -> IntArray:
    by_class = [rows[targets[rows] == label] for label in np.unique(targets[rows])]
    count = min(count, *(len(members) for members in by_class))
    return np.sort(np.concatenate([generator.permutation(members)[:count] for members in by_class]))


def _flip(classes: IntArray, share: float, count: int, generator: np.random.Generator) -> IntArray:
    """A ``share`` of the labels replaced by others, each of them equally likely."""
    flipped = generator.permutation(len(classes))[: round(share * len(classes))]
    targets = classes.copy()
    targets[flipped] = (targets[flipped] + generator.integers(1, count, size=len(flipped))) % count
    return targets


def _owners(assignment: Assignment, groups: IntArray, seed: int) -> Owners:
    epsilons = np.array([group.epsilon for group in assignment.groups])
    if assignment.spread is not None:
        return Owners.one_each(
            _draw_budgets(assignment.spread, epsilons[groups], _generator(seed, 3)), assignment.delta
        )
    rows = _overlap(groups, assignment.overlap, len(assignment.groups), _generator(seed, 4))
    budgets = {group.name: Budget(epsilon=group.epsilon, delta=assignment.delta) for group in assignment.groups}
    return Owners.from_labels(np.array(list(budgets))[rows], budgets)


def _draw_budgets(spread: Spread, centres: FloatArray, generator: np.random.Generator) -> FloatArray:
    epsilons = np.zeros(len(centres))
    again = np.arange(len(centres))
    while len(again):
        if spread.distribution == "uniform":
            epsilons[again] = generator.uniform(centres[again] - spread.width, centres[again] + spread.width)
        else:
            epsilons[again] = generator.normal(centres[again], spread.width)
        again = again[~(epsilons[again] > max(spread.smallest, 0.0))]
    return epsilons


def _overlap(groups: IntArray, share: float, count: int, generator: np.random.Generator) -> IntArray:
    """The owner of each example if every group hands a ``share`` of its examples to the other owners.

    The i-th example that group g hands over goes to owner g + 1 + (i mod (count - 1)), counted round: equal shares
    for all others, and as many received as given where groups have one size.
    """
    owners = groups.copy()
    for group in range(count):
        members = generator.permutation(np.flatnonzero(groups == group))
        given = members[: round(share * len(members))]
        owners[given] = (group + 1 + np.arange(len(given)) % max(count - 1, 1)) % count
    return owners
