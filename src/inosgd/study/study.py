"""What a study is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import train_test_split
from torch import nn

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.owners import Budget, Owners

PUBLIC_RANGES = "public ranges"
"""Scaling that costs no privacy: the ranges are known without the data."""


@dataclass(frozen=True)
class Settings:
    """The numbers of a study; the same for every method that it compares."""

    steps: int
    expected_batch_size: float
    clipping_threshold: float
    learning_rate: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        _validate.whole(1, steps=self.steps)
        _validate.finite_positive(
            expected_batch_size=self.expected_batch_size,
            clipping_threshold=self.clipping_threshold,
            learning_rate=self.learning_rate,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return dict(self.__dict__)


@dataclass(frozen=True, eq=False)
class Groups:
    """The kinds of data that a study tells apart, each with the budget of the owners who hold it.

    Usually a group is what one owner holds. Where every record has an owner of its own, or owners hold a little of
    everything, it is the kind of data that the budget was meant for.
    """

    names: tuple[str, ...]
    epsilons: FloatArray

    @classmethod
    def of_owners(cls, owners: Owners) -> Groups:
        """One group per owner."""
        return cls(owners.table.names, owners.table.epsilons)

    @property
    def most_private(self) -> str:
        """The group with the smallest budget."""
        return self.names[int(np.argmin(self.epsilons))]


@dataclass(frozen=True, eq=False)
class StudyData:
    """One split: training examples with owners, held-out examples with the group whose kind of data they are.

    ``train_groups`` and ``held_out_groups`` are rows into ``groups``.
    """

    owners: Owners
    inputs: torch.Tensor
    targets: torch.Tensor
    train_groups: IntArray
    held_out_inputs: torch.Tensor
    held_out_targets: torch.Tensor
    held_out_groups: IntArray
    groups: Groups
    scaling: str = PUBLIC_RANGES


def split_by_class(
    inputs: npt.NDArray[np.float32], targets: IntArray, groups: IntArray, budgets: dict[str, Budget], seed: int
) -> StudyData:
    """A fifth of each class held out; ``groups`` says which of the owners in ``budgets`` each example belongs to."""
    train, held_out = train_test_split(np.arange(len(targets)), test_size=0.2, stratify=targets, random_state=seed)
    owners = Owners.from_labels(np.array(list(budgets))[groups[train]], budgets)
    return StudyData(
        owners=owners,
        inputs=torch.from_numpy(inputs[train]),
        targets=torch.from_numpy(targets[train]),
        train_groups=groups[train],
        held_out_inputs=torch.from_numpy(inputs[held_out]),
        held_out_targets=torch.from_numpy(targets[held_out]),
        held_out_groups=groups[held_out],
        groups=Groups.of_owners(owners),
    )


def for_validation(data: StudyData, seed: int, share: float = 0.2) -> StudyData:
    """The same study without its held-out examples: a share of the training examples of each class stands in for them.

    Learning rates are chosen on this, so that the examples that a result is reported on have no say in it.
    """
    rows = np.arange(len(data.targets))
    strata = data.targets.numpy()
    rare = np.bincount(strata)[strata] < 2  # a class of one cannot be on both sides
    kept, validation = train_test_split(rows[~rare], test_size=share, stratify=strata[~rare], random_state=seed)
    return StudyData(
        owners=owners_of_rows(data.owners, kept),
        inputs=data.inputs[kept],
        targets=data.targets[kept],
        train_groups=data.train_groups[kept],
        held_out_inputs=data.inputs[validation],
        held_out_targets=data.targets[validation],
        held_out_groups=data.train_groups[validation],
        groups=data.groups,
        scaling=data.scaling,
    )


def owners_of_rows(owners: Owners, rows: IntArray) -> Owners:
    """The same owners with only some of their examples; those who are left with none stay in the table."""
    assignment = owners.assignment[rows]
    table = owners.table
    sizes = np.bincount(assignment, minlength=len(table))
    return Owners(type(table)(table.names, table.epsilons, table.deltas, sizes), assignment)


@dataclass(frozen=True)
class Study:
    """Data, owners, model and settings.

    Attributes:
        name: What the study is called.
        description: One sentence on who owns what.
        settings: Steps, batch, threshold, learning rate.
        split: From a seed to training and held-out examples.
        model: From a seed to a fresh model.
        variant: How its individual methods plan, unless something else is asked for.
        balanced: Whether overall accuracy is the mean recall of classes, because they differ much in size.
    """

    name: str
    description: str
    settings: Settings
    split: Callable[[int], StudyData]
    model: Callable[[int], nn.Module]
    variant: str = "sample"
    balanced: bool = False
