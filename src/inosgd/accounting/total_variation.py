"""Total variation: what rare sampling alone guarantees, for any epsilon.

A step moves the law of what is released by at most the total-variation distance v, which for the sampled Gaussian
mechanism is q erf(1 / (2 sqrt(2) z)) <= q. Steps can be coupled so that each differs with probability v_i at most,
whatever the earlier ones showed, and all of them agree with probability at least the product of 1 - v_i. Hence

    delta(epsilon) <= 1 - prod_i (1 - v_i)    for every epsilon >= 0, in both directions:

at such a delta, epsilon is 0. An example that is hardly ever sampled costs nothing that a delta does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erf

from inosgd._arrays import FloatArray

_ROUNDED_UP = 1e-12


def shift_distance(shifts: FloatArray, noise_multipliers: FloatArray) -> FloatArray:
    """The distance of N(shift, z²) from N(0, z²); 1 without noise, 0 without a shift or with infinite noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = shifts / noise_multipliers
    moved: FloatArray = erf(np.where(shifts > 0, ratios, 0.0) / (2 * math.sqrt(2)))
    return moved


def composed_distance(distances: Sequence[FloatArray], steps: Sequence[int]) -> FloatArray:
    """1 - prod (1 - v)^steps for distances v of single steps, one entry for each mechanism.

    Guarantee:
        Rounded up by a relative 1e-12, a thousand times the roundings, and never above 1.
    """
    agree = sum(count * np.log1p(-np.minimum(v, 1 - 2.0**-53)) for v, count in zip(distances, steps, strict=True))
    return np.minimum(-np.expm1(agree) * (1 + _ROUNDED_UP), 1.0)
