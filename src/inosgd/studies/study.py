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
from inosgd._arrays import IntArray
from inosgd.owners import Budget, Owners


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
class StudyData:
    """One split: training examples with owners, held-out examples with the owner whose group they resemble."""

    owners: Owners
    inputs: torch.Tensor
    targets: torch.Tensor
    held_out_inputs: torch.Tensor
    held_out_targets: torch.Tensor
    held_out_groups: IntArray


def split_by_class(
    inputs: npt.NDArray[np.float32], targets: IntArray, groups: IntArray, budgets: dict[str, Budget], seed: int
) -> StudyData:
    """A fifth of each class held out; ``groups`` says which of the owners in ``budgets`` each example belongs to."""
    train, held_out = train_test_split(np.arange(len(targets)), test_size=0.2, stratify=targets, random_state=seed)
    names = np.array(list(budgets))
    return StudyData(
        owners=Owners.from_labels(names[groups[train]], budgets),
        inputs=torch.from_numpy(inputs[train]),
        targets=torch.from_numpy(targets[train]),
        held_out_inputs=torch.from_numpy(inputs[held_out]),
        held_out_targets=torch.from_numpy(targets[held_out]),
        held_out_groups=groups[held_out],
    )


@dataclass(frozen=True)
class Study:
    """Data, owners, model and settings.

    Attributes:
        name: What the study is called.
        description: One sentence on who owns what.
        budgets: The budget of each owner.
        settings: Steps, batch, threshold, learning rate.
        split: From a seed to training and held-out examples.
        model: From a seed to a fresh model.
    """

    name: str
    description: str
    budgets: dict[str, Budget]
    settings: Settings
    split: Callable[[int], StudyData]
    model: Callable[[int], nn.Module]
