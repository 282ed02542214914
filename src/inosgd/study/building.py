"""Building: from a study and its data to what `inosgd.training` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from inosgd.analysis.task import Task, classification
from inosgd.gradients import check_model, supervised
from inosgd.importance import BetaTail, Importance, StepTail
from inosgd.method import METHODS, Method
from inosgd.modes import evaluating
from inosgd.order import ORDERS
from inosgd.randomness import RandomSource, SecureSource, SeededSource
from inosgd.study.data import StudyData
from inosgd.study.models import BUILT_IN, build_model, model_problem
from inosgd.study.problems import StudyFileError
from inosgd.study.reading import StudyFile
from inosgd.study.schema import TailSection, TrainingSection

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}

losses = supervised(F.cross_entropy)
"""The loss of every study: cross-entropy."""


def study_task(study: StudyFile, data: StudyData) -> Task:
    """What the study's model is trained and judged for."""
    return classification(data.classes, balanced=study.schema.evaluation.balanced)


def study_method(training: TrainingSection) -> Method:
    """The method with what the study changes about it."""
    method = METHODS[training.method]
    return dataclasses.replace(
        method,
        variant=training.variant or method.variant,
        importance=method.importance if training.tail is None else _importance(training.tail),
        order=method.order if training.order is None else ORDERS[training.order],
    )


def study_model(study: StudyFile, data: StudyData, allowed_factory: str | None) -> nn.Module:
    """The study's model, initialised and checked for layers that would break the guarantee."""
    section = study.schema.model
    try:
        model = build_model(
            section.name,
            section.arguments,
            inputs=data.encoding.shape,
            symbols=data.encoding.symbols,
            classes=len(data.classes),
            seed=section.seed,
            allowed_factory=allowed_factory,
            folder=study.folder,
        )
        check_model(model)
        _check_outputs(model, data)
    except Exception as error:  # a factory is the user's own code and may raise anything
        raise _model_error(study, error) from error
    return model


def study_optimizer(training: TrainingSection, model: nn.Module) -> torch.optim.Optimizer:
    """The study's optimizer; what the study leaves out is torch's default."""
    options = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    given = {key: value for key, value in options.items() if value is not None}
    return OPTIMIZERS[training.optimizer](model.parameters(), lr=training.learning_rate, **given)


def study_source(seed: int | None) -> RandomSource:
    """A secure source, unless the run shall be repeatable."""
    return SecureSource() if seed is None else SeededSource(seed)


def _importance(tail: TailSection) -> Importance:
    shape = BetaTail(tail.a, tail.b)
    steps = StepTail() if tail.levels is None else StepTail(tuple(tail.levels))
    share = 0.5 if tail.share is None and tail.length is None else tail.share
    return Importance(shape if tail.shape == "beta" else steps, share, tail.length)


def _check_outputs(model: nn.Module, data: StudyData) -> None:
    """One forward pass: a model must give one score per class."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(model):
        outputs = model(pytree.tree_map(torch.zeros_like, data.examples.inputs[:1]))
    if tuple(outputs.shape) != (1, len(data.classes)):
        raise ValueError(
            f"for one example it gives scores of shape {tuple(outputs.shape)}, not (1, {len(data.classes)})"
        )


def _model_error(study: StudyFile, error: Exception) -> StudyFileError:
    section = study.schema.model
    built_in = section.name in BUILT_IN and section.arguments
    key, value = ("model.arguments", section.arguments) if built_in else ("model.name", section.name)
    return study.error(key, value, model_problem(error))
