"""Two studies of our own making, in which owners hold mixtures of classes: the rule of ``auto`` was not found on them.

Every class is dealt out to the owners in shares that are drawn from a symmetric Dirichlet distribution by a fixed seed.
Budgets rise evenly in their logarithms. A fifth of each class is held out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

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

CONCENTRATION = 0.5


def hospitals(count: int, strictest: float, most_liberal: float) -> dict[str, Budget]:
    """Owners with budgets that rise evenly in their logarithms."""
    epsilons = np.geomspace(strictest, most_liberal, count).tolist()
    return {f"hospital {row + 1}": Budget(epsilon=each, delta=1e-5) for row, each in enumerate(epsilons)}


def dealt_out(targets: IntArray, owners: int) -> IntArray:
    """The owner of each example: every class in shares of its own, the same for every split."""
    rng, found = np.random.default_rng(0), np.empty(len(targets), dtype=np.int64)
    for number in range(int(targets.max()) + 1):
        rows = np.flatnonzero(targets == number)
        found[rows] = rng.choice(owners, size=len(rows), p=rng.dirichlet(np.full(owners, CONCENTRATION)))
    return found


def digits_study() -> Study:
    """Handwritten digits of six owners, and a perceptron."""
    images, digits = load_digits(return_X_y=True)
    inputs, budgets = (images / 8.0 - 1.0).astype(np.float32), hospitals(6, 0.5, 8.0)
    owners, classes = dealt_out(digits, len(budgets)), [str(digit) for digit in range(10)]

    def split(seed: int) -> StudyData:
        return split_by_class(inputs, digits, owners, budgets, classes, seed)

    plan = PlanConfig(steps=200, variant="sample", expected_batch_size=128, clipping_threshold=0.1)
    return Study(
        name="digits-hospitals",
        description="handwritten digits, every class dealt out to six owners with epsilon 0.5 to 8",
        origin=json.dumps({"kind": "own", "name": "digits-hospitals"}),
        config=TrainingConfig(IDP_SGD, plan, 0.02, learning_rate_unit="noise"),
        model_name="perceptron",
        split=split,
        model=lambda _, seed: perceptron(64, 32, 10, seed=seed),
    )


def x_ray_study(folder: Path) -> Study:
    """Embeddings of chest X-rays of five owners, and two layers; classes differ in size, so accuracy is balanced."""
    budgets = hospitals(5, 0.3, 5.0)

    @cache
    def loaded() -> tuple[np.ndarray, IntArray, IntArray]:
        data = obtain("chest-xray-embeddings", folder)
        targets = np.append(data.train.targets, data.test.targets)
        inputs = np.concatenate([model_inputs(data.train), model_inputs(data.test)])
        return inputs, targets, dealt_out(targets, len(budgets))

    def split(seed: int) -> StudyData:
        classes = ("normal", "bacterial pneumonia", "viral pneumonia")
        return split_by_class(*loaded(), budgets, classes, seed, balanced=True)

    def model(data: StudyData, seed: int) -> nn.Module:
        return MODELS["EN"](tuple(data.examples.inputs.shape[1:]), data.task.outputs, seed=seed)

    plan = PlanConfig(steps=100, variant="scale", expected_batch_size=512, clipping_threshold=0.2)
    return Study(
        name="x-ray-hospitals",
        description="chest X-rays, every class dealt out to five owners with epsilon 0.3 to 5",
        origin=json.dumps({"kind": "own", "name": "x-ray-hospitals", "data": str(folder)}),
        config=TrainingConfig(replace(IDP_SGD, variant="scale"), plan, 0.02, learning_rate_unit="noise"),
        model_name="two layers on embeddings",
        split=split,
        model=model,
    )
