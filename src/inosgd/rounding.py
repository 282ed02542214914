"""Rounding of sums: the room that is left for it, so that bounds proved for real numbers hold for floating-point ones.

A sum of gradients is rounded relative to the whole sum, while its sensitivity is one example's threshold: an owner
whose threshold is small against the batch is the one who is exposed. If the sum that is computed is within E of the
real sum, for every batch, then one example of owner n moves what is computed by at most C_n + 2 E. Sums are therefore
shrunk by a share s with 2 E = s c, c the smallest threshold:

    (1 - s) (C_n + s c) <= C_n.

The share depends on the plan alone; what has to be summed more exactly to stay within E is (`Room`).

**How exact sums are.** Let c_i be the coefficients and m_i the sum of the norms of what example i adds to the sum: its
gradient's norm, or more where its contributions cancel. With u = 2^-24, `inosgd.gradients.rules.sums` gives

    in float32    an error of at most ROUNDOFFS u sum_i c_i m_i,
    in float64    an error of at most 2^-42 sum_i c_i m_i, other processes' additions included.

The engine takes float32 where that is at most E *for the batch at hand*, and float64 otherwise; either way the sum is
within E. Since norms are at least m_i / CANCELLATION, clipping leaves c_i m_i <= CANCELLATION C_i, so that in float64
E = 2^-36 T will always do, T being a bound on a batch's sum of thresholds.

**The share.** In float32 room is left for contributions that add up to `ROOM_FOR_MAGNITUDES` T:

    s = 2 ROUNDOFFS u ROOM_FOR_MAGNITUDES T / c,

about 0.1 % for batches of 64 with equal thresholds and 0.7 % for batches of 512. Where that passes `LARGEST_SHARE`, all
sums are in float64, and the share is 2^-35 T / c. Roundings of weights (`inosgd.importance`) add 2 WEIGHT_ERROR T / c
to either. T holds but with probability 1e-20 (Bernstein's inequality); float32 does not rest on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from inosgd._arrays import IntArray
from inosgd.errors import InvalidArgumentError
from inosgd.importance import WEIGHT_ERROR
from inosgd.plan import Terms

ROUNDOFFS = 40.0
"""No summand of a float32 sum is rounded more often than 38 times."""

CANCELLATION = 64.0
"""Norms are taken to be at least this part of what an example adds to a sum in all: 1 to 3 times the norm as a rule."""

ROOM_FOR_MAGNITUDES = 2.0
LARGEST_SHARE = 0.02
_EXACT = 2.0**-36
_LOG_FAILURE = math.log(1e20)


@dataclass(frozen=True)
class Room:
    """What is left for roundings.

    Guarantee:
        If two neighbouring sums, each put together from ``parts`` sums in error by at most ``error``, differ by at most
        C_n in real numbers, they differ by at most C_n after `leave`.

    Attributes:
        share: By how much sums are shrunk.
        error: By how much each part may err, in the 2-norm; 0 stands for float64.
    """

    share: float
    error: float

    @classmethod
    def of(cls, terms: Terms, sizes: IntArray, dtype: torch.dtype, parts: int = 1) -> Room:
        """The room for a step, from the plan alone.

        Args:
            terms: Rates and thresholds of the step.
            sizes: How many examples each owner has.
            dtype: The type of the model.
            parts: How many sums, each over a part of the batch, are added up.

        Raises:
            InvalidArgumentError: If float64 would not do.
        """
        smallest, largest = float(terms.clipping_thresholds.min()), float(terms.clipping_thresholds.max())
        if math.isinf(largest):
            return cls(0.0, math.inf)
        ratio = largest_threshold_sum(terms, sizes) / smallest
        single, weights = ROUNDOFFS * torch.finfo(dtype).eps * ROOM_FOR_MAGNITUDES * ratio, 2 * WEIGHT_ERROR * ratio
        if dtype != torch.float64 and single <= LARGEST_SHARE:
            return cls(single + weights, single * smallest / 2 / parts)
        share = 2 * _EXACT * ratio + weights
        if not share <= LARGEST_SHARE:
            raise InvalidArgumentError(
                f"clipping_thresholds from {smallest:g} to {largest:g} at an expected batch size of "
                f"{terms.expected_batch_size:g}: roundings of sums in float64 could take {share:.1%} of the smallest, "
                f"and at most {LARGEST_SHARE:.0%} is left for them; plan with smaller batches or thresholds closer "
                "together"
            )
        return cls(share, 0.0)

    def leave(self, value: torch.Tensor) -> torch.Tensor:
        """``value``, a sum in float64, shrunk by the share."""
        return value * (1.0 - self.share)


def largest_threshold_sum(terms: Terms, sizes: IntArray) -> float:
    """What a batch's thresholds add up to at most, but with probability 1e-20.

    Inclusions are independent, so with mean m, variance v and largest threshold c, Bernstein's inequality gives
    P(sum >= m + t) <= exp(-t^2 / (2 v + 2 c t / 3)).
    """
    rates, thresholds = terms.sampling_rates, terms.clipping_thresholds
    expected = rates * sizes * thresholds
    variance = float(np.dot(expected * (1 - rates), thresholds))
    linear = _LOG_FAILURE * float(thresholds.max()) / 3
    excess = linear + math.sqrt(linear**2 + 2 * _LOG_FAILURE * variance)
    return min(float(expected.sum()) + excess, float(np.dot(sizes, thresholds)))
