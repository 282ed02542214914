"""Clipping: factors that keep every example's gradient within its owner's threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray

MARGIN = 1e-5
"""Clipped gradients stay below C (1 - MARGIN): room for the float64 roundings of norms, factors and coefficients.

Those of float32 are covered elsewhere: norms are upper bounds (`inosgd.gradients.rules.forms`), and sums have a room of
their own (`inosgd.rounding`).
"""


class Clipping(Protocol):
    """A rule that scales gradients by factors computed from their norms."""

    def factors(self, grad_norms: FloatArray, thresholds: FloatArray) -> FloatArray:
        """One factor per example, such that factor x norm <= C (1 - MARGIN)."""


@dataclass(frozen=True)
class FlatClipping:
    """g / max(1, |g| / C): longer gradients are shortened to the threshold, others are left alone.

    Guarantee:
        factor x norm <= C (1 - MARGIN) for every example, so that a gradient whose norm is at most the given one stays
        within C after the roundings of float64.

    ============  ==========================================================
    norm          factor
    ============  ==========================================================
    0             1
    at most C     1 (up to the margin)
    above C       C (1 - MARGIN) / norm
    NaN, inf      0: the gradient counts as zero, for this example alone
    ============  ==========================================================
    """

    def factors(self, grad_norms: FloatArray, thresholds: FloatArray) -> FloatArray:
        """One factor per example, from 0 to 1."""
        with np.errstate(divide="ignore", over="ignore"):
            limits = thresholds * (1 - MARGIN) / grad_norms
        return np.where(np.isfinite(grad_norms), np.minimum(limits, 1.0), 0.0)


@dataclass(frozen=True)
class AutoClipping:
    """C g / (|g| + stability): every gradient is normalised (AUTO-S, Bu et al. 2023).

    Guarantee:
        factor x norm < C (1 - MARGIN). A gradient of NaN or infinite norm gets factor 0 and counts as zero.
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        _validate.finite_positive(stability=self.stability)

    def factors(self, grad_norms: FloatArray, thresholds: FloatArray) -> FloatArray:
        """One factor per example; greater than 1 where a gradient is short and is lengthened."""
        factors = thresholds * (1 - MARGIN) / (grad_norms + self.stability)
        return np.where(np.isfinite(grad_norms), factors, 0.0)
