"""Noise: Gaussian vectors from a source of random words."""

from __future__ import annotations

import math

import torch

from inosgd import _validate
from inosgd.randomness import RandomSource, uniforms


def gaussian(source: RandomSource, count: int, scale: float) -> torch.Tensor:
    """``count`` independent normal numbers with mean 0 and standard deviation ``scale``, in float64.

    By Box and Muller's method on uniform midpoints of 2^52 cells: the distribution is the normal one up to
    the rounding of float64, cut at 8.57 standard deviations (a two-sided mass of 1e-17).

    Guarantee:
        As unpredictable as ``source``. The low-order bits of floating-point noise are not those of a real
        Gaussian, which an attacker who sees every bit of a release may use; see the known limitations.
    """
    _validate.whole(0, count=count)
    _validate.non_negative(noise_scale=scale)
    half = (count + 1) // 2
    drawn = torch.from_numpy(uniforms(source, 2 * half)).reshape(2, half)
    radius = torch.sqrt(-2.0 * torch.log(drawn[0])) * scale
    angle = drawn[1] * (2.0 * math.pi)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count]
