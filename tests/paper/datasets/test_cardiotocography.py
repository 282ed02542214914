from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.cardiotocography import CLASSES, RANGES, load_cardiotocography, scale_measurements
from tests.data.writers import write_cardiotocography


def edited(folder: Path, old: str, new: str) -> None:
    path = folder / "cardiotocography" / "CTG.csv"
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    write_cardiotocography(tmp_path, per_class=11)
    data = load_cardiotocography(tmp_path)
    assert data.classes == CLASSES
    assert np.bincount(data.train.targets).tolist() == [8, 8, 8]
    assert np.bincount(data.test.targets).tolist() == [3, 3, 3]
    assert load_cardiotocography(tmp_path) == data


def test_the_middle_of_every_range_becomes_zero(tmp_path: Path) -> None:
    write_cardiotocography(tmp_path)
    np.testing.assert_allclose(load_cardiotocography(tmp_path).train.inputs, 0, atol=1e-6)


@given(hnp.arrays(np.float64, (2, 21), elements={"min_value": -1e9, "max_value": 1e9}))
def test_scaling_is_bounded_and_looks_at_one_example(values: np.ndarray) -> None:
    scaled = scale_measurements(values)
    assert (np.abs(scaled) <= 1).all()
    assert np.array_equal(scaled[:1], scale_measurements(values[:1]))


def test_ranges_end_at_one() -> None:
    low, high = np.array(list(RANGES.values())).T
    np.testing.assert_array_equal(scale_measurements(np.stack([low, high])), np.stack([-np.ones(21), np.ones(21)]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ASTV", "STV", "no column 'ASTV'"),
        ("9,1", "9,4", "line 2: NSP=4"),
        ("140.0,", "many,", "line 2: LB='many' is not a number"),
        ("140.0,", "nan,", "line 2: LB='nan' is not a number"),
        (",9,1", "", "line 2: NSP=None is not a number"),
    ],
)
def test_wrong_cells_are_refused_by_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_cardiotocography(tmp_path)
    edited(tmp_path, old, new)
    with pytest.raises(InvalidArgumentError) as caught:
        load_cardiotocography(tmp_path)
    assert message in str(caught.value)
    assert "CTG.csv" in str(caught.value)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    write_cardiotocography(tmp_path, per_class=0)
    with pytest.raises(InvalidArgumentError, match="no recording"):
        load_cardiotocography(tmp_path)
