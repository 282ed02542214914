"""Study: data with owners, a model, and how it is trained.

Study files (`inosgd.study.from_file`), the built-in studies (`inosgd.study.built_in`) and the paper's
(`inosgd.paper.registry`) are ways to make one. Training, comparing, tuning and auditing take any of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from inosgd._arrays import FloatArray, IntArray, RowArray
from inosgd.analysis.task import Task, classification
from inosgd.class_shares import ClassShares
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.randomness import WordArray
from inosgd.study.config import TrainingConfig
from inosgd.study.encoding import Encoding
from inosgd.study.reading import StudyFile
from inosgd.study.schema import EvaluationSection
from inosgd.tabled import Tabled, TextTable
from inosgd.units import Units

PUBLIC_RANGES = "public ranges"
"""Scaling that costs no privacy: the ranges are known without the data."""
FITTED_SCALING = "fitted to the training data, not accounted for"


@dataclass(frozen=True, eq=False, repr=False)
class LabelledExamples:
    """Inputs and targets, as an example store. Sensitive.

    ``inputs`` is a tensor, pixels that are scaled when taken, or on disk; ``targets`` are as `inosgd.analysis.task`
    has them, class numbers in whole numbers of any width.
    """

    inputs: Any
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All examples, in memory."""
        return self.take(np.arange(len(self)))

    def take(self, indices: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch at ``indices``."""
        rows = torch.from_numpy(indices)
        return self.inputs[rows], usable(self.targets[rows])

    def only(self, rows: IntArray) -> LabelledExamples:
        """Some of the examples, in the form that they have."""
        chosen = torch.from_numpy(rows)
        return LabelledExamples(only_rows(self.inputs, chosen), self.targets[chosen])

    def followed_by(self, other: LabelledExamples) -> LabelledExamples:
        """These examples, then those of ``other``."""
        return LabelledExamples(_joined(self.inputs, other.inputs), torch.cat([self.targets, other.targets]))


@dataclass(frozen=True, eq=False, repr=False)
class HeldOutExamples:
    """What a model is judged by; ``groups`` are rows into `StudyData.groups`, -1 for none of them."""

    inputs: Any
    targets: torch.Tensor
    groups: IntArray

    def __len__(self) -> int:
        return len(self.targets)

    def followed_by(self, other: HeldOutExamples) -> HeldOutExamples:
        """These examples, then those of ``other``, whose groups are rows of the same table."""
        return HeldOutExamples(
            _joined(self.inputs, other.inputs),
            torch.cat([self.targets, other.targets]),
            np.append(self.groups, other.groups),
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """The kinds of data that a study tells apart, each with the budget of the owners who hold it.

    Usually a group is what one owner holds. Where every example has an owner of its own, or owners hold a little of
    everything, it is the kind of data that the budget was meant for.
    """

    names: tuple[str, ...]
    epsilons: FloatArray
    deltas: FloatArray

    @classmethod
    def of_owners(cls, table: OwnerTable) -> Groups:
        """One group per owner."""
        return cls(table.names, table.epsilons, table.deltas)

    @property
    def most_private(self) -> str:
        """The group with the smallest budget."""
        return self.names[int(np.argmin(self.epsilons))]


@dataclass(frozen=True, eq=False, repr=False)
class StudyData(Tabled):
    """One split of a study. Sensitive, but for groups, task, encoding and the table of owners.

    Attributes:
        owners: Whose each unit of the training examples is: each of them, unless there are ``units``.
        examples: The training examples.
        held_out: The held-out examples; None if there are none.
        task: What a model is trained and judged for.
        groups: The kinds of data that are told apart.
        train_groups: The row in ``groups`` of each unit of the training examples.
        encoding: How raw data became tensors; None if that is not kept.
        scaling: How features and targets came to be of order one, in words.
        shares: Which share of each owner's examples is of each class, where that was declared.
        units: Which training examples are protected together; None for each by itself.
        row_owners: With units, the row in the table of owners of the owner of each training example.
        held_out_units: With units, the keys of those that are held out.
    """

    owners: Owners
    examples: LabelledExamples
    held_out: HeldOutExamples | None
    task: Task
    groups: Groups
    train_groups: RowArray
    encoding: Encoding | None = None
    scaling: str = PUBLIC_RANGES
    shares: ClassShares | None = None
    units: Units | None = None
    row_owners: RowArray | None = None
    held_out_units: WordArray | None = None

    @property
    def example_groups(self) -> RowArray:
        """The row in ``groups`` of each training example."""
        return self.train_groups if self.units is None else self.train_groups[self.units.of_row]

    def rows_of(self, units: IntArray) -> IntArray:
        """The training examples of some units, in their order."""
        return units if self.units is None else np.sort(self.units.rows_of(units))

    def tabled(self) -> TextTable:
        """The owners, and how many examples there are to train on and to judge by."""
        held_out = 0 if self.held_out is None else len(self.held_out)
        title = f"{len(self.examples):,} training examples, {held_out:,} held out"
        return dataclasses.replace(self.owners.tabled(), title=title)

    @property
    def by_owner(self) -> bool:
        """Whether groups are owners."""
        return self.groups.names == self.owners.table.names

    @property
    def fitted(self) -> bool:
        """Whether a range or categories were read off the training data, which no budget accounts for."""
        return self.scaling == FITTED_SCALING

    @property
    def class_numbers(self) -> IntArray:
        """The class of each training example; 0 for all where there are no classes."""
        if self.task.kind == "classification":
            return self.examples.targets.numpy().astype(np.int64)
        return np.zeros(len(self.examples), dtype=np.int64)

    @property
    def judged_by(self) -> HeldOutExamples:
        """The held-out examples.

        Raises:
            InvalidArgumentError: If there are none.
        """
        if self.held_out is None:
            raise InvalidArgumentError("data.held_out: no example is held out to judge models by; set a fraction")
        return self.held_out


@dataclass(frozen=True, eq=False)
class Study:
    """Data, owners, a model and a configuration. Two studies are equal if they were made from the same.

    Attributes:
        name: What the study is called.
        description: One sentence on who owns what.
        origin: What it was made from, as JSON text: it is found again from this.
        config: How it is trained unless something else is asked for.
        model_name: What its model is called.
        split: From a seed to training and held-out examples; 0 for the study's own split.
        model: From data and a seed to a fresh model; 0 for the study's own initial weights.
        evaluation: What is reported about held-out examples.
        file: The study file that it was made from, if it was.
    """

    name: str
    description: str
    origin: str
    config: TrainingConfig
    model_name: str
    split: Callable[[int], StudyData]
    model: Callable[[StudyData, int], nn.Module]
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    file: StudyFile | None = None

    def __eq__(self, other: object) -> bool:
        return self.origin == other.origin if isinstance(other, Study) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.origin)

    def changed(self, changes: Mapping[str, Any]) -> Study:
        """The study with other values of its training section; its origin tells them."""
        if not changes:
            return self
        origin = json.loads(self.origin)
        plain = {key: "inf" if value == math.inf else value for key, value in changes.items()}
        told = json.dumps({**origin, "changes": {**origin.get("changes", {}), **plain}})
        return replace(self, config=self.config.changed(changes), origin=told)


@lru_cache(maxsize=1)
def split_of(study: Study, seed: int) -> StudyData:
    """The split of a study, kept until another is asked for: trainings that follow each other share it."""
    return study.split(seed)


def split_by_class(
    inputs: npt.NDArray[np.float32],
    targets: IntArray,
    groups: IntArray,
    budgets: dict[str, Budget],
    classes: Sequence[str],
    seed: int,
    encoding: Encoding | None = None,
    *,
    balanced: bool = False,
) -> StudyData:
    """A fifth of each class held out; ``groups`` says which of the owners in ``budgets`` each example belongs to."""
    train, held_out = _in_two(np.arange(len(targets)), 0.2, targets, seed)
    owners = Owners.from_labels(np.array(list(budgets))[groups[train]], budgets)
    task = classification(classes, balanced=balanced)
    judged = HeldOutExamples(torch.from_numpy(inputs[held_out]), torch.from_numpy(targets[held_out]), groups[held_out])
    return StudyData(
        owners=owners,
        examples=LabelledExamples(torch.from_numpy(inputs[train]), torch.from_numpy(targets[train])),
        held_out=judged,
        task=task,
        groups=Groups.of_owners(owners.table),
        train_groups=groups[train],
        shares=shares_by_assignment(owners, targets[train], task),
        encoding=encoding,
    )


def shares_by_assignment(owners: Owners, targets: RowArray, task: Task) -> ClassShares:
    """The shares of a study in which who holds which classes was decided in public, and not by the owners' data."""
    counts = np.zeros((len(owners.table), task.outputs))
    np.add.at(counts, (owners.assignment, targets.astype(np.int64)), 1.0)
    present = np.flatnonzero(counts.sum(axis=1) > 0).tolist()
    names = tuple(owners.table.names[row] for row in present)
    rows = counts[present] / counts[present].sum(axis=1, keepdims=True)
    return ClassShares(names, task.names, rows, ("declared",) * len(names))


def for_validation(data: StudyData, seed: int, share: float = 0.2) -> StudyData:
    """The same study without its held-out examples: a share of the training examples of each class stands in for them.

    Learning rates are chosen on this, so that the examples that a result is reported on have no say in it. With units,
    a share of the units stands in, each with all its examples.
    """
    rows, strata = np.arange(len(data.owners)), None
    if data.task.kind == "classification" and data.units is None:
        classes = data.examples.targets.numpy()
        rows = rows[np.bincount(classes)[classes] > 1]  # a class of one cannot be on both sides
        strata = classes[rows]
    kept, validation = _in_two(rows, share, strata, seed)
    judged = data.rows_of(validation)
    inputs, targets = data.examples.only(judged).inputs, data.examples.take(judged)[1]
    held_out = HeldOutExamples(inputs, targets, data.example_groups[judged].astype(np.int64))
    return replace(only_examples(data, kept), held_out=held_out)


def _in_two(rows: IntArray, share: float, strata: IntArray | None, seed: int) -> tuple[IntArray, IntArray]:
    """The rows without a share of them, and that share."""
    from sklearn.model_selection import train_test_split  # studies of one's own data need not wait for it

    first, second = train_test_split(rows, test_size=share, stratify=strata, random_state=seed)
    return first, second


def only_examples(data: StudyData, chosen: IntArray) -> StudyData:
    """The study with some of its units of training examples; owners who are left with none stay in the table."""
    assignment, rows = data.owners.assignment[chosen], data.rows_of(chosen)
    sizes = np.bincount(assignment, minlength=len(data.owners.table))
    return replace(
        data,
        owners=Owners(replace(data.owners.table, sizes=sizes), assignment),
        examples=data.examples.only(rows),
        train_groups=data.train_groups[chosen],
        units=None if data.units is None else data.units.only(chosen),
        row_owners=None if data.row_owners is None else data.row_owners[rows],
    )


def usable(targets: torch.Tensor) -> torch.Tensor:
    """Targets as losses take them: class numbers are kept in few bytes."""
    return targets if targets.is_floating_point() else targets.long()


def only_rows(inputs: Any, rows: torch.Tensor) -> Any:
    """Some of the inputs, in the form that they have."""
    return inputs[rows] if isinstance(inputs, torch.Tensor) else inputs.only(rows)


def _joined(first: Any, second: Any) -> Any:
    return torch.cat([first, second]) if isinstance(first, torch.Tensor) else first.followed_by(second)
