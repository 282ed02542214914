"""Built-in studies, by name: real data that come with scikit-learn, so that nothing has to be downloaded."""

from __future__ import annotations

import json
from types import ModuleType

from inosgd.method import IDP_SGD
from inosgd.plan_config import PlanConfig
from inosgd.study import breast_cancer, digits
from inosgd.study.config import TrainingConfig
from inosgd.study.study import Study


def _built_in(name: str, room: ModuleType, *, steps: int, expected_batch_size: float, learning_rate: float) -> Study:
    asked = PlanConfig(
        steps=steps, variant=IDP_SGD.variant, expected_batch_size=expected_batch_size, clipping_threshold=0.1
    )
    return Study(
        name=name,
        description=room.DESCRIPTION,
        origin=json.dumps({"kind": "built-in", "name": name}),
        config=TrainingConfig(IDP_SGD, asked, learning_rate, learning_rate_unit="noise"),
        model_name="perceptron",
        split=room.split,
        model=room.model,
    )


STUDIES = {
    "digits": _built_in("digits", digits, steps=200, expected_batch_size=128, learning_rate=0.02),
    "breast-cancer": _built_in("breast-cancer", breast_cancer, steps=100, expected_batch_size=64, learning_rate=0.05),
}
