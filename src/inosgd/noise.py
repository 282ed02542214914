"""Noise: Gaussian numbers from a source of random words, as they come or exactly rounded to whole numbers.

`rounded_gaussian` is what releases are made of (`inosgd.mechanism.release`). `gaussian` is for experiments that compare
many trainings and publish none.
"""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import torch

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd._decimals import decimals
from inosgd.randomness import RandomSource, WordArray, uniforms

LongArray = npt.NDArray[np.longdouble]

LARGEST_SCALE = 2.0**40
"""Beyond this scale too many roundings would need more than float64 to be decided."""

_FLOAT_ERROR = 2.0**-47
"""Bounds the error of a standard normal number computed in float64, relative to 1 + radius; measured: an eighth."""

_CELL = 2.0**-52
"""The width of the cells in which the fast path knows its uniform numbers."""

_EXTENDED_ERROR, _EXTENDED_CELL = 2.0**-58, 2.0**-63
"""The same of the second look, in floats of 64 digits; measured: an eighth."""

_BLOCK = 1 << 15
"""How many numbers are made at once: few enough to stay in the processor's cache."""

_DIGITS = 60
_TURN = np.longdouble("6.28318530717958647692528676655900577")
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
_MORE_WORDS = 2
"""How many further words make a uniform number precise where 52 bits do not decide: 192 bits in all."""


def gaussian(source: RandomSource, count: int, scale: float) -> torch.Tensor:
    """``count`` independent normal numbers with mean 0 and standard deviation ``scale``, in float64.

    By Box and Muller's method on uniform midpoints of 2^52 cells: the distribution is the normal one up to
    the rounding of float64, cut at 8.57 standard deviations (a two-sided mass of 1e-17).

    Guarantee: none for a release. Which floating-point numbers can occur as a sum plus such noise depends on the sum:
    a party that sees every bit can often tell two sums apart by a single number. Use `rounded_gaussian`.
    """
    _validate.whole(0, count=count)
    _validate.non_negative(noise_scale=scale)
    half = (count + 1) // 2
    drawn = torch.from_numpy(uniforms(source, 2 * half)).reshape(2, half)
    radius = torch.sqrt(-2.0 * torch.log(drawn[0])) * scale
    angle = drawn[1] * (2.0 * math.pi)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count]


def rounded_gaussian(source: RandomSource, count: int, scale: float) -> torch.Tensor:
    """``count`` independent normal numbers N of standard deviation ``scale``, each rounded to the nearest whole number.

    Let U and V be uniform real numbers of which only the first bits have been drawn. Then

        N = scale sqrt(-2 ln U) cos(2 pi V)    and    N' = scale sqrt(-2 ln U) sin(2 pi V)

    are independent and normal. From 52 bits of U and V, float64 gives N up to an error of at most

        e = scale (2^-47 (1 + r) + 2^-52 / (u r)),    r = sqrt(-2 ln u),

    the first part for the roundings of float64, the second for the bits not drawn yet. If N stays on one side of
    every half-integer within e, its rounding is known, whatever the further bits are. If not (1 in 80,000 at a
    scale of 2^28), N is computed from 63 bits in extended precision, where the processor has it, with an e that is 2^11
    times smaller. If that does not decide either, 192 bits of U and V are looked at and N is computed to 60 digits.

    Guarantee:
        The numbers are distributed as roundings of real Gaussian ones, also in the tails, up to a total-variation
        distance of at most 2^-120 per number: that is how often 192 bits and 60 digits leave a rounding undecided. It
        is assumed that the libraries' log, sqrt, cos and sin err by at most a few units in the last place. As
        unpredictable as ``source``. How long this takes depends on the noise alone.

    Returns:
        Whole numbers in float64, each exact.
    """
    _validate.whole(0, count=count)
    _validate.finite_positive(scale=scale)
    if not scale <= LARGEST_SCALE:
        raise _validate.fail("scale", scale, f"give at most {LARGEST_SCALE:g}: use a coarser grid")
    numbers = torch.empty(count, dtype=torch.float64, device="cpu")
    for block in torch.split(numbers, _BLOCK) if count else ():
        block.copy_(_rounded_block(source, len(block), scale))
    return numbers


def _rounded_block(source: RandomSource, count: int, scale: float) -> torch.Tensor:
    half = (count + 1) // 2
    words = source.words(2 * half).reshape(2, half)
    values, error = _first_look(words, scale)
    nearest = torch.round(values)
    farthest = values.sub_(nearest).abs_().add_(error)
    if float(farthest.max()) >= 0.5:
        pairs = np.flatnonzero((farthest >= 0.5).any(0).numpy())
        more = source.words(2 * _MORE_WORDS * len(pairs)).reshape(2, len(pairs), _MORE_WORDS)
        decided = _second_look(words[:, pairs], more, scale).astype(np.float64)
        nearest[:, torch.from_numpy(pairs)] = torch.from_numpy(decided)
    return nearest.reshape(-1)[:count]


def _first_look(words: WordArray, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Both numbers of every pair in float64, and how far from the truth they may be."""
    drawn = torch.from_numpy(_midpoints(words))
    radius = torch.log(drawn[0]).mul_(-2.0).sqrt_()
    error = (drawn[0] * radius).reciprocal_().mul_(_CELL * scale)
    error.add_(radius, alpha=_FLOAT_ERROR * scale).add_(_FLOAT_ERROR * scale)
    angle, values = drawn[1].mul_(2.0 * math.pi), torch.empty_like(drawn)
    torch.cos(angle, out=values[0])
    torch.sin(angle, out=values[1])
    return values.mul_(radius.mul_(scale)), error


def _midpoints(words: WordArray) -> FloatArray:
    """The midpoints of the cells that the first 52 bits name: `inosgd.randomness.uniforms`, made from bits.

    With the exponent of 1 in front, 52 bits are the number 1 + k 2^-52. What is taken from it leaves (k + 1/2) 2^-52,
    a float64, so that nothing is rounded.
    """
    bits = words >> np.uint64(12)
    bits |= np.uint64(0x3FF0000000000000)
    numbers = bits.view(np.float64)
    numbers -= 1.0 - 2.0**-53
    return numbers


def _second_look(words: WordArray, more: WordArray, scale: float) -> LongArray:
    """The same pairs, rounded: in extended precision where that decides, else from 192 bits."""
    if 1 + np.longdouble(2) ** -63 == 1:  # it may be missing, or switched off
        return _last_look(words, more, scale)
    values, error = _extended(words, scale)
    rounded = np.rint(values)
    undecided = np.flatnonzero((np.abs(values - rounded) + error >= 0.5).any(0))
    rounded[:, undecided] = _last_look(words[:, undecided], more[:, undecided], scale)
    return rounded


def _extended(words: WordArray, scale: float) -> tuple[LongArray, LongArray]:
    """`_first_look` on the midpoints (2k + 1) 2^-64 of the cells that the first 63 bits name: each is exact."""
    first, second = np.ldexp((words | np.uint64(1)).astype(np.longdouble), -64)
    radius = np.sqrt(-2 * np.log(first))
    error = scale * (_EXTENDED_ERROR * (1 + radius) + _EXTENDED_CELL / (first * radius))
    return scale * radius * np.stack([np.cos(_TURN * second), np.sin(_TURN * second)]), error


def _last_look(words: WordArray, more: WordArray, scale: float) -> LongArray:
    """The same pairs from 192 bits and in 60 digits, rounded."""
    rounded = np.empty(words.shape, np.longdouble)
    with decimals(_DIGITS):
        for pair in range(words.shape[1]):
            first, second = (_uniform([words[which, pair], *more[which, pair]]) for which in (0, 1))
            radius = (-2 * first.ln()).sqrt() * Decimal(scale)
            rounded[:, pair] = [int((radius * part).to_integral_value()) for part in _cosine_and_sine(second)]
    return rounded


def _uniform(words: list[np.uint64]) -> Decimal:
    """The midpoint of the cell that all bits of ``words`` name."""
    bits = 0
    for word in words:
        bits = bits << 64 | int(word)
    return Decimal(2 * bits + 1) / Decimal(2 ** (64 * len(words) + 1))


def _cosine_and_sine(turns: Decimal) -> tuple[Decimal, Decimal]:
    """Of 2 pi ``turns``, by the power series; between -pi and pi it loses fewer than two digits."""
    angle = 2 * _PI * (turns - 1 if turns > Decimal("0.5") else turns)
    term, sums, power = Decimal(1), [Decimal(0), Decimal(0)], 0
    while abs(term) > Decimal(10) ** -_DIGITS or power < 8:
        sums[power % 2] += term if power % 4 < 2 else -term
        power += 1
        term *= angle / power
    return sums[0], sums[1]
