from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import DataSet, LabelledExamples, model_inputs


def examples(count: int = 4, width: int = 3) -> LabelledExamples:
    return LabelledExamples(np.zeros((count, width), dtype=np.float32), np.arange(count) % 2)


@given(hnp.arrays(np.uint8, (3, 1, 4, 4)))
def test_pixels_are_scaled_to_the_public_range(pixels: np.ndarray) -> None:
    inputs = model_inputs(LabelledExamples(pixels, np.zeros(3, dtype=np.int64)))
    assert inputs.dtype == np.float32
    assert (np.abs(inputs) <= 1).all()
    np.testing.assert_allclose((inputs.astype(float) + 1) * 127.5, pixels, atol=1e-4)


@given(st.lists(st.integers(0, 3), max_size=6))
def test_scaling_looks_at_one_example_at_a_time(rows: list[int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 2, 2)).astype(np.uint8)
    all_of_them = LabelledExamples(pixels, np.zeros(4, dtype=np.int64))
    assert np.array_equal(model_inputs(all_of_them, rows), model_inputs(all_of_them)[rows])


def test_inputs_are_read_only_and_model_inputs_a_copy() -> None:
    value = examples()
    with pytest.raises(ValueError, match="read-only"):
        value.inputs[0] = 1
    taken = model_inputs(value)
    taken[0] = 1
    assert value.inputs[0, 0] == 0


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((2, 3)), [0, 1], "inputs.dtype='float64'"),
        (np.zeros((2, 3), dtype=np.float32), [0], "len(inputs)=2, len(targets)=1"),
        (np.zeros((2, 3), dtype=np.float32), [[0], [1]], "targets.shape"),
    ],
)
def test_unfit_examples_are_refused(inputs: np.ndarray, targets: list, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        LabelledExamples(inputs, np.array(targets))
    assert message in str(caught.value)


def test_parts_of_a_data_set_agree() -> None:
    with pytest.raises(InvalidArgumentError, match="inputs of one shape"):
        DataSet("x", examples(width=3), examples(width=4), ("a", "b"))
    with pytest.raises(InvalidArgumentError, match="test has targets from 0 to 1"):
        DataSet("x", LabelledExamples(np.zeros((1, 3), dtype=np.float32), np.array([0])), examples(), ("a",))
