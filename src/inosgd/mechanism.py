"""INO-SGM, the individualized noisy ordered sampled Gaussian mechanism (Thm. 3.4): no model needed.

Any vectors with per-owner bounds and scores go in, a noisy weighted sum comes out. Training is one use of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.clipping import Clipping, FlatClipping
from inosgd.errors import InosgdError
from inosgd.grid import Grid
from inosgd.importance import Tail, importance_weights
from inosgd.noise import rounded_gaussian
from inosgd.order import DESCENDING_LOSS, Candidates, Order
from inosgd.owners import Owners
from inosgd.plan import Terms
from inosgd.randomness import RandomSource
from inosgd.sampling import PoissonSampler

_ROWS_AT_ONCE = 64
_AT_ONCE = 1 << 15
"""How many coordinates are released at once: few enough to stay in the processor's cache."""


@dataclass(frozen=True, eq=False, repr=False)
class BoundedSum:
    """A sum that knows how far one example can move it.

    Guarantee:
        Adding or removing an example of owner n moves ``value`` by at most ``sensitivity[n]`` in the 2-norm.

    ``value`` is sensitive until `release` has added noise to it. One that is not finite has no bound and is refused.
    """

    value: torch.Tensor
    sensitivity: FloatArray

    def __post_init__(self) -> None:
        # One NaN or infinity makes the sum one too; a sum of finite numbers may overflow, which the rest tells apart.
        if not (math.isfinite(float(self.value.sum())) or bool(torch.isfinite(self.value).all())):
            raise InosgdError(
                f"the sum over {self.value.numel():,} coordinates is not finite although every example in it was "
                "clipped: the model gives other gradients when it is passed again; make it repeatable"
            )


def release(total: BoundedSum, noise_scale: float, source: RandomSource) -> torch.Tensor:
    """The sum with independent Gaussian noise of standard deviation ``noise_scale`` in every coordinate, on a grid.

    The sum is put on the multiples of a power of two far below the noise scale, the noise is rounded to the same grid,
    and the two are added exactly: see `inosgd.grid` for the argument and `inosgd.noise` for the noise.

    Guarantee:
        For owner n, whose examples were sampled with rate q_n, the release is a function of a sampled Gaussian
        mechanism with noise multiplier noise_scale / total.sensitivity[n], and of nothing else: its low-order bits
        carry no more than its high ones. What the grid adds to the sensitivity is taken from the sum, by shrinking it.
        The total-variation distance to the ideal is at most 2^-120 per coordinate. Record it in a ledger before calling
        this. Without noise (scale 0) nothing is promised and the sum is returned as it is.

    Returns:
        Multiples of the grid's spacing, in float64. Whatever is done with them, rounding to float32 too, is free.
    """
    _validate.non_negative(noise_scale=noise_scale)
    if noise_scale == 0:
        return total.value
    grid = Grid.for_release(noise_scale, total.sensitivity, total.value.numel())
    released = rounded_gaussian(source, total.value.numel(), noise_scale / grid.spacing).to(total.value.device)
    for steps, value in zip(torch.split(released, _AT_ONCE), torch.split(total.value, _AT_ONCE), strict=True):
        steps.copy_(grid.values(steps.add_(grid.steps(value))))
    return released


def ordered_sum(
    vectors: torch.Tensor,
    candidates: Candidates,
    thresholds: FloatArray,
    source: RandomSource,
    *,
    tail: Tail | None,
    order: Order = DESCENDING_LOSS,
    clipping: Clipping | None = None,
) -> torch.Tensor:
    """The weighted sum of clipped vectors, sum_k rho_k g_k: everything of a release but its noise.

    Guarantee:
        Adding one vector with threshold C to a batch of n vectors whose thresholds add up to T moves the sum by at
        most C, if (n + 20) T <= 4e10 C: the roundings of weights, factors and sum, fewer than n + 20 of each term in
        either batch, then fit into the margin of 1e-5 that clipping leaves.
    """
    _validate.same_length(vectors=vectors, candidates=candidates, thresholds=thresholds)
    weights = importance_weights(tail, thresholds, order.ranking(candidates, source))
    factors = (clipping or FlatClipping()).factors(candidates.grad_norms, thresholds)
    return combine(vectors, weights * factors)


def combine(vectors: torch.Tensor, coefficients: FloatArray) -> torch.Tensor:
    """sum_i coefficients[i] vectors[i], accumulated in float64.

    A vector with coefficient 0 is absent, whatever it holds (NaN too). In float32 the roundings of a sum of 1,024
    vectors whose thresholds differ by 100 would move it by up to 1.0007 C.
    """
    present = np.flatnonzero(coefficients)
    total = vectors.new_zeros(vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(present), _ROWS_AT_ONCE):
        rows = present[start : start + _ROWS_AT_ONCE]
        scales = torch.from_numpy(coefficients[rows]).to(vectors.device)
        total += scales @ vectors[torch.from_numpy(rows).to(vectors.device)].double()
    return total


def ino_sgm(
    vectors: torch.Tensor,
    scores: FloatArray,
    owners: Owners,
    terms: Terms,
    source: RandomSource,
    *,
    tail: Tail | None,
) -> torch.Tensor:
    """One noisy, weighted sum of a Poisson sample of ``vectors``, the highest scores first.

    Args:
        vectors: One row per example; rows longer than their owner's threshold are clipped to it.
        scores: One score per example, a function of that example and of public values alone.
        owners: Whose row each example is.
        terms: Sampling rates and thresholds (bounds) per owner, and the noise scale.
        source: Randomness for the sample, the order and the noise.
        tail: The tail importance function, or None for the plain sampled Gaussian mechanism.

    Guarantee:
        One call is, for each example of owner n, a sampled Gaussian mechanism with rate
        ``terms.sampling_rates[n]`` and noise multiplier ``terms.noise_scale / terms.clipping_thresholds[n]``.
    """
    _validate.same_length(vectors=vectors, scores=scores, owners=owners)
    batch = PoissonSampler(terms.sampling_rates, owners.assignment).draw(source)
    rows = owners.of(batch)
    chosen = vectors[torch.from_numpy(batch)]
    candidates = Candidates(batch, owners.table.privacy_ranks[rows], scores[batch], row_norms(chosen))
    total = ordered_sum(chosen, candidates, terms.thresholds_of(rows), source, tail=tail)
    return release(BoundedSum(total, terms.clipping_thresholds), terms.noise_scale, source)


def row_norms(vectors: torch.Tensor) -> FloatArray:
    """The 2-norm of every row, accumulated in float64."""
    norms: FloatArray = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64).cpu().numpy()
    return norms
