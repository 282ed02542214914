"""Studies of our own making, in which owners hold mixtures of classes.

Every class is dealt out to the owners in shares that are drawn from a symmetric Dirichlet distribution by a fixed seed:
the smaller its concentration, the fewer owners hold most of a class. Budgets rise evenly in their logarithms. A fifth
of each class is held out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from inosgd._arrays import IntArray
from inosgd.method import IDP_SGD
from inosgd.models import MODELS, perceptron
from inosgd.owners import Budget
from inosgd.paper.datasets import model_inputs
from inosgd.paper.datasets.download import obtain
from inosgd.plan_config import PlanConfig
from inosgd.study.config import TrainingConfig
from inosgd.study.study import Study, StudyData, split_by_class


@dataclass(frozen=True)
class Mixture:
    """A study whose classes are dealt out.

    Attributes:
        content: What the examples are.
        data_set: Where they come from.
        model: The model's name in the paper, or ``perceptron``.
        owners: How many there are.
        epsilons: The strictest budget and the most liberal one.
        plan: What is asked of a plan; its variant is that of the paper's methods.
        concentration: Of the distribution of a class over the owners.
        balanced: Whether overall accuracy is balanced over classes.
    """

    content: str
    data_set: str
    model: str
    owners: int
    epsilons: tuple[float, float]
    plan: PlanConfig
    concentration: float = 0.5
    balanced: bool = False


MIXTURES = {
    "digits-hospitals": Mixture(
        "handwritten digits",
        "digits",
        "perceptron",
        6,
        (0.5, 8.0),
        PlanConfig(steps=200, variant="sample", expected_batch_size=128, clipping_threshold=0.1),
    ),
    "x-ray-hospitals": Mixture(
        "chest X-rays",
        "chest-xray-embeddings",
        "EN",
        5,
        (0.3, 5.0),
        PlanConfig(steps=100, variant="scale", expected_batch_size=512, clipping_threshold=0.2),
        balanced=True,
    ),
    "CIFAR-collectors": Mixture(
        "CIFAR-10",
        "cifar-10-embeddings",
        "SC",
        8,
        (0.3, 6.0),
        PlanConfig(steps=150, variant="scale", expected_batch_size=512, clipping_threshold=0.2),
        concentration=0.2,
    ),
    "cardiotocogram-clinics": Mixture(
        "cardiotocograms",
        "cardiotocography",
        "MLP",
        4,
        (1.0, 8.0),
        PlanConfig(steps=500, variant="sample", expected_batch_size=128, clipping_threshold=0.1),
        concentration=0.3,
        balanced=True,
    ),
}


def hospitals(count: int, strictest: float, most_liberal: float) -> dict[str, Budget]:
    """Owners with budgets that rise evenly in their logarithms."""
    epsilons = np.geomspace(strictest, most_liberal, count).tolist()
    return {f"hospital {row + 1}": Budget(epsilon=each, delta=1e-5) for row, each in enumerate(epsilons)}


def dealt_out(targets: IntArray, owners: int, concentration: float = 0.5) -> IntArray:
    """The owner of each example: every class in shares of its own, the same for every split."""
    rng, found = np.random.default_rng(0), np.empty(len(targets), dtype=np.int64)
    for number in range(int(targets.max()) + 1):
        rows = np.flatnonzero(targets == number)
        found[rows] = rng.choice(owners, size=len(rows), p=rng.dirichlet(np.full(owners, concentration)))
    return found


def mixture_study(name: str, folder: Path) -> Study:
    """A study of `MIXTURES`, on the data in ``folder``."""
    mixture = MIXTURES[name]
    budgets = hospitals(mixture.owners, *mixture.epsilons)

    def split(seed: int) -> StudyData:
        inputs, targets, classes = _loaded(mixture.data_set, folder)
        owners = dealt_out(targets, mixture.owners, mixture.concentration)
        return split_by_class(inputs, targets, owners, budgets, classes, seed, balanced=mixture.balanced)

    def model(data: StudyData, seed: int) -> nn.Module:
        shape = tuple(data.examples.inputs.shape[1:])
        if mixture.model == "perceptron":
            return perceptron(shape[0], 32, data.task.outputs, seed=seed)
        return MODELS[mixture.model](shape, data.task.outputs, seed=seed)

    dealt = "every class dealt out to {} owners with epsilon {:g} to {:g}".format(mixture.owners, *mixture.epsilons)
    return Study(
        name=name,
        description=f"{mixture.content}, {dealt}",
        origin=json.dumps({"kind": "own", "name": name, "data": str(folder)}),
        config=TrainingConfig(
            replace(IDP_SGD, variant=mixture.plan.variant), mixture.plan, 0.02, learning_rate_unit="noise"
        ),
        model_name=mixture.model,
        split=split,
        model=model,
    )


@cache  # of the module: a study goes to other processes, and what is cached inside it could not
def _loaded(name: str, folder: Path) -> tuple[np.ndarray[Any, Any], IntArray, Sequence[str]]:
    """Inputs, class numbers and classes."""
    if name == "digits":
        images, digits = load_digits(return_X_y=True)
        return (images / 8.0 - 1.0).astype(np.float32), digits, [str(digit) for digit in range(10)]
    data = obtain(name, folder)
    inputs = np.concatenate([model_inputs(data.train), model_inputs(data.test)])
    return inputs, np.append(data.train.targets, data.test.targets), data.classes
