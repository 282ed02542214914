"""The worked example of App. C.1.2: two owners in the plane, and the threshold at which owner 1's loss stops to fall.

The losses are theta_1^2 + (100 - theta_2)^2 and (100 - theta_1)^2 + theta_2^2, the parameters (40, 40), so the owners'
mean gradients are (80, -120) and (-120, 80). A step sees one example of each; its gradient is uniform on a rectangle
around the mean, 50 to either side in the first coordinate and 5 in the second, and is clipped to C_1 = 1 or C_2. Noise
does not move an expectation.

Owner 1's loss falls, to first order, while the expected sum of clipped gradients has a positive product with owner 1's
mean gradient. That ends at C_2 = 1.0673 (the paper: 1.067), where the left side of the condition is 0.0148: a positive
varsigma is needed. The paper writes the sign the wrong way round there: "C_2 < 1.067, that is, left side < 0.0148" must
read > 0.0148, since the left side falls in C_2.

Clipping may also err the other way. By the same computation owner 2's loss falls from C_2 = 0.9097 on, where *its* left
side is -0.0147: a left side below 0 does not say that a loss rises, only that for some tasks it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from inosgd._arrays import FloatArray

POINTS = 40
"""Gauss-Legendre points per coordinate: the integrands are smooth, and 20 points give the same 12 digits."""

HALF_SIDES = np.array([50.0, 5.0])
MEAN_GRADIENTS = np.array([[80.0, -120.0], [-120.0, 80.0]])


@dataclass(frozen=True)
class WorkedExample:
    """What the example works out to.

    Attributes:
        cosine: Of the angle between the mean gradients, -12/13.
        first_crossing: C_2 below which owner 1's loss falls.
        second_crossing: C_2 above which owner 2's loss falls.
        first_left_side: The left side of Thm. 3.1 for owner 1's loss at the first crossing.
        second_left_side: The left side for owner 2's loss, owners exchanged, at the second crossing.
    """

    cosine: float
    first_crossing: float
    second_crossing: float
    first_left_side: float
    second_left_side: float


def expected_clipped_gradient(mean: FloatArray, threshold: float) -> FloatArray:
    """The expectation of g / max(1, |g| / C) for g uniform on the rectangle around ``mean``."""
    nodes, node_weights = np.polynomial.legendre.leggauss(POINTS)
    first = mean[0] + HALF_SIDES[0] * nodes[:, None]
    second = mean[1] + HALF_SIDES[1] * nodes[None, :]
    factors = np.minimum(1.0, threshold / np.hypot(first, second))
    weights = node_weights[:, None] * node_weights[None, :] / 4 * factors
    return np.array([(weights * first).sum(), (weights * second).sum()])


def expected_descent(owner: int, second_threshold: float) -> float:
    """The product of an owner's mean gradient (row 0 or 1) with the expected sum of clipped gradients, C_1 = 1."""
    thresholds = (1.0, second_threshold)
    total = sum(expected_clipped_gradient(mean, c) for mean, c in zip(MEAN_GRADIENTS, thresholds, strict=True))
    return float(MEAN_GRADIENTS[owner] @ total)


def worked_example() -> WorkedExample:
    """The example's numbers, the crossings by root finding to 1e-12."""
    one, two = MEAN_GRADIENTS
    cosine = float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))
    first, second = (
        float(brentq(lambda c, owner=owner: expected_descent(owner, c), 0.5, 2.0, xtol=1e-12)) for owner in (0, 1)
    )
    return WorkedExample(cosine, first, second, 1 + cosine * first, 1 + cosine / second)
