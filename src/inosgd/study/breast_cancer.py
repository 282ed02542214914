"""Breast cancer: scikit-learn's 569 cases, of which the malignant ones belong to a strict owner.

The 30 features are ten measurements of cell nuclei: their mean, standard error and worst value. Their ranges are
published with the data, so scaling each to [-1, 1] costs no privacy. A fifth of each class is held out.
"""

from __future__ import annotations

from torch import nn

from inosgd.data.scaling import Range
from inosgd.models import perceptron
from inosgd.owners import Budget
from inosgd.study.encoding import scaled_columns
from inosgd.study.study import StudyData, split_by_class

DESCRIPTION = "breast-cancer cases: malignant ones belong to an owner with epsilon 0.5, benign ones to one with 5"
BUDGETS = {"malignant": Budget(epsilon=0.5, delta=1e-5), "benign": Budget(epsilon=5.0, delta=1e-5)}

LARGEST_MEANS = (28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097)
LARGEST_ERRORS = (2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03)
LARGEST_WORSTS = (36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208)
LARGEST = LARGEST_MEANS + LARGEST_ERRORS + LARGEST_WORSTS
"""The published upper end of each feature's range; the lower end is taken as 0."""


def split(seed: int) -> StudyData:
    """A stratified split; malignant cases belong to the strict owner and benign ones to the liberal one."""
    from sklearn.datasets import load_breast_cancer  # other studies need not wait for it

    cases = load_breast_cancer()
    ranges = {str(name): Range(0.0, largest) for name, largest in zip(cases.feature_names, LARGEST, strict=True)}
    inputs, encoding = scaled_columns(ranges, cases.data)
    return split_by_class(inputs, cases.target, cases.target, BUDGETS, ("malignant", "benign"), seed, encoding)


def model(_: StudyData, seed: int) -> nn.Module:
    """A perceptron with one hidden layer."""
    return perceptron(30, 16, 2, seed=seed)
