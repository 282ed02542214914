"""Studies so small that a test can train them."""

from __future__ import annotations

import json
from collections.abc import Callable

from inosgd import IDP_SGD, PlanConfig
from inosgd.models import perceptron
from inosgd.study.config import TrainingConfig
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study
from inosgd.study.study import Study, StudyData
from tests.study.writers import write_study


def perceptron_study(name: str, split: Callable[[int], StudyData], *widths: int, rate: float, **asked) -> Study:
    """A study of a perceptron on the data of ``split``; ``asked`` is what its plan is asked for."""
    return Study(
        name=name,
        description=name,
        origin=json.dumps({"kind": "a test", "name": name}),
        config=TrainingConfig(IDP_SGD, PlanConfig(variant="sample", **asked), rate),
        model_name="perceptron",
        split=split,
        model=lambda _, seed: perceptron(*widths, seed=seed),
    )


def written_study(folder, *changes, **options) -> Study:
    """The study of `tests.study.writers`, written into ``folder``."""
    return study_from(read_study(write_study(folder, *changes, **options)))
