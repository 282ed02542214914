"""Importance weights by owner along the trainings of a study, on held-out examples.

The weights of a batch say how far its owners are learnt, but they are functions of training data that no budget pays
for. Held-out examples stand in for them. Each held-out example of a group stands for its share of what the group
brings into an expected batch, q |D| C; the stand-ins are ordered as the method orders, and weighted by its tail. That
is the weight of an example if a batch is what it is on average; batches of a hundred examples are close to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inosgd._arrays import FloatArray
from inosgd.analysis.task import example_losses
from inosgd.compare.entrant import Entrant
from inosgd.compare.results import group_means
from inosgd.compare.training import entered_data, evaluation_interval, train_once
from inosgd.importance import importance_weights
from inosgd.modes import evaluating
from inosgd.order import Candidates
from inosgd.randomness import SeededSource
from inosgd.study.study import Study, StudyData
from inosgd.training import Callback, Trainer, TrainingState, every


def weights_along(study: Study, entrant: Entrant, seed: int) -> dict[str, Any]:
    """The mean weight of every group's examples over one training; 1 throughout for a method without a tail."""
    data = entered_data(study, entrant, seed)
    points: list[tuple[int, dict[str, float]]] = []
    train_once(study, data, entrant, seed, watch=lambda trainer: _weights_along(trainer, data, points))
    names = [name for name in data.groups.names if name in points[0][1]]
    return {
        "steps": [step for step, _ in points],
        "owners": {name: [found[name] for _, found in points] for name in names},
        "measured_on": "held-out examples",
    }


def _weights_along(trainer: Trainer, data: StudyData, points: list[tuple[int, dict[str, float]]]) -> Callback:
    def measure(state: TrainingState) -> None:
        points.append((state.step, held_out_weights(trainer, data, _losses(state.model, data))))

    return every(evaluation_interval(trainer.plan.steps), measure)


def held_out_weights(trainer: Trainer, data: StudyData, losses: FloatArray) -> dict[str, float]:
    """The mean weight of the held-out examples of each group, if these are their losses."""
    groups = data.judged_by.groups
    counts = np.bincount(groups, minlength=len(data.groups.names))
    amounts = _amounts(trainer, data)[groups] / counts[groups]
    ranks = np.argsort(np.argsort(data.groups.epsilons, kind="stable"), kind="stable")
    candidates = Candidates(np.arange(len(groups)), ranks[groups], losses, np.zeros(len(groups)))
    ranking = trainer.method.order.ranking(candidates, SeededSource(0))
    weights = importance_weights(trainer.method.tail(float(amounts.sum())), amounts, ranking)
    return {name: float(weights[groups == row].mean()) for row, name in enumerate(data.groups.names) if counts[row] > 0}


def _amounts(trainer: Trainer, data: StudyData) -> FloatArray:
    """How much threshold each group brings into an expected batch: q |D| C."""
    terms = trainer.plan.at(0)
    sizes = np.bincount(data.train_groups, minlength=len(data.groups.names))
    brought = group_means(terms.sampling_rates * terms.clipping_thresholds, data)
    return np.array([brought.get(name, 0.0) for name in data.groups.names]) * sizes


@torch.no_grad()
def _losses(model: torch.nn.Module, data: StudyData) -> FloatArray:
    held_out = data.judged_by
    with evaluating(model):
        losses = example_losses(data.task, model(held_out.inputs[:]), held_out.targets)
    values: FloatArray = losses.double().numpy()
    return values
