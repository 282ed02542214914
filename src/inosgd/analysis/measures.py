"""Measures: from a model's outputs and the targets to what people ask for, such as AUC, F1 or RMSE.

Plain functions of arrays. A measure that is not defined is None, never NaN and never 0: recall without members of the
class, AUC where all examples are on one side, R² of targets that are all equal. Outputs that are NaN count as the
lowest of all where examples are ranked; other measures of outputs that are not finite are None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from inosgd._arrays import BoolArray, FloatArray, IntArray

CALIBRATION_BINS = 15
"""Bins of equal width on (0, 1] in which confidence is compared with accuracy."""

Measures = dict[str, float | None]


def accuracy(predicted: IntArray, targets: IntArray) -> float | None:
    """The share of examples whose class is predicted.

    >>> accuracy(np.array([0, 1, 1]), np.array([0, 1, 0]))
    0.6666666666666666
    """
    return _number(np.mean(predicted == targets)) if len(targets) else None


def recalls(predicted: BoolArray, actual: BoolArray) -> tuple[float | None, ...]:
    """For each class or label (a column) the share of its members that are predicted as such; None without members."""
    members = actual.sum(0)
    hits = (predicted & actual).sum(0)
    return tuple(float(hit / size) if size else None for hit, size in zip(hits, members, strict=True))


def balanced_accuracy(predicted: IntArray, targets: IntArray) -> float | None:
    """The mean recall of the classes that have members.

    >>> balanced_accuracy(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]))
    0.5
    """
    classes = int(max(predicted.max(initial=0), targets.max(initial=0))) + 1
    return _mean(recalls(one_hot(predicted, classes), one_hot(targets, classes)))


def macro_f1(predicted: BoolArray, actual: BoolArray) -> float | None:
    """The mean over classes or labels (columns) of F1 = 2 tp / (2 tp + fp + fn).

    Columns with neither members nor predictions are left out.
    """
    both = (predicted & actual).sum(0)
    either = predicted.sum(0) + actual.sum(0)
    return _mean(tuple(float(2 * hit / size) if size else None for hit, size in zip(both, either, strict=True)))


def roc_auc(scores: FloatArray, positive: BoolArray) -> float | None:
    """The probability that a positive example has a higher score than a negative one; a tie counts one half.

    >>> roc_auc(np.array([0.1, 0.4, 0.4]), np.array([False, False, True]))
    0.75
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    from scipy.stats import rankdata  # a command that measures nothing need not wait for it

    ranks = rankdata(_rankable(scores))  # those of ties are their mean
    excess = float(ranks[positive].sum()) - positives * (positives + 1) / 2
    return excess / (positives * negatives)


def average_precision(scores: FloatArray, positive: BoolArray) -> float | None:
    """Precision at each threshold, weighted by the recall that it adds; examples with equal scores come together.

    >>> average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]))
    0.8333333333333333
    """
    positives = int(positive.sum())
    if not positives:
        return None
    rankable = _rankable(scores)
    order = np.argsort(-rankable, kind="stable")
    descending = rankable[order]
    last = np.append(descending[1:] != descending[:-1], True)
    hits = np.cumsum(positive[order])[last]
    precision = hits / (np.flatnonzero(last) + 1)
    return float(np.sum(precision * np.diff(hits, prepend=0)) / positives)


def macro(
    measure: Callable[[FloatArray, BoolArray], float | None], scores: FloatArray, actual: BoolArray
) -> float | None:
    """The mean of a measure over the columns for which it is defined: over labels, or over classes against the rest."""
    return _mean(tuple(measure(scores[:, column], actual[:, column]) for column in range(actual.shape[1])))


def calibration_error(confidences: FloatArray, right: BoolArray) -> float | None:
    """The expected calibration error: |accuracy - mean confidence| within a bin, averaged over examples.

    Bins are `CALIBRATION_BINS` of equal width; one includes its upper end. With few examples it is biased upwards:
    accuracy in a bin of one example is 0 or 1.
    """
    if not len(confidences) or not np.isfinite(confidences).all():
        return None
    bins = np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=right - confidences, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def rmse(predicted: FloatArray, targets: FloatArray) -> float | None:
    """The root of the mean squared error, over examples and, if there are several, over targets."""
    with np.errstate(over="ignore"):
        return _number(np.sqrt(np.mean((predicted - targets) ** 2))) if targets.size else None


def mae(predicted: FloatArray, targets: FloatArray) -> float | None:
    """The mean absolute error, over examples and, if there are several, over targets."""
    return _number(np.mean(np.abs(predicted - targets))) if targets.size else None


def r2(predicted: FloatArray, targets: FloatArray) -> float | None:
    """1 - (mean squared error) / (variance of these very targets), the mean over targets (columns) that vary.

    None where no target varies, so also for fewer than two examples.
    """
    if len(targets) < 2:
        return None
    varying = np.ptp(targets, axis=0) > 0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        errors = np.mean((predicted - targets) ** 2, axis=0)[varying]
        found = 1 - errors / np.var(targets, axis=0)[varying]
    return _number(np.mean(found)) if varying.any() else None


def class_measures(outputs: FloatArray, targets: IntArray) -> Measures:
    """Measures of classification; ``outputs`` are logits, one column per class.

    With two classes, AUC and average precision are those of the second class; with more they are means over classes
    against the rest.
    """
    chances = softmax(outputs)
    predicted, actual = outputs.argmax(1), one_hot(targets, outputs.shape[1])
    columns = slice(1, 2) if outputs.shape[1] == 2 else slice(None)
    confidence = chances.max(1) if len(chances) else np.zeros(0)
    return {
        "accuracy": accuracy(predicted, targets),
        "balanced_accuracy": balanced_accuracy(predicted, targets),
        "f1": macro_f1(one_hot(predicted, outputs.shape[1]), actual),
        "roc_auc": macro(roc_auc, chances[:, columns], actual[:, columns]),
        "average_precision": macro(average_precision, chances[:, columns], actual[:, columns]),
        "calibration_error": calibration_error(confidence, predicted == targets),
    }


def label_measures(outputs: FloatArray, targets: npt.NDArray[Any]) -> Measures:
    """Measures of multi-label classification; ``outputs`` are logits, ``targets`` 0 or 1, one column per label.

    A label is predicted where its logit is positive. Accuracy is the share of all pairs of an example and a label.
    Calibration compares probabilities of labels with how often they apply, over all those pairs.
    """
    predicted, actual = outputs > 0, targets > 0.5
    return {
        "accuracy": _number(np.mean(predicted == actual)) if actual.size else None,
        "f1": macro_f1(predicted, actual),
        "roc_auc": macro(roc_auc, outputs, actual),
        "average_precision": macro(average_precision, outputs, actual),
        "calibration_error": calibration_error(sigmoid(outputs).ravel(), actual.ravel()),
    }


def target_measures(predicted: FloatArray, targets: FloatArray) -> Measures:
    """Measures of regression in the units of the targets, one column per target.

    ``prediction_spread`` is the standard deviation of predictions over that of targets, the mean over targets that
    vary: near 0 the model says the same of everything.
    """
    return {
        "rmse": rmse(predicted, targets),
        "mae": mae(predicted, targets),
        "r2": r2(predicted, targets),
        "prediction_spread": _spread(predicted, targets),
    }


def one_hot(numbers: IntArray, classes: int) -> BoolArray:
    """A row per example with True in the column of its class."""
    found: BoolArray = np.asarray(numbers)[:, None] == np.arange(classes)
    return found


def softmax(outputs: FloatArray) -> FloatArray:
    """Probabilities of classes from logits."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(outputs - outputs.max(1, keepdims=True, initial=-np.inf))
        probabilities: FloatArray = powers / powers.sum(1, keepdims=True)
    return probabilities


def sigmoid(outputs: FloatArray) -> FloatArray:
    """The probability of a label from its logit."""
    with np.errstate(invalid="ignore"):
        probabilities: FloatArray = np.exp(-np.logaddexp(0, -outputs))
    return probabilities


def _spread(predicted: FloatArray, targets: FloatArray) -> float | None:
    if len(targets) < 2:
        return None
    varying = np.ptp(targets, axis=0) > 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = predicted.std(axis=0)[varying] / targets.std(axis=0)[varying]
    return _number(np.mean(found)) if varying.any() else None


def _rankable(scores: FloatArray) -> FloatArray:
    return np.where(np.isnan(scores), -np.inf, scores)


def _mean(values: tuple[float | None, ...]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
