"""The grid of a release: what is released is a whole number of equal steps, so that no bit says more than noise allows.

Floating-point numbers are not evenly spaced. Which of them can occur as a sum plus floating-point noise depends on the
sum, and an observer of every bit of a release can use that (Mironov 2012); adding several Gaussians does not help. On a
grid every release is possible under every sum, and its probability is that of a Gaussian mechanism.

Let S be the sum in d coordinates, moved by at most c_n by an example of owner n, let c be the smallest of the c_n and
g = 2^k the spacing. Shrink S by a share s, which follows below, and round every coordinate to a multiple of g. Released
is

    R = K + g round(N / g),    K = g round((1 - s) S / g),    N ~ N(0, sigma^2 I).

Three facts make R as private as S + N:

1. Rounding to the grid commutes with moving by a multiple of g. K is one, so R = g round((K + N) / g) for every N that
   is not half-way between two points of the grid, which no N is almost surely. R is thus a function of K + N: post-
   processing of a Gaussian mechanism on K.
2. One example moves K by at most c_n. Rounding moves each coordinate by at most g / 2, and computing (1 - s) S / g in
   float64 by at most g / 4 while it is below 2^51 steps (beyond, it is cut off there, which brings no two sums further
   apart). Two sums come apart by (1 - s) c_n + (3/2) g sqrt(d), and s = (3/2) g sqrt(d) / c makes that at most c_n.
3. Every operation after that is exact. Division and multiplication by g change an exponent only. K / g is a whole
   number of at most 2^51, round(N / g) one of less than 2^46, and their sum one of less than 2^53: each is a float64.

The spacing is a power of two, at most 2^-28 of the noise scale, so s is at most 6e-9 sigma sqrt(d) / c: for a million
parameters and a noise multiplier of 10, less than a ten-thousandth of the signal. It depends on nothing but the plan
and the number of parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.errors import InvalidArgumentError
from inosgd.noise import LARGEST_SCALE

STEPS_PER_NOISE_SCALE = 2.0**28
MOST_STEPS = 2.0**51
LARGEST_SHRINKAGE = 2.0**-10
_ROUNDING = 1.5
"""How far rounding may move two sums apart in one coordinate, in steps: see fact 2 of the module."""


@dataclass(frozen=True)
class Grid:
    """Multiples of ``spacing``, a power of two; sums are shrunk by the share ``shrinkage`` before they are rounded."""

    spacing: float
    shrinkage: float

    @classmethod
    def for_release(cls, noise_scale: float, sensitivity: FloatArray, coordinates: int) -> Self:
        """The grid for a sum of so many coordinates that an example of owner n moves by ``sensitivity[n]`` at most.

        Guarantee:
            (1 - shrinkage) c + (3/2) spacing sqrt(coordinates) <= c for every c in ``sensitivity``.
        """
        _validate.finite_positive(noise_scale=noise_scale)
        _validate.positive(sensitivity=sensitivity)
        apart = _ROUNDING * math.sqrt(max(coordinates, 1))
        finest = LARGEST_SHRINKAGE * float(sensitivity.min()) / apart
        spacing = _power_of_two_below(min(noise_scale / STEPS_PER_NOISE_SCALE, finest))
        if not (noise_scale / spacing <= LARGEST_SCALE and 1e-200 < spacing < 1e200):
            raise InvalidArgumentError(
                f"noise_scale={noise_scale:g} for a smallest sensitivity of {sensitivity.min():g} in {coordinates:,} "
                "coordinates: no grid fits both; plan with thresholds closer to the noise scale"
            )
        return cls(spacing, apart * spacing / float(sensitivity.min()) * (1 + 1e-9))

    def steps(self, value: torch.Tensor) -> torch.Tensor:
        """The shrunk ``value`` in whole steps, in float64; see the module for what rounding does to it."""
        scaled = value.double() * (1.0 - self.shrinkage)
        return scaled.mul_(1.0 / self.spacing).clamp_(-MOST_STEPS, MOST_STEPS).round_()

    def values(self, steps: torch.Tensor) -> torch.Tensor:
        """So many steps as numbers, exactly."""
        return steps * self.spacing


def _power_of_two_below(value: float) -> float:
    return math.ldexp(1.0, math.frexp(value)[1] - 1)
