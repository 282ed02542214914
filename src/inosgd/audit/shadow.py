"""Shadow models: many trainings on random halves of the examples, and how confident each model is about each example.

Every example joins every shadow model by a fair coin of its own. Exact halves would make one example's presence depend
on the others': in against out would then be the *replacement* of an example, for which the accounted bound is about
twice as large. By independent coins it is the addition of one, exactly what is accounted for.

All shadow models start from the same initial weights. These do not depend on data, and an attacker may know them:
sharing them makes the attack stronger.

Perceptrons are trained many at a time by `inosgd.audit.batched`, whose step is compared to `train_step` draw by draw;
other models are trained by `train_step` itself, one at a time in a process with one thread.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.analysis.task import Task, example_losses
from inosgd.audit.batched import can_stack, train_stacked
from inosgd.audit.practice import Practice
from inosgd.averaging import RunningAverage
from inosgd.counting import Labels
from inosgd.modes import evaluating
from inosgd.randomness import SeededSource, uniforms
from inosgd.study.config import optimizer_for
from inosgd.study.study import Study, StudyData, only_examples, split_of
from inosgd.training import fit
from inosgd.units import Units

STACKED = 32
"""How many perceptrons are trained at once; more need memory that caches do not have."""


@dataclass(frozen=True, eq=False)
class ShadowTask:
    """Some shadow models of a study, by number."""

    study: Study
    practice: Practice
    seed: int
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """How messages refer to it."""
        return f"{self.study.name}: shadow model {self.numbers[0]}"


def membership(seed: int, number: int, examples: int) -> BoolArray:
    """Which examples, or units, shadow model ``number`` is trained on: a fair coin each."""
    included: BoolArray = uniforms(_source(seed, number).stream("membership"), examples) < 0.5
    return included


def train_shadows(task: ShadowTask) -> FloatArray:
    """Train the models of a task; the confidence of each (row) about each example, or unit, of the study (column).

    About a unit it is the mean over its examples. A unit joins a model whole, or not at all.
    """
    data = split_of(task.study, task.seed)
    initial, (inputs, targets) = task.study.model(data, task.seed), data.examples.all()
    members = [np.flatnonzero(membership(task.seed, number, len(data.owners))) for number in task.numbers]
    sources = [_source(task.seed, number) for number in task.numbers]
    if stackable(task.study, data, task.seed):
        rate = task.study.config.rate_in_batch_units(task.practice.terms)
        stack = train_stacked(initial, task.practice, data, members, sources, rate)
        return confidences(data.task, stack.outputs(inputs), targets)
    found = np.stack(
        [
            confidences(data.task, train_one(task, initial, data, chosen, source)[None], targets)[0]
            for chosen, source in zip(members, sources, strict=True)
        ]
    )
    return found if data.units is None else unit_means(found, data.units)


def unit_means(values: FloatArray, units: Units) -> FloatArray:
    """The mean of each unit's rows, for every row of ``values``."""
    sums = np.add.reduceat(values[:, units.rows], units.ends - units.counts, axis=1)
    means: FloatArray = sums / units.counts
    return means


def stackable(study: Study, data: StudyData, seed: int) -> bool:
    """Whether many models of the study can be trained at once: perceptrons by plain gradient descent."""
    config = study.config
    plain = config.optimizer == "sgd" and not config.momentum and not config.weight_decay
    plain = plain and not (config.count_classes and config.method.adjustment)
    plain = plain and config.averaging is None and data.task.kind == "classification"
    plain = plain and data.units is None and config.augmentation is None
    return plain and isinstance(data.examples.inputs, torch.Tensor) and can_stack(study.model(data, seed))


def train_one(
    task: ShadowTask, initial: nn.Module, data: StudyData, chosen: IntArray, source: SeededSource
) -> torch.Tensor:
    """One shadow model by the library's own step, of the ``chosen`` examples or units; its outputs for all examples."""
    model = copy.deepcopy(initial)
    config, part = task.study.config, only_examples(data, chosen)
    labels = None if task.practice.plan.count is None else Labels(data.task.names, part.class_numbers)
    optimizer = optimizer_for(config, model)
    assignment, losses = part.owners.assignment, data.task.losses
    trainer = task.practice.trainer(assignment, part.examples, losses, labels, units=part.units)
    trainer = dataclasses.replace(
        trainer, learning_rate_unit=config.learning_rate_unit, augmentation=config.augmentation
    )
    state = task.practice.start(trainer, model, optimizer, source, part.class_numbers)
    if config.averaging is not None:
        state.also = {"average": RunningAverage(config.averaging, trainer.plan.steps)}
    fit(trainer, state)
    with state.result() as result:
        return outputs_of(result, data.examples.inputs)


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Any, at_once: int = 1024) -> torch.Tensor:
    """The model's outputs in evaluation mode; modes are put back."""
    with evaluating(model):
        return torch.cat([model(inputs[start : start + at_once]) for start in range(0, len(inputs), at_once)])


def confidences(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> FloatArray:
    """How sure models are about examples, from outputs (models, examples, ...): logits of the true class, or -loss."""
    if task.kind == "classification":
        return logit_confidences(outputs, targets)
    return np.stack([-example_losses(task, each, targets).double().numpy() for each in outputs])


def logit_confidences(outputs: torch.Tensor, targets: torch.Tensor) -> FloatArray:
    """log(p / (1 - p)) for the probability p of the true class, from outputs (models, examples, classes).

    It is the true class's output less the log-sum-exp of the others: exact where p is within rounding of 0 or 1. Over
    trainings it is close to normal, which p and log p are not (Carlini et al. 2022).
    """
    outputs = outputs.double()
    true = targets.expand(outputs.shape[:2])[..., None]
    others = outputs.scatter(2, true, -torch.inf)
    confidences: FloatArray = (outputs.gather(2, true)[..., 0] - torch.logsumexp(others, dim=2)).numpy()
    return confidences


def tasks_for(
    study: Study, practice: Practice, seed: int, numbers: Sequence[int], *, stacked: bool
) -> list[ShadowTask]:
    """The models of ``numbers``, so many to a task as are trained at once."""
    size = STACKED if stacked else 1
    return [
        ShadowTask(study, practice, seed, tuple(numbers[start : start + size]))
        for start in range(0, len(numbers), size)
    ]


def _source(seed: int, number: int) -> SeededSource:
    return SeededSource(seed).stream(f"shadow/{number}")
