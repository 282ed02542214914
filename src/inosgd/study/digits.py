"""The default study: scikit-learn's handwritten digits, owned half and half by a strict and a liberal owner.

1,797 images of 8 x 8 pixels. Their range, 0 to 16, is public, so scaling them to [-1, 1] costs no privacy. A fifth
of each class is held out.
"""

from __future__ import annotations

from torch import nn

from inosgd.data.scaling import Range
from inosgd.models import perceptron
from inosgd.owners import Budget
from inosgd.study.encoding import scaled_columns
from inosgd.study.study import StudyData, split_by_class

DESCRIPTION = "handwritten digits: 0-4 belong to an owner with epsilon 1, 5-9 to one with epsilon 8"
BUDGETS = {"digits 0-4": Budget(epsilon=1.0, delta=1e-5), "digits 5-9": Budget(epsilon=8.0, delta=1e-5)}


def split(seed: int) -> StudyData:
    """A stratified split; digits 0-4 belong to the strict owner and digits 5-9 to the liberal one."""
    from sklearn.datasets import load_digits  # other studies need not wait for it

    images = load_digits()
    pixels, encoding = scaled_columns(dict.fromkeys(images.feature_names, Range(0.0, 16.0)), images.data)
    digits = images.target
    return split_by_class(pixels, digits, digits // 5, BUDGETS, [str(digit) for digit in range(10)], seed, encoding)


def model(_: StudyData, seed: int) -> nn.Module:
    """A perceptron with one hidden layer."""
    return perceptron(64, 32, 10, seed=seed)
