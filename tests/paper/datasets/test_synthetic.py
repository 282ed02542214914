from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import ASSIGNMENTS, CATALOGUE, load, model_inputs, synthetic
from inosgd.paper.datasets.names import SYMBOLS
from inosgd.paper.datasets.synthetic import SHAPES
from tests.data.writers import write_everything


def test_shapes_types_and_classes_are_those_of_the_files(tmp_path: Path) -> None:
    write_everything(tmp_path)
    assert list(SHAPES) == list(CATALOGUE)
    for assignment in ASSIGNMENTS.values():
        for name in assignment.data_sets:
            real, made = load(name, tmp_path), synthetic(assignment, name)
            assert made.classes == real.classes
            assert made.train.inputs.dtype == real.train.inputs.dtype
            if not name.endswith("embeddings"):
                assert made.input_shape == real.input_shape


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_inputs_are_as_models_take_them(name: str) -> None:
    data = synthetic(ASSIGNMENTS[name])
    inputs = model_inputs(data.train)
    low, high = (0, SYMBOLS - 1) if inputs.dtype == np.int64 else (-1, 1)
    assert low <= inputs.min() < inputs.max() <= high
    assert len(np.unique(data.train.targets)) == len(ASSIGNMENTS[name].classes)


def test_one_seed_gives_one_data_set() -> None:
    assert synthetic(ASSIGNMENTS["CA"]) == synthetic(ASSIGNMENTS["CA"])
    assert synthetic(ASSIGNMENTS["CA"]) != synthetic(ASSIGNMENTS["CA"], seed=1)


def test_an_assignment_needs_its_own_data() -> None:
    with pytest.raises(InvalidArgumentError, match="data_set='mnist': CF is for"):
        synthetic(ASSIGNMENTS["CF"], "mnist")
