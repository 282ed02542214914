"""The registry: the paper's settings, [data]-[model], each in two scales.

``paper`` is for a large machine and whole data sets; ``laptop`` finishes on two CPU cores. The paper names data,
owners, budgets, models and variants. Of the numbers below it states only those in ``stated``; the others are ours.

Thresholds are small enough that nearly every gradient is clipped, so a learning rate acts on directions alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from inosgd import _validate
from inosgd.analysis.task import classification
from inosgd.method import IDP_SGD
from inosgd.models import MODELS
from inosgd.paper.datasets import ASSIGNMENTS, Assignment, DataSet, assign, model_inputs
from inosgd.paper.datasets.download import obtain
from inosgd.plan_config import PlanConfig
from inosgd.study.config import TrainingConfig
from inosgd.study.study import Groups, HeldOutExamples, LabelledExamples, Study, StudyData, shares_by_assignment

SCALES = ("laptop", "paper")

Loader = Callable[[], DataSet]

MODEL_NAMES = {
    "MLP": "perceptron",
    "PC": "the paper's convolutional network",
    "RN": "ResNet-18",
    "EN": "two layers on embeddings",
    "SC": "one layer on embeddings",
    "LS": "LSTM over characters",
}
"""The paper's abbreviations in words."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a study in one scale."""

    steps: int
    expected_batch_size: float
    clipping_threshold: float
    learning_rate: float

    def config(self, variant: str) -> TrainingConfig:
        """The configuration of the baseline, IDP-SGD with ``variant``."""
        plan = PlanConfig(
            steps=self.steps,
            variant=variant,
            expected_batch_size=self.expected_batch_size,
            clipping_threshold=self.clipping_threshold,
        )
        return TrainingConfig(replace(IDP_SGD, variant=variant), plan, self.learning_rate)


@dataclass(frozen=True)
class Setting:
    """One row: an assignment of data to owners, a model, and the numbers of both scales.

    Attributes:
        assignment: The paper's abbreviation of data and owners.
        model: The paper's abbreviation of the model; SC and EN are heads on embeddings, SC a linear one.
        data_set: Which data the assignment is carried out on.
        variant: How IDP-SGD and INO-SGD plan in the paper.
        laptop: Numbers for two cores; all ours.
        paper: Numbers for a large machine.
        stated: The names of those numbers in ``paper`` that the paper states.
        balanced: Whether overall accuracy is balanced over classes, as in the paper.
    """

    assignment: str
    model: str
    data_set: str
    variant: str
    laptop: Numbers
    paper: Numbers
    stated: frozenset[str] = field(default_factory=frozenset)
    balanced: bool = False


_CNN_LAPTOP = Numbers(steps=40, expected_batch_size=256, clipping_threshold=0.1, learning_rate=6.0)
_CIFAR_PAPER = Numbers(steps=2000, expected_batch_size=1024, clipping_threshold=1.0, learning_rate=1.0)
_FISH_PAPER = Numbers(steps=4000, expected_batch_size=256, clipping_threshold=1.0, learning_rate=0.5)
_BATCH = frozenset({"expected_batch_size"})
_BATCH_AND_THRESHOLD = frozenset({"expected_batch_size", "clipping_threshold"})


def _on_cifar_10(assignment: str, model: str = "PC") -> Setting:
    return Setting(assignment, model, "cifar-10", "scale", _CNN_LAPTOP, _CIFAR_PAPER, _BATCH)


def _on_fish_and_vehicles(assignment: str) -> Setting:
    """CF-PC: the paper gives the expected sum of thresholds, 256, and SAMPLE has one threshold for all."""
    return Setting(assignment, "PC", "cifar-100", "sample", _CNN_LAPTOP, _FISH_PAPER, _BATCH_AND_THRESHOLD)


SETTINGS: dict[str, Setting] = {
    "CA-MLP": Setting(
        "CA",
        "MLP",
        "cardiotocography",
        "sample",
        laptop=Numbers(steps=500, expected_batch_size=128, clipping_threshold=0.1, learning_rate=2.5),
        paper=Numbers(steps=500, expected_batch_size=128, clipping_threshold=0.1, learning_rate=2.5),
        balanced=True,
    ),
    "PN-EN": Setting(
        "PN",
        "EN",
        "chest-xray-embeddings",
        "scale",
        laptop=Numbers(steps=100, expected_batch_size=512, clipping_threshold=0.2, learning_rate=10.0),
        paper=Numbers(steps=1000, expected_batch_size=512, clipping_threshold=0.2, learning_rate=2.0),
        balanced=True,
    ),
    "MN-PC": Setting(
        "MN",
        "PC",
        "mnist",
        "sample",
        laptop=Numbers(steps=150, expected_batch_size=1800, clipping_threshold=0.1, learning_rate=12.0),
        paper=Numbers(steps=1000, expected_batch_size=512, clipping_threshold=1.0, learning_rate=0.5),
    ),
    "CM-PC": _on_cifar_10("CM"),
    "CM-RN": Setting(
        "CM",
        "RN",
        "cifar-10",
        "scale",
        laptop=Numbers(steps=20, expected_batch_size=64, clipping_threshold=0.1, learning_rate=3.0),
        paper=_CIFAR_PAPER,
        stated=_BATCH,
    ),
    "CM-SC": Setting(
        "CM",
        "SC",
        "cifar-10-embeddings",
        "scale",
        laptop=Numbers(steps=150, expected_batch_size=512, clipping_threshold=0.2, learning_rate=120.0),
        paper=_CIFAR_PAPER,
        stated=_BATCH,
    ),
    "CL-PC": _on_cifar_10("CL"),
    "CR-PC": _on_cifar_10("CR"),
    "CR-EN": Setting(
        "CR",
        "SC",
        "cifar-10-embeddings",
        "scale",
        laptop=Numbers(steps=150, expected_batch_size=512, clipping_threshold=0.2, learning_rate=120.0),
        paper=Numbers(steps=1000, expected_batch_size=1024, clipping_threshold=0.2, learning_rate=60.0),
    ),
    "CS-PC": _on_cifar_10("CS"),
    "COL-PC": _on_cifar_10("COL"),
    "COM-PC": _on_cifar_10("COM"),
    "CH-PC": Setting(
        "CH",
        "PC",
        "cifar-100",
        "sample",
        laptop=_CNN_LAPTOP,
        paper=Numbers(steps=5000, expected_batch_size=1024, clipping_threshold=1.0, learning_rate=1.0),
    ),
    "CF-PC": _on_fish_and_vehicles("CF"),
    "CF-EN": Setting(
        "CF",
        "SC",
        "fish-vehicles-embeddings",
        "sample",
        laptop=Numbers(steps=150, expected_batch_size=256, clipping_threshold=0.2, learning_rate=40.0),
        paper=Numbers(steps=1000, expected_batch_size=256, clipping_threshold=0.2, learning_rate=20.0),
    ),
    "CFS-PC": _on_fish_and_vehicles("CFS"),
    "CFN-PC": _on_fish_and_vehicles("CFN"),
    "SU-LS": Setting(
        "SU",
        "LS",
        "names",
        "sample",
        laptop=Numbers(steps=300, expected_batch_size=512, clipping_threshold=0.1, learning_rate=20.0),
        paper=Numbers(steps=1000, expected_batch_size=512, clipping_threshold=1.0, learning_rate=2.0),
        balanced=True,
    ),
}


def study_named(name: str, scale: str, folder: Path) -> Study:
    """The study of a row, on the data in ``folder``."""
    _validate.one_of(SETTINGS, name=name)
    return study_of(name, scale, partial(_loaded, SETTINGS[name].data_set, folder), str(folder))


def study_of(name: str, scale: str, loader: Loader, folder: str = "") -> Study:
    """The study of a row, on the data that ``loader`` gives; call it with the same data every time."""
    _validate.one_of(SCALES, scale=scale)
    setting = SETTINGS[name]
    assignment = ASSIGNMENTS[setting.assignment]
    return Study(
        name=name,
        description=assignment.description,
        origin=json.dumps({"kind": "paper", "name": name, "scale": scale, "data": folder}),
        config=(setting.laptop if scale == "laptop" else setting.paper).config(setting.variant),
        model_name=MODEL_NAMES[setting.model],
        split=partial(_split, assignment, setting.balanced, loader),
        model=partial(_model, setting.model),
    )


def _split(assignment: Assignment, balanced: bool, loader: Loader, seed: int) -> StudyData:
    data = loader()
    assigned = assign(assignment, data, seed)
    examples, judged = (
        (torch.from_numpy(model_inputs(part, rows)), torch.from_numpy(targets.copy()))
        for part, rows, targets in (
            (data.train, assigned.train_rows, assigned.train_targets),
            (data.test, assigned.held_out_rows, assigned.held_out_targets),
        )
    )
    deltas = np.full(len(assigned.group_names), assignment.delta)
    task = classification([name.replace("_", " ") for name in assigned.class_names], balanced=balanced)
    return StudyData(
        owners=assigned.owners,
        examples=LabelledExamples(*examples),
        held_out=HeldOutExamples(*judged, assigned.held_out_groups),
        task=task,
        groups=Groups(assigned.group_names, assigned.group_epsilons, deltas),
        train_groups=assigned.train_groups,
        scaling=data.scaling,
        shares=shares_by_assignment(assigned.owners, assigned.train_targets, task),
    )


def _model(name: str, data: StudyData, seed: int) -> nn.Module:
    return MODELS[name](tuple(data.examples.inputs.shape[1:]), data.task.outputs, seed=seed)


@cache
def _loaded(name: str, folder: Path) -> DataSet:
    """Once per process, downloaded if it has to be: every seed of a study reads the same files."""
    return obtain(name, folder)
