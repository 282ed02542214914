"""Measures against scikit-learn, with ties, with one class only, and where they are not defined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics

from inosgd.analysis import measures

CLASSES = 4
FEW_VALUES = st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0, 3.0])  # so that ties are common


@st.composite
def scored(draw, columns: int | None = None):
    """Scores with ties and which examples are positive; sometimes none, sometimes all."""
    count = draw(st.integers(1, 25))
    shape = (count,) if columns is None else (count, columns)
    scores = draw(arrays.arrays(np.float64, shape, elements=FEW_VALUES))
    return scores, draw(arrays.arrays(np.bool_, shape))


@st.composite
def classified(draw):
    count = draw(st.integers(1, 25))
    outputs = draw(arrays.arrays(np.float64, (count, CLASSES), elements=FEW_VALUES))
    return outputs, draw(arrays.arrays(np.int64, count, elements=st.integers(0, CLASSES - 1)))


@given(scored())
def test_ranking_measures(case):
    scores, positive = case
    if positive.any():
        expected = metrics.average_precision_score(positive, scores)
        assert measures.average_precision(scores, positive) == pytest.approx(expected)
    else:
        assert measures.average_precision(scores, positive) is None
    if positive.any() and not positive.all():
        assert measures.roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores))
    else:
        assert measures.roc_auc(scores, positive) is None


def test_breaking_ties_would_be_caught():
    """The same numbers in the order of the examples, as an argsort without ties would have them."""
    scores, positive = np.zeros(4), np.array([True, True, False, False])
    assert measures.roc_auc(scores, positive) == measures.average_precision(scores, positive) == 0.5
    assert metrics.roc_auc_score(positive, -np.arange(4)) == 1.0


@given(classified())
def test_measures_of_classes(case):
    outputs, targets = case
    predicted = outputs.argmax(1)
    found = measures.class_measures(outputs, targets)
    present = sorted(set(targets.tolist()))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(targets, predicted))
    recalls = metrics.recall_score(targets, predicted, labels=present, average=None)
    assert found["balanced_accuracy"] == pytest.approx(recalls.mean())
    assert found["f1"] == pytest.approx(metrics.f1_score(targets, predicted, average="macro"))
    areas = [
        metrics.roc_auc_score(targets == number, measures.softmax(outputs)[:, number])
        for number in present
        if len(present) > 1
    ]
    assert found["roc_auc"] == (pytest.approx(np.mean(areas)) if areas else None)
    by_class = measures.recalls(measures.one_hot(predicted, CLASSES), measures.one_hot(targets, CLASSES))
    assert [recall for recall in by_class if recall is not None] == pytest.approx(recalls)
    assert [number for number, recall in enumerate(by_class) if recall is not None] == present


def test_all_classes_against_the_rest():
    generator = np.random.default_rng(0)
    outputs, targets = generator.normal(size=(200, 3)), generator.integers(0, 3, 200)
    expected = metrics.roc_auc_score(targets, measures.softmax(outputs), multi_class="ovr", average="macro")
    assert measures.class_measures(outputs, targets)["roc_auc"] == pytest.approx(expected)


def test_of_two_classes_the_second_counts():
    outputs, targets = np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.5]]), np.array([1, 0, 0])
    found = measures.class_measures(outputs, targets)
    assert found["average_precision"] == metrics.average_precision_score(targets, outputs[:, 1])
    assert found["roc_auc"] == metrics.roc_auc_score(targets, outputs[:, 1])


@given(scored(columns=3))
def test_measures_of_labels(case):
    outputs, actual = case
    found = measures.label_measures(outputs, actual.astype(np.float64))
    held = actual.any(0)
    expected = [metrics.average_precision_score(actual[:, n], outputs[:, n]) for n in np.flatnonzero(held)]
    assert found["average_precision"] == (pytest.approx(np.mean(expected)) if expected else None)
    used = held | (outputs > 0).any(0)
    scores = [metrics.f1_score(actual[:, n], outputs[:, n] > 0) for n in np.flatnonzero(used)]
    assert found["f1"] == (pytest.approx(np.mean(scores)) if scores else None)
    assert found["accuracy"] == pytest.approx(1 - metrics.hamming_loss(actual.ravel(), (outputs > 0).ravel()))


@given(
    st.integers(2, 20).flatmap(
        lambda count: st.tuples(
            *(arrays.arrays(np.float64, (count, 2), elements=st.floats(-100, 100, width=16)) for _ in range(2))
        )
    )
)
def test_measures_of_numbers(case):
    predicted, targets = case
    found = measures.target_measures(predicted, targets)
    assert found["rmse"] == pytest.approx(np.sqrt(metrics.mean_squared_error(targets, predicted)))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(targets, predicted))
    varying = np.ptp(targets, axis=0) > 0
    expected = [metrics.r2_score(targets[:, n], predicted[:, n]) for n in np.flatnonzero(varying)]
    assert found["r2"] == (pytest.approx(np.mean(expected), rel=1e-6) if expected else None)


def test_calibration_by_hand():
    confidences, right = np.array([0.95, 0.95, 0.55, 0.55]), np.array([True, False, True, True])
    assert measures.calibration_error(confidences, right) == pytest.approx((0.9 + 0.9) / 4)
    assert measures.calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_calibration_of_a_model_that_is_calibrated_and_of_one_that_is_not(seed):
    generator = np.random.default_rng(seed)
    confidences = generator.uniform(0.3, 1.0, 20_000)
    right = generator.random(20_000) < confidences
    assert measures.calibration_error(confidences, right) < 0.02
    assert measures.calibration_error(np.sqrt(confidences), right) > 0.1  # the control: overconfident


def test_nothing_at_all():
    nothing = np.zeros((0, CLASSES))
    assert set(measures.class_measures(nothing, np.zeros(0, dtype=np.int64)).values()) == {None}
    assert set(measures.label_measures(nothing, nothing).values()) == {None}
    assert set(measures.target_measures(nothing, nothing).values()) == {None}


def test_outputs_that_are_not_finite_give_no_nan():
    outputs = np.array([[np.nan, 1.0], [np.inf, 0.0], [0.0, 1.0]])
    for found in (
        measures.class_measures(outputs, np.array([0, 1, 1])),
        measures.label_measures(outputs, np.array([[0, 1], [1, 0], [1, 1]])),
        measures.target_measures(outputs, np.arange(6.0).reshape(3, 2)),
    ):
        assert all(value is None or np.isfinite(value) for value in found.values())
        assert any(value is None for value in found.values())


def test_targets_that_do_not_vary_have_no_r2():
    predicted, constant = np.array([[1.0], [2.0]]), np.array([[3.0], [3.0]])
    assert measures.target_measures(predicted, constant)["r2"] is None
    assert measures.target_measures(predicted[:1], constant[:1])["r2"] is None
    assert measures.target_measures(predicted, constant)["mae"] == 1.5
