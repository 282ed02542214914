"""Noise is Gaussian with the scale asked for.

Power: with 400,000 numbers a Kolmogorov-Smirnov test at 1e-6 finds a scale that is wrong by 2%.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from inosgd.errors import InvalidArgumentError
from inosgd.noise import gaussian
from inosgd.randomness import SecureSource, SeededSource

COUNT = 400_001


@pytest.mark.parametrize("source", [SeededSource(11), SecureSource()], ids=["seeded", "secure"])
def test_noise_is_gaussian_and_independent(source):
    drawn = gaussian(source, COUNT, 2.5).numpy()
    assert stats.kstest(drawn / 2.5, "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(drawn)) < 6 * np.sqrt(24 / COUNT)
    half = (COUNT + 1) // 2
    pairs = np.corrcoef(drawn[: half - 1], drawn[half : 2 * half - 1])[0, 1]  # the two numbers of each pair
    squares = np.corrcoef(drawn[: half - 1] ** 2, drawn[half : 2 * half - 1] ** 2)[0, 1]
    assert max(abs(pairs), abs(squares)) < 6 / np.sqrt(half)


def test_a_scale_that_is_two_percent_short_is_caught():
    drawn = gaussian(SeededSource(11), COUNT, 0.98).numpy()
    assert stats.kstest(drawn, "norm").pvalue < 1e-6


def test_a_sum_of_uniforms_is_caught():
    drawn = np.random.default_rng(0).random((COUNT, 12)).sum(1) - 6
    assert abs(stats.kurtosis(drawn)) > 6 * np.sqrt(24 / COUNT)


def test_shape_and_type():
    assert gaussian(SeededSource(0), 0, 1.0).shape == (0,)
    assert gaussian(SeededSource(0), 3, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert gaussian(SeededSource(0), 5, 1.0).dtype == torch.float64


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_bad_scales_are_refused(scale):
    with pytest.raises(InvalidArgumentError, match="noise_scale"):
        gaussian(SeededSource(0), 1, scale)
