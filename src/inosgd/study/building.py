"""Building: from a study, its data and a plan to what a training starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from inosgd.averaging import RunningAverage
from inosgd.distributed import ALONE, Peers
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Owners, OwnerTable
from inosgd.plan import Plan
from inosgd.randomness import RandomSource, SecureSource, SeededSource
from inosgd.study.config import TrainingConfig, optimizer_for, schedule_for
from inosgd.study.shares import labels_for
from inosgd.study.study import Study, StudyData
from inosgd.training import Trainer


@dataclass(frozen=True, eq=False)
class Built:
    """What a training starts from, apart from randomness and a ledger."""

    trainer: Trainer
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: RunningAverage | None = None
    schedule: LambdaLR | None = None

    @property
    def also(self) -> dict[str, Any]:
        """What changes with the steps beside model and optimizer."""
        known = {"average": self.average, "schedule": self.schedule}
        return {name: each for name, each in known.items() if each is not None}


def build(
    study: Study,
    data: StudyData,
    plan: Plan,
    config: TrainingConfig | None = None,
    *,
    seed: int = 0,
    peers: Peers = ALONE,
) -> Built:
    """Trainer, model, optimizer and average of a study; ``seed`` is that of the model's initial weights.

    Guarantee:
        Each unit is charged to its own owner, at no more than that owner allows: a plan for other owners, or for
        larger budgets than those of ``data``, is refused.

    Args:
        study: Where model and, if ``config`` is not given, configuration come from.
        data: What is trained on.
        plan: For the owners of ``data``, perhaps with smaller budgets.
        config: Method and optimizer, if they are not the study's.
        seed: 0 for the study's own initial weights.
        peers: The processes that share the work.
    """
    config = config or study.config
    _check_owners(plan.table, data.owners.table)
    owners = Owners(plan.table, data.owners.assignment)
    model = study.model(data, seed)
    trainer = Trainer(
        plan,
        owners,
        data.examples,
        data.task.losses,
        config.method,
        peers=peers,
        shares=data.shares,
        labels=labels_for(plan, data),
        learning_rate_unit=config.learning_rate_unit,
        units=data.units,
        augmentation=config.augmentation,
    )
    average = None if config.averaging is None else RunningAverage(config.averaging, plan.steps)
    optimizer = optimizer_for(config, model)
    return Built(trainer, model, optimizer, average, schedule_for(config, optimizer, plan.steps))


def _check_owners(planned: OwnerTable, allowed: OwnerTable) -> None:
    same = planned.names == allowed.names
    if not (same and (planned.epsilons <= allowed.epsilons).all() and (planned.deltas <= allowed.deltas).all()):
        raise InvalidArgumentError(
            "plan: it was made for other owners, or for larger budgets than theirs; plan again for data.owners.table"
        )


def source_for(seed: int | None) -> RandomSource:
    """A secure source, unless a training shall be repeatable."""
    return SecureSource() if seed is None else SeededSource(seed)
