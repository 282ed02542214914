"""The registry: the paper's settings, [data]-[model], each in two scales.

``paper`` is for a large machine and whole data sets; ``laptop`` finishes on two CPU cores. The paper names data,
owners, budgets, models and variants. Of the numbers below it states only those in ``stated``; the others are ours.

Thresholds are small enough that nearly every gradient is clipped, so a learning rate acts on directions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.models import MODELS
from inosgd.paper.datasets import ASSIGNMENTS, Assignment, DataSet, assign, model_inputs
from inosgd.paper.datasets.download import obtain
from inosgd.study.study import Groups, Settings, Study, StudyData

SCALES = ("laptop", "paper")

Loader = Callable[[], DataSet]


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
    laptop: Settings
    paper: Settings
    stated: frozenset[str] = field(default_factory=frozenset)
    balanced: bool = False


_CNN_LAPTOP = Settings(steps=40, expected_batch_size=256, clipping_threshold=0.1, learning_rate=6.0)
_CIFAR_PAPER = Settings(steps=2000, expected_batch_size=1024, clipping_threshold=1.0, learning_rate=1.0)
_FISH_PAPER = Settings(steps=4000, expected_batch_size=256, clipping_threshold=1.0, learning_rate=0.5)
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
        laptop=Settings(steps=500, expected_batch_size=128, clipping_threshold=0.1, learning_rate=2.5),
        paper=Settings(steps=500, expected_batch_size=128, clipping_threshold=0.1, learning_rate=2.5),
        balanced=True,
    ),
    "PN-EN": Setting(
        "PN",
        "EN",
        "chest-xray-embeddings",
        "scale",
        laptop=Settings(steps=100, expected_batch_size=512, clipping_threshold=0.2, learning_rate=10.0),
        paper=Settings(steps=1000, expected_batch_size=512, clipping_threshold=0.2, learning_rate=2.0),
        balanced=True,
    ),
    "MN-PC": Setting(
        "MN",
        "PC",
        "mnist",
        "sample",
        laptop=Settings(steps=150, expected_batch_size=1800, clipping_threshold=0.1, learning_rate=12.0),
        paper=Settings(steps=1000, expected_batch_size=512, clipping_threshold=1.0, learning_rate=0.5),
    ),
    "CM-PC": _on_cifar_10("CM"),
    "CM-RN": Setting(
        "CM",
        "RN",
        "cifar-10",
        "scale",
        laptop=Settings(steps=20, expected_batch_size=64, clipping_threshold=0.1, learning_rate=3.0),
        paper=_CIFAR_PAPER,
        stated=_BATCH,
    ),
    "CM-SC": Setting(
        "CM",
        "SC",
        "cifar-10-embeddings",
        "scale",
        laptop=Settings(steps=150, expected_batch_size=512, clipping_threshold=0.2, learning_rate=120.0),
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
        laptop=Settings(steps=150, expected_batch_size=512, clipping_threshold=0.2, learning_rate=120.0),
        paper=Settings(steps=1000, expected_batch_size=1024, clipping_threshold=0.2, learning_rate=60.0),
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
        paper=Settings(steps=5000, expected_batch_size=1024, clipping_threshold=1.0, learning_rate=1.0),
    ),
    "CF-PC": _on_fish_and_vehicles("CF"),
    "CF-EN": Setting(
        "CF",
        "SC",
        "fish-vehicles-embeddings",
        "sample",
        laptop=Settings(steps=150, expected_batch_size=256, clipping_threshold=0.2, learning_rate=40.0),
        paper=Settings(steps=1000, expected_batch_size=256, clipping_threshold=0.2, learning_rate=20.0),
    ),
    "CFS-PC": _on_fish_and_vehicles("CFS"),
    "CFN-PC": _on_fish_and_vehicles("CFN"),
    "SU-LS": Setting(
        "SU",
        "LS",
        "names",
        "sample",
        laptop=Settings(steps=300, expected_batch_size=512, clipping_threshold=0.1, learning_rate=20.0),
        paper=Settings(steps=1000, expected_batch_size=512, clipping_threshold=1.0, learning_rate=2.0),
        balanced=True,
    ),
}


def study_named(name: str, scale: str, folder: Path) -> Study:
    """The study of a row, on the data in ``folder``."""
    if name not in SETTINGS:
        raise InvalidArgumentError(f"name={name!r}: choose one of {', '.join(SETTINGS)}")
    return study_of(name, scale, partial(_loaded, SETTINGS[name].data_set, folder))


def study_of(name: str, scale: str, loader: Loader) -> Study:
    """The study of a row, on the data that ``loader`` gives; call it with the same data every time."""
    if scale not in SCALES:
        raise InvalidArgumentError(f"scale={scale!r}: choose one of {', '.join(SCALES)}")
    setting = SETTINGS[name]
    assignment = ASSIGNMENTS[setting.assignment]
    return Study(
        name=name,
        description=assignment.description,
        settings=setting.laptop if scale == "laptop" else setting.paper,
        split=partial(_split, assignment, loader),
        model=partial(_model, setting.model, assignment, loader),
        variant=setting.variant,
        balanced=setting.balanced,
    )


def _split(assignment: Assignment, loader: Loader, seed: int) -> StudyData:
    data = loader()
    assigned = assign(assignment, data, seed)
    return StudyData(
        owners=assigned.owners,
        inputs=torch.from_numpy(model_inputs(data.train, assigned.train_rows)),
        targets=torch.from_numpy(assigned.train_targets.copy()),
        train_groups=assigned.train_groups,
        held_out_inputs=torch.from_numpy(model_inputs(data.test, assigned.held_out_rows)),
        held_out_targets=torch.from_numpy(assigned.held_out_targets.copy()),
        held_out_groups=assigned.held_out_groups,
        groups=Groups(assigned.group_names, assigned.group_epsilons),
        scaling=data.scaling,
    )


def _model(name: str, assignment: Assignment, loader: Loader, seed: int) -> nn.Module:
    return MODELS[name](loader().input_shape, len(assignment.classes), seed=seed)


@cache
def _loaded(name: str, folder: Path) -> DataSet:
    """Once per process, downloaded if it has to be: every seed of a study reads the same files."""
    return obtain(name, folder)
