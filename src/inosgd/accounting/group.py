"""Groups: what several examples of one owner spend together.

The guarantee of a plan is for one example. If k examples are added or removed together, a step samples
Binomial(k, q) of them. Each sampled example moves the sum by at most its threshold C, whatever else is in the batch,
so j of them, added one after the other, move it by at most j C (the triangle inequality; for INO-SGD it rests on the
sensitivity of the weighted sum being C for every batch). The step is then dominated by the mixture of Gaussians with
shifts j and binomial probabilities (Choquette-Choo et al. 2024, arXiv 2310.15526).

>>> one = group_epsilon(sampling_rate=0.01, noise_multiplier=4.0, steps=1000, delta=1e-5, group_size=1)
>>> two = group_epsilon(sampling_rate=0.01, noise_multiplier=4.0, steps=1000, delta=1e-5, group_size=2)
>>> round(one, 2), round(two, 2)
(0.27, 0.58)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc

from inosgd import _validate
from inosgd._arrays import IntArray
from inosgd.accounting.privacy_loss import GaussianMixture, SampledGaussian, compose

_MOST_SHIFTS = 64
_DROPPED_SHARE = 1e-6  # of delta, for counts so high that they are taken to lose everything
_ROUNDED_UP = 1e-4  # probability of the counts that are all rounded up to the lowest shift
_SURVIVAL_ERROR = 1e-9  # relative; far above that of the incomplete beta function


def group_epsilon(sampling_rate: float, noise_multiplier: float, steps: int, delta: float, group_size: int) -> float:
    """The epsilon at ``delta`` of ``group_size`` examples that are added or removed together.

    Guarantee:
        An upper bound, for both directions. Counts are rounded up, to at most 64 different ones; a law of larger
        shifts dominates, since the best events against it are half-lines, {x >= t} for removal and {x <= t} for
        addition, and shifting mass upward makes the first likelier and the second less likely under the mixture.
        The highest counts, of probability at most 1e-6 delta over all steps, are charged to delta.

    Args:
        sampling_rate: q of each example of the group.
        noise_multiplier: z of each example of the group: noise scale over clipping threshold.
        steps: T.
        delta: In (0, 1).
        group_size: k, at least 1.

    Returns:
        Epsilon, or inf if nothing can be certified at this delta.
    """
    return composed_group_epsilon([SampledGaussian(sampling_rate, noise_multiplier, steps)], delta, group_size)


def composed_group_epsilon(phases: Sequence[SampledGaussian], delta: float, group_size: int) -> float:
    """`group_epsilon` for several phases with different rates or noise, composed one after the other."""
    _validate.open_unit(delta=delta)
    _validate.whole(1, group_size=group_size)
    return _composed(tuple(phases), float(delta), int(group_size))


@lru_cache(maxsize=4096)
def _composed(phases: tuple[SampledGaussian, ...], delta: float, group_size: int) -> float:
    """Kept, as owners with the same terms ask for the same."""
    steps = sum(phase.steps for phase in phases)
    dropped = _DROPPED_SHARE * delta / max(steps, 1)
    mixtures = []
    for phase in phases:
        shifts, probabilities = _sampled_counts(group_size, phase.sampling_rate, dropped)
        mixtures.append(GaussianMixture(shifts, probabilities, phase.noise_multiplier, phase.steps))
    return compose(mixtures).epsilon(delta)


def _sampled_counts(size: int, rate: float, dropped: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Counts and probabilities that dominate Binomial(size, rate), less ``dropped`` at the top."""
    counts = _likely_counts(size, rate, dropped)
    survival = np.minimum(bdtrc(counts.astype(np.float64), size, rate) * (1 + _SURVIVAL_ERROR), 1.0)
    survival[counts == size] = 0.0
    probabilities = np.diff(-survival, prepend=-1.0)
    return tuple(counts.astype(float).tolist()), tuple(np.maximum(probabilities, 0.0).tolist())


def _likely_counts(size: int, rate: float, dropped: float) -> IntArray:
    """At most 64 increasing counts: those below the first are rounded up to it, those above the last dropped."""
    mean, deviation = size * rate, math.sqrt(size * rate * (1 - rate))
    low = max(0, math.floor(mean - 10 * deviation))
    high = min(size, math.ceil(mean + 12 * deviation) + 150)
    counts = np.arange(low, high + 1)
    below = bdtr(counts.astype(np.float64), size, rate)
    above = bdtrc(counts.astype(np.float64), size, rate)
    first = max(int(np.searchsorted(below, _ROUNDED_UP, side="right")) - 1, 0)
    last = int(np.searchsorted(-above, -dropped, side="left"))
    kept = counts[first : last + 1]
    chosen = np.linspace(0, len(kept) - 1, min(len(kept), _MOST_SHIFTS))
    selected: IntArray = kept[np.ceil(chosen).astype(np.int64)]
    return selected
