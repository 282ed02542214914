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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.audit.batched import can_stack, train_stacked
from inosgd.audit.practice import Practice
from inosgd.gradients import supervised
from inosgd.modes import evaluating
from inosgd.randomness import SeededSource, uniforms
from inosgd.study.study import Study, StudyData
from inosgd.training import fit

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
    """Which examples shadow model ``number`` is trained on: a fair coin each."""
    included: BoolArray = uniforms(_source(seed, number).stream("membership"), examples) < 0.5
    return included


def train_shadows(task: ShadowTask) -> FloatArray:
    """Train the models of a task; the confidence of each (row) about each example of the study (column)."""
    data, initial = _split(task.study, task.seed), task.study.model(task.seed)
    members = [np.flatnonzero(membership(task.seed, number, len(data.targets))) for number in task.numbers]
    sources = [_source(task.seed, number) for number in task.numbers]
    rate = task.study.settings.learning_rate
    if can_stack(initial):
        stack = train_stacked(initial, task.practice, data, members, sources, rate)
        return logit_confidences(stack.outputs(data.inputs), data.targets)
    return np.stack(
        [
            logit_confidences(train_one(task, initial, data, rows, source)[None], data.targets)[0]
            for rows, source in zip(members, sources, strict=True)
        ]
    )


def train_one(
    task: ShadowTask, initial: nn.Module, data: StudyData, rows: IntArray, source: SeededSource
) -> torch.Tensor:
    """One shadow model by the library's own step; its outputs for all examples."""
    model = copy.deepcopy(initial)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.study.settings.learning_rate)
    examples = (data.inputs[rows], data.targets[rows])
    trainer = task.practice.trainer(data.owners.assignment[rows], examples, supervised(F.cross_entropy))
    state = task.practice.start(trainer, model, optimizer, source, data.targets.numpy()[rows])
    fit(trainer, state)
    return outputs_of(model, data.inputs)


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: torch.Tensor, at_once: int = 1024) -> torch.Tensor:
    """The model's outputs in evaluation mode; modes are put back."""
    with evaluating(model):
        return torch.cat([model(part) for part in torch.split(inputs, at_once)])


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


@lru_cache(maxsize=1)
def _split(study: Study, seed: int) -> StudyData:
    """Once per process: all shadow models of an audit share the examples."""
    return study.split(seed)
