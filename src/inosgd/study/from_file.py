"""A study from a study file: its configuration, its data by seed, and its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from inosgd.adjustment import Adjustment
from inosgd.augmentation import Augmentation
from inosgd.averaging import Averaging
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import check_model
from inosgd.importance import BetaTail, Importance, StepTail
from inosgd.method import METHODS, Method
from inosgd.modes import evaluating
from inosgd.order import ORDERS
from inosgd.plan_config import Fairness, PlanConfig
from inosgd.study.config import TrainingConfig
from inosgd.study.data import encoding_of, load_data
from inosgd.study.models import BUILT_IN, build_model, model_problem
from inosgd.study.problems import StudyFileError
from inosgd.study.reading import StudyFile, parse_study
from inosgd.study.schema import AdjustmentSection, TailSection, TrainingSection
from inosgd.study.sources import Progress
from inosgd.study.study import Study, StudyData
from inosgd.study.table_problems import with_all_problems


def study_from(file: StudyFile, *, allowed_factory: str | None = None, progress: Progress | None = None) -> Study:
    """The study that ``file`` describes; its data are read when it is split."""
    origin = {"kind": "file", "text": file.text, "path": str(file.path), "folder": str(file.folder)}
    return Study(
        name=file.path.stem,
        description=f"the data of {file.path.name}",
        origin=json.dumps(origin),
        config=replace(config_of(file.schema.training), count_classes=file.schema.shares.count),
        model_name=file.schema.model.name,
        split=partial(_split, file, progress),
        model=partial(file_model, file, allowed_factory),
        evaluation=file.schema.evaluation,
        file=file,
    )


def file_of(origin: Mapping[str, Any], *, allowed_factory: str | None = None) -> StudyFile:
    """The study file that a study was made from."""
    path, folder = Path(origin["path"]), Path(origin["folder"])
    return parse_study(origin["text"], path, folder, allowed_factory=allowed_factory)


def config_of(training: TrainingSection) -> TrainingConfig:
    """The configuration that a training section describes.

    Without a number of steps or epochs the noise scale is where training ends, and not what the plan is asked for.
    """
    method, knobs = _method(training), training.fairness
    until_noise = training.steps is None and training.epochs is None
    plan = PlanConfig(
        steps=training.steps or 1,
        variant=method.variant,
        expected_batch_size=training.expected_batch_size,
        clipping_threshold=training.clipping_threshold,
        noise_scale=None if until_noise else training.noise_scale,
        accountant=training.accountant,
        fairness=Fairness(knobs.exponent, knobs.max_ratio, knobs.mix),
        profile_margin=training.profile_margin,
    )
    return TrainingConfig(
        method,
        plan,
        training.learning_rate,
        training.optimizer,
        training.momentum,
        training.weight_decay,
        until_noise=training.noise_scale if until_noise else None,
        epochs=training.epochs,
        schedule=training.schedule,
        warmup=training.warmup,
        seed=training.seed,
        learning_rate_unit=training.learning_rate_unit,
        averaging=_averaging(training),
        augmentation=None if training.augmentation is None else Augmentation(**training.augmentation.model_dump()),
    )


def file_model(file: StudyFile, allowed_factory: str | None, data: StudyData, seed: int) -> nn.Module:
    """The model that a study file names, initialised, and checked for layers that would break the guarantee."""
    section, encoding = file.schema.model, encoding_of(data)
    try:
        model = build_model(
            section.name,
            section.arguments,
            inputs=encoding.shape,
            symbols=encoding.symbols,
            outputs=data.task.outputs,
            seed=section.seed + seed,
            allowed_factory=allowed_factory,
            folder=file.folder,
        )
        check_model(model)
        _check_outputs(model, data)
    except Exception as error:  # a factory is the user's own code and may raise anything
        raise _model_error(file, error) from error
    return model


def _split(file: StudyFile, progress: Progress | None, seed: int) -> StudyData:
    try:
        return load_data(file, progress, seed=seed)
    except InvalidArgumentError as error:
        raise with_all_problems(file, error) from None


def _method(training: TrainingSection) -> Method:
    """The method with what the study changes about it."""
    method = METHODS[training.method]
    return replace(
        method,
        variant=training.variant or method.variant,
        importance=method.importance if training.tail is None else _importance(training.tail),
        order=method.order if training.order is None else ORDERS[training.order],
        adjustment=_adjustment(training.adjustment, method.adjustment),
    )


def _adjustment(section: AdjustmentSection | None, own: Adjustment | None) -> Adjustment | None:
    if section is None:
        return own
    return replace(own or Adjustment(), **section.model_dump(exclude_none=True))


def _averaging(training: TrainingSection) -> Averaging | None:
    if training.averaging == "none":
        return None
    return Averaging(training.averaging, training.averaging_decay, training.averaging_share)


def _importance(tail: TailSection) -> Importance:
    shape = BetaTail(tail.a, tail.b)
    steps = StepTail() if tail.levels is None else StepTail(tuple(tail.levels))
    share = 0.5 if tail.share is None and tail.length is None else tail.share
    return Importance(shape if tail.shape == "beta" else steps, share, tail.length)


def _check_outputs(model: nn.Module, data: StudyData) -> None:
    """One forward pass: a model must give one output per class, label or target."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(model):
        outputs = model(pytree.tree_map(torch.zeros_like, data.examples.inputs[:1]))
    if tuple(outputs.shape) != (1, data.task.outputs):
        raise ValueError(
            f"for one example it gives outputs of shape {tuple(outputs.shape)}, not (1, {data.task.outputs})"
        )


def _model_error(file: StudyFile, error: Exception) -> StudyFileError:
    section = file.schema.model
    built_in = section.name in BUILT_IN and section.arguments
    key, value = ("model.arguments", section.arguments) if built_in else ("model.name", section.name)
    return file.error(key, value, model_problem(error))
