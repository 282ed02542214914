"""Saddle points: epsilon of many owners at once, nearly. An estimate to start from, and no bound.

With K(s) = log E[exp(s loss)] of all steps together and F(s) = K(s) - s epsilon - log s - log(1 + s),

    delta(epsilon) = 1 / (2 pi i)  integral of exp(F(s)) ds

along any vertical line with a positive real part (Alghamdi et al. 2022, arXiv 2208.09595). The line is laid through the
saddle point t, where F'(t) = 0 and where the integrand falls off fastest. Mostly it falls off like a Gaussian, and

    delta ~ exp(F) / sqrt(2 pi F'')  (1 + F'''' / (8 F''^2) - 5 F'''^2 / (24 F''^3)).

Where rare and large losses decide, the second term is not small, and the integral is summed. No plan rests on it:
whatever is found with it, the accountant evaluates.

>>> one = Exposures(np.array([0.0128]), np.array([2.0]), 1000)
>>> estimated_epsilons([one], np.array([1e-5]), near=np.array([0.8])).round(3)
array([0.815])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.accounting import Exposures

_POINTS = 192
_REACH = 9.0  # standard deviations on either side
_BLOCK_ROWS = 64  # what is worked on then stays in the cache
_MOST_ITERATIONS = 20
_CLOSE = 0.02  # of log t; the line need not meet the saddle point exactly
_LOWEST, _HIGHEST = 1e-4, 1e7  # of t
_LARGEST_CORRECTION = 0.01
_FREQUENCIES = 192
_PERIOD = 22.0  # standard deviations of the tilted loss


def estimated_epsilons(exposures: Sequence[Exposures], deltas: FloatArray, near: FloatArray) -> FloatArray:
    """About the epsilon of each owner's composed exposures at its delta, for the removal of an example; at least 0.

    It is read from the line through log delta at the epsilon ``near``, so it is best where it is close to that.

    ======================================  =====
    case                                    value
    ======================================  =====
    nothing sampled, or z = inf             0
    sampled without noise                   inf
    ======================================  =====
    """
    estimates = np.empty(len(deltas))
    for start in range(0, len(deltas), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        part = [Exposures(rates[block], multipliers[block], steps) for rates, multipliers, steps in exposures]
        estimates[block] = _estimated(part, np.log(deltas[block]), near[block])
    return estimates


def _estimated(exposures: Sequence[Exposures], log_deltas: FloatArray, near: FloatArray) -> FloatArray:
    bare = np.any([(rates > 0) & (multipliers == 0) for rates, multipliers, _ in exposures], axis=0)
    noisy = [Exposures(rates, np.where(rates * ~bare > 0, z, np.inf), steps) for rates, z, steps in exposures]
    squared = np.sum([steps * q**2 * np.expm1(np.minimum(1 / z**2, 50.0)) for q, z, steps in noisy], axis=0)
    laws = [(one.steps, *_losses(one)) for one in noisy]
    t, cumulants = _saddle_points(laws, near, np.clip(near / np.maximum(squared, 1e-12), 0.1, 1e3))
    log_delta = _log_delta(laws, near, t, cumulants)
    estimates = np.where(squared > 0, np.maximum(near + (log_delta - log_deltas) / t, 0.0), 0.0)
    return np.where(bare, np.inf, estimates)


_Law = tuple[int, FloatArray, FloatArray]
"""How many steps, and the losses of one and the logarithms of their weights, a row for each owner."""


def _losses(exposures: Exposures) -> tuple[FloatArray, FloatArray]:
    """Losses at points from 9 standard deviations below 0 to 9 above 1 / z, and log weights under Q."""
    rates, z = exposures.sampling_rates[:, None], exposures.noise_multipliers[:, None]
    width = (2 * _REACH + 1 / z) / (_POINTS - 1)
    x = width * np.arange(_POINTS) - _REACH
    exponents = x / z - 1 / (2 * z**2)
    with np.errstate(divide="ignore"):
        near = np.log1p(rates * np.expm1(np.minimum(exponents, 1.0)))
        far = np.logaddexp(np.log1p(-rates), np.log(rates) + exponents)
    losses = np.maximum(np.where(exponents < 1, near, far), -700.0)
    return losses, np.log(width / math.sqrt(2 * math.pi)) - x**2 / 2


def _saddle_points(laws: Sequence[_Law], epsilons: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nearly where F' = 0, by Newton's method on log t within a shrinking bracket, and K and its derivatives there."""
    t, low, high = start, np.full(len(start), _LOWEST), np.full(len(start), _HIGHEST)
    for _ in range(_MOST_ITERATIONS):
        cumulants = np.sum([steps * _cumulants(losses, log_weights, t) for steps, losses, log_weights in laws], axis=0)
        slope = cumulants[1] - epsilons - 1 / t - 1 / (1 + t)
        step = -slope / (t * (cumulants[2] + t**-2 + (1 + t) ** -2))
        if np.abs(step).max() < _CLOSE:
            break
        low, high = np.where(slope < 0, t, low), np.where(slope < 0, high, t)
        proposal = t * np.exp(np.clip(step, -1.5, 1.5))
        t = np.where((proposal > low) & (proposal < high), proposal, np.sqrt(low * high))
    return t, cumulants


def _cumulants(losses: FloatArray, log_weights: FloatArray, t: FloatArray) -> FloatArray:
    """K(t) of one step and four derivatives, a row for each; P has the weights of Q times exp(loss)."""
    law, total = _tilted(losses, log_weights, t)
    mean = (law * losses).sum(axis=1, keepdims=True)
    centred = losses - mean
    moments = []
    for _ in range(4):
        law *= centred
        moments.append(law.sum(axis=1))
    _, second, third, fourth = moments
    return np.array([total, mean[:, 0], second, third, fourth - 3 * second**2])


def _tilted(losses: FloatArray, log_weights: FloatArray, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The law tilted by exp(t loss), and the logarithm of its mass before it was normalised."""
    exponents = log_weights + (1 + t)[:, None] * losses
    peak = exponents.max(axis=1)
    law = np.exp(exponents - peak[:, None])
    total = law.sum(axis=1)
    return law / total[:, None], peak + np.log(total)


def _log_delta(laws: Sequence[_Law], epsilons: FloatArray, t: FloatArray, cumulants: FloatArray) -> FloatArray:
    """log delta(epsilon) from what holds near the saddle point; by the integral where that is not enough for a row."""
    value, first, second, third, fourth = cumulants
    slope, second = first - epsilons - 1 / t - 1 / (1 + t), second + t**-2 + (1 + t) ** -2
    third, fourth = third - 2 * t**-3 - 2 * (1 + t) ** -3, fourth + 6 * t**-4 + 6 * (1 + t) ** -4
    correction = fourth / (8 * second**2) - 5 * third**2 / (24 * second**3)
    peak = value - t * epsilons - np.log(t) - np.log1p(t)
    log_delta: FloatArray = peak - slope**2 / (2 * second) - np.log(2 * np.pi * second) / 2
    log_delta += np.log1p(np.maximum(correction, -0.5))
    rows = np.flatnonzero(np.abs(correction) > _LARGEST_CORRECTION)
    if len(rows):
        some = [(steps, losses[rows], log_weights[rows]) for steps, losses, log_weights in laws]
        log_delta[rows] = peak[rows] + _log_integral(some, epsilons[rows], t[rows], cumulants[2][rows])
    return log_delta


def _log_integral(laws: Sequence[_Law], epsilons: FloatArray, t: FloatArray, variance: FloatArray) -> FloatArray:
    """The logarithm of the integral over exp(F(t)), by the trapezoid rule on the upper half of the line."""
    width = 2 * np.pi / (_PERIOD * np.sqrt(np.maximum(variance, 1e-12)))
    s = t[:, None] + 1j * width[:, None] * np.arange(_FREQUENCIES)
    values = np.exp((t[:, None] - s) * epsilons[:, None]) * (t * (1 + t))[:, None] / (s * (1 + s))
    for steps, losses, log_weights in laws:
        turned = _tilted(losses, log_weights, t)[0].astype(np.complex128)
        turn = np.exp(1j * width[:, None] * losses)
        for column in range(_FREQUENCIES):
            values[:, column] *= turned.sum(axis=1) ** steps
            turned *= turn
    values[:, 0] /= 2
    logarithms: FloatArray = np.log(np.maximum(values.real.sum(axis=1) * width / np.pi, 1e-300))
    return logarithms
