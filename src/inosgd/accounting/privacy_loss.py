"""Privacy-loss accounting: an upper bound on the whole privacy profile of composed mechanisms, in milliseconds.

A step shows its observer Q = N(0, z²), the example left out, or P = (1 - q) N(0, z²) + q N(1, z²), the example
eligible. The privacy loss is log(P / Q) under P for removal and log(Q / P) under Q for addition. Losses of steps
add, and

    δ(ε) = E[max(0, 1 - exp(ε - loss))].

Every approximation errs to the private side:

1. Outcomes are cut into cells. The mass of a cell, of losses between l and l', is replaced by two atoms at l and
   l' with the same P- and Q-mass: a spread that keeps the mean of exp(-loss), hence can only raise δ at every ε,
   also after composition ("connect the dots", Doroshenko et al. 2022). Each atom is then spread in the same way
   over the two nearest points of a regular grid. Outcomes beyond the outermost cells lose everything.
2. Rounding errors of the normal distribution function, of losses and of the two splits are bounded, and added to
   the mass that moves up.
3. Atoms are tilted by exp(λ loss), normalised, convolved by FFT in a window with a Chernoff bound on what is
   outside, and tilted back. An error of total mass B under the tilted law is at most B exp(K(λ) - λ ε) in δ(ε),
   where K is the log moment generating function of the composed loss. B covers the window and the FFT; the
   product is added to δ. It shrinks with δ, so deltas below the rounding error of an FFT remain meaningful.
   Where nearly all mass is one atom, it is kept out of the FFT, whose error then shrinks with the rest.
4. δ is kept at the points of the grid and is linear in exp(ε) between them; the true profile is convex in exp(ε).
5. No δ exceeds the total-variation distance of all steps (`inosgd.accounting.total_variation`).

>>> profile = compose([SampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, steps=1000)])
>>> round(profile.epsilon(1e-5), 3)
1.828
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr, ndtri

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting.total_variation import composed_distance, shift_distance
from inosgd.errors import InvalidArgumentError

RESOLUTION = 0.03
"""Grid spacing over the standard deviation of a step's loss; epsilon is then about 0.0075% too large."""

_UNIT = float(np.finfo(np.float64).eps)
_OUTSIDE_MASS = 1e-18  # of all steps together: outcomes that are taken to lose everything
_WINDOW_MASS = 1e-14  # under the tilted law, on either side of the FFT window
_TILT_EXPONENT = 4.5  # the tilted law is centred about 3 standard deviations up, where deltas of interest lie
_MOST_WIDENING = 3.0  # of the variance, by tilting
_CELL_WIDTH = 0.01  # in standard deviations of the noise, divided by the largest shift where that exceeds z
_MOST_CELLS = 2**14
_MOST_STEP_POINTS = 2**16
_MOST_WINDOW_POINTS = 2**21
_RARE = 0.2  # composition keeps the largest atom apart if the others have at most this mass,
_MOST_RARE = 100.0  # and at most this after all steps
_VANISHING = 1e-30  # spectra below this are taken to be 0
_LEAST_SPACING = 1e-10  # keeps indices exact as floating-point numbers
_SMALLEST_ATOM = 1e-100  # smaller atoms are taken to lose everything; subnormal numbers are slow
_LARGEST_EXPONENT = 300.0


@dataclass(frozen=True)
class SampledGaussian:
    """Steps of the Poisson-sampled Gaussian mechanism, as one example sees them.

    Attributes:
        sampling_rate: q, the probability that the example takes part in a step; steps are independent.
        noise_multiplier: z, the noise scale over the most the example can move the sum. May be inf.
        steps: How many such steps.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int = 1

    def __post_init__(self) -> None:
        _validate.closed_unit(sampling_rate=self.sampling_rate)
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.whole(0, steps=self.steps)

    def as_mixture(self) -> GaussianMixture:
        """The same steps, as shifts by 0 and 1."""
        rate = float(self.sampling_rate)
        return GaussianMixture((0.0, 1.0), (1 - rate, rate), self.noise_multiplier, self.steps)


@dataclass(frozen=True)
class GaussianMixture:
    """Steps that show either N(0, z²) or a mixture of N(s, z²) over non-negative shifts s.

    Probability that is missing from 1 belongs to a shift about which nothing is assumed: it loses everything.

    Attributes:
        shifts: The distinct shifts, at least 0.
        probabilities: The probability of each; their sum is at most 1.
        noise_multiplier: z.
        steps: How many such steps.
    """

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]
    noise_multiplier: float
    steps: int = 1

    def __post_init__(self) -> None:
        _validate.same_length(shifts=self.shifts, probabilities=self.probabilities)
        _validate.non_negative(shifts=np.array(self.shifts))
        _validate.closed_unit(probabilities=np.array(self.probabilities))
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.whole(0, steps=self.steps)
        total = math.fsum(self.probabilities)
        if not 0 < total <= 1 + 4 * _UNIT:
            raise _validate.fail("sum(probabilities)", total, "give a sum greater than 0 and at most 1")

    def missing(self) -> float:
        """The probability about which nothing is assumed; what rounding leaves of a sum to 1 is none."""
        missing = 1 - math.fsum(self.probabilities)
        return missing if missing > 4 * _UNIT else 0.0

    def distance(self) -> float:
        """The total-variation distance of one step is at most this: each shift's own, by its probability."""
        each = shift_distance(np.array(self.shifts), np.full(len(self.shifts), self.noise_multiplier))
        return math.fsum([*(each * np.array(self.probabilities)).tolist(), self.missing()])

    def reveals_nothing(self) -> bool:
        """Whether both hypotheses look the same."""
        moves = any(s > 0 and p > 0 for s, p in zip(self.shifts, self.probabilities, strict=True))
        still = math.isinf(self.noise_multiplier) or not moves
        return self.steps == 0 or (still and self.missing() == 0)


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """An upper bound on δ(ε) for every ε, both for addition and for removal.

    Guarantee:
        The composed mechanism is (ε, ``delta(ε)``)-differentially private for every ε >= 0, and
        (``epsilon(δ)``, δ)-differentially private for every δ. A δ below what could be certified gives inf.

    Attributes:
        epsilons: Increasing knots. Between knots the bound is linear in exp(ε); below the first it is 1 and
            beyond the last it stays.
        deltas: The bound at each knot, never increasing.
    """

    epsilons: FloatArray
    deltas: FloatArray

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: FloatArray) -> FloatArray: ...
    def delta(self, epsilon: float | FloatArray) -> float | FloatArray:
        """The bound at ``epsilon``, which is at least 0."""
        _validate.non_negative(epsilon=epsilon)
        values = np.asarray(epsilon, dtype=np.float64)
        index = np.searchsorted(self.epsilons, values, side="right") - 1
        left, right = np.maximum(index, 0), np.minimum(index + 1, len(self.epsilons) - 1)
        width = self.epsilons[right] - self.epsilons[left]
        inside = np.clip(values - self.epsilons[left], 0.0, width)
        # (e^inside - 1) / (e^width - 1), without overflow
        whole = -np.expm1(-width)
        share = np.divide(np.exp(inside - width) * -np.expm1(-inside), whole, out=np.zeros_like(whole), where=whole > 0)
        between = self.deltas[left] - share * (self.deltas[left] - self.deltas[right])
        return _like(epsilon, np.where(index < 0, 1.0, between))

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: FloatArray) -> FloatArray: ...
    def epsilon(self, delta: float | FloatArray) -> float | FloatArray:
        """The smallest ε whose bound is at most ``delta``, in [0, 1]; inf where no knot's is."""
        _validate.closed_unit(delta=delta)
        targets = np.asarray(delta, dtype=np.float64)
        index = np.searchsorted(-self.deltas, -targets, side="left")
        right = np.minimum(index, len(self.deltas) - 1)
        left = np.maximum(right - 1, 0)
        drop = self.deltas[left] - self.deltas[right]
        share = np.divide(self.deltas[left] - targets, drop, out=np.ones_like(targets), where=drop > 0)
        share = np.clip(share, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            # log(1 + share (e^width - 1)), without overflow
            inside = np.logaddexp(np.log1p(-share), np.log(share) + self.epsilons[right] - self.epsilons[left])
        found = (self.epsilons[left] + inside) * (1 + 8 * _UNIT) + 4 * _UNIT
        found = np.where(index == 0, self.epsilons[0], found)
        return _like(delta, np.where(index == len(self.deltas), np.inf, found))


def compose(
    mechanisms: Iterable[SampledGaussian | GaussianMixture], *, resolution: float = RESOLUTION
) -> PrivacyProfile:
    """The privacy profile of ``mechanisms`` one after the other, each chosen in view of the previous releases.

    Guarantee:
        An upper bound for the addition and for the removal of an example; see the module's docstring for what is
        approximated and how each error is charged.

    ====================================  ==============================
    case                                  profile
    ====================================  ==============================
    no steps, q = 0 or z = inf            δ(ε) = 0 for every ε
    q = 1                                 the plain Gaussian mechanism
    δ below what could be certified       ε = inf
    ====================================  ==============================

    Args:
        mechanisms: In any order; equal ones are merged.
        resolution: Grid spacing over the root-mean-square standard deviation of a step's loss. Smaller is
            tighter and slower; every choice is an upper bound.
    """
    _validate.finite_positive(resolution=resolution)
    merged = _merge(mechanisms)
    if not merged:
        return PrivacyProfile(np.zeros(1), np.zeros(1))
    total_steps = sum(mixture.steps for mixture in merged)
    reach = -float(ndtri(_OUTSIDE_MASS / total_steps))
    cells = [_cut(mixture, reach) for mixture in merged]
    spacing = _spacing(cells, [mixture.steps for mixture in merged], resolution)
    curves = []
    for side in ("remove", "add"):
        losses = [_on_grid(cut, side, spacing, mixture.steps) for cut, mixture in zip(cells, merged, strict=True)]
        curves.append(_composed_curve(losses, spacing))
    profile = _upper_envelope(curves, spacing)
    distances = [np.array(mixture.distance()) for mixture in merged]
    furthest = composed_distance(distances, [mixture.steps for mixture in merged])
    return replace(profile, deltas=np.minimum(profile.deltas, furthest))


def _like(argument: float | FloatArray, values: FloatArray) -> float | FloatArray:
    return float(values) if np.ndim(argument) == 0 else values


def _merge(mechanisms: Iterable[SampledGaussian | GaussianMixture]) -> list[GaussianMixture]:
    """One mixture for each distinct step, with the steps added up; without those that reveal nothing."""
    steps: dict[GaussianMixture, int] = {}
    for mechanism in mechanisms:
        mixture = mechanism.as_mixture() if isinstance(mechanism, SampledGaussian) else mechanism
        if not mixture.reveals_nothing():
            single = replace(mixture, steps=1)
            steps[single] = steps.get(single, 0) + mixture.steps
    return [replace(single, steps=count) for single, count in steps.items()]


# Cells of outcomes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cells:
    """Outcomes of one step between increasing edges, where the loss log(P / Q) increases with the outcome.

    ``edge_losses`` and ``edge_errors`` have an entry for each edge. Masses have one for each cell, and errors bound
    their rounding; ``below`` and ``above`` are (P, Q) masses outside the edges, already raised by their errors.
    """

    edge_losses: FloatArray
    edge_errors: FloatArray
    p_mass: FloatArray
    p_error: FloatArray
    q_mass: FloatArray
    q_error: FloatArray
    below: tuple[float, float]
    above: tuple[float, float]
    missing: float


def _cut(mixture: GaussianMixture, reach: float) -> _Cells:
    """Cells that leave out the same tail at ``reach`` standard deviations on either side."""
    z = mixture.noise_multiplier
    present = np.array(mixture.probabilities) > 0
    shifts = np.array(mixture.shifts)[present] / z
    probabilities = np.array(mixture.probabilities)[present]
    length = 2 * reach + float(shifts.max())
    width = _CELL_WIDTH / max(1.0, float(shifts.max()))
    edges = np.linspace(-reach, reach + shifts.max(), min(math.ceil(length / width), _MOST_CELLS) + 1)
    losses, loss_errors = _log_ratio(edges, shifts, probabilities, mixture.missing())
    q_mass, q_error, q_ends = _normal_masses(edges)
    by_shift = [_normal_masses(edges - shift) if shift else (q_mass, q_error, q_ends) for shift in shifts.tolist()]
    return _Cells(
        edge_losses=losses,
        edge_errors=loss_errors,
        p_mass=_weighted(probabilities, [mass for mass, _, _ in by_shift]),
        p_error=_weighted(probabilities, [error for _, error, _ in by_shift]),
        q_mass=q_mass,
        q_error=q_error,
        below=(float(np.dot(probabilities, [ends[0] for _, _, ends in by_shift])), q_ends[0]),
        above=(float(np.dot(probabilities, [ends[1] for _, _, ends in by_shift])), q_ends[1]),
        missing=mixture.missing(),
    )


def _weighted(weights: FloatArray, rows: Sequence[FloatArray]) -> FloatArray:
    total = np.zeros_like(rows[0])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total += weight * row
    return total


def _log_ratio(
    t: FloatArray, shifts: FloatArray, probabilities: FloatArray, missing: float
) -> tuple[FloatArray, FloatArray]:
    """The loss log Σ p exp(s t - s² / 2), accurate also where it is close to 0, and a bound on its error."""
    exponents = np.outer(shifts, t) - (shifts**2 / 2)[:, None]
    log_terms = np.log(probabilities)[:, None] + exponents
    peak = log_terms.max(axis=0)
    terms = np.exp(log_terms - peak)
    far = peak + np.log(terms.sum(axis=0))
    excess = (probabilities[:, None] * np.expm1(np.minimum(exponents, 700.0))).sum(axis=0) - missing
    near = np.abs(excess) < 0.5
    losses = np.where(near, np.log1p(np.where(near, excess, 0.0)), far)
    magnitude = np.abs(np.outer(shifts, t)) + (shifts**2 / 2)[:, None]
    conditioning = (terms * magnitude).sum(axis=0) / terms.sum(axis=0)
    errors = 16 * _UNIT * (conditioning + np.abs(losses))
    return np.asarray(np.maximum.accumulate(losses)), errors


def _normal_masses(edges: FloatArray) -> tuple[FloatArray, FloatArray, tuple[float, float]]:
    """Standard normal mass of each cell, its error, and the masses below and above all cells.

    The distribution function errs by less than eps (1 + t²) relative to the smaller tail; four times that is
    assumed. Differences are taken in the smaller tail.
    """
    lower, upper = ndtr(edges), ndtr(-edges)
    error = 4 * _UNIT * (1 + edges**2) * np.minimum(lower, upper)
    mass = np.where(edges[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    ends = (float(lower[0] + error[0]), float(upper[-1] + error[-1]))
    return np.maximum(mass, 0.0), error[:-1] + error[1:], ends


# From cells to a grid ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _GridLoss:
    """The loss of one step, dominated by atoms at ``indices * spacing`` and at infinity; repeated ``steps`` times."""

    indices: IntArray
    weights: FloatArray
    infinite: float
    steps: int


def _spacing(cells: Sequence[_Cells], steps: Sequence[int], resolution: float) -> float:
    """Follows the spread of a step's loss; finer when few steps make that cheap, coarser where grids would burst.

    They would where a heavy tail reaches far beyond the spread, or after very many steps.
    """
    total = sum(steps)
    variance = sum(count * _variance(cut) for cut, count in zip(cells, steps, strict=True)) / total
    spread = math.sqrt(variance)
    widest = max(float(cut.edge_losses[-1] - cut.edge_losses[0]) for cut in cells)
    wanted = resolution * spread * min(1.0, math.sqrt(total / 100))
    coarse = max(widest / _MOST_STEP_POINTS, 20 * math.sqrt(total) * spread / _MOST_WINDOW_POINTS)
    return max(wanted, coarse * resolution / RESOLUTION, _LEAST_SPACING)


def _variance(cut: _Cells) -> float:
    middle = (cut.edge_losses[1:] + cut.edge_losses[:-1]) / 2
    mean = float((cut.p_mass * middle).sum())
    return float((cut.p_mass * (middle - mean) ** 2).sum())


def _on_grid(cut: _Cells, side: str, spacing: float, steps: int) -> _GridLoss:
    """Spread cells over the grid, in the direction given by ``side``."""
    if side == "remove":
        losses, weights = _end_atoms(
            cut.edge_losses, cut.edge_errors, (cut.p_mass, cut.p_error), (cut.q_mass, cut.q_error)
        )
        weights[0] += cut.below[0]
        infinite = cut.above[0] + cut.missing
    else:
        losses, weights = _end_atoms(
            -cut.edge_losses[::-1],
            cut.edge_errors[::-1],
            (cut.q_mass[::-1], cut.q_error[::-1]),
            (cut.p_mass[::-1], cut.p_error[::-1]),
        )
        weights[0] += cut.above[1]
        infinite = cut.below[1]
    return _grid_atoms(losses, weights, spacing, infinite, steps)


def _end_atoms(
    losses: FloatArray,
    loss_errors: FloatArray,
    numerator: tuple[FloatArray, FloatArray],
    denominator: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Atoms at the edges with the numerator and denominator mass of every cell, and errors moved up.

    The atom at the upper end l' of a cell with masses a and b gets (a - b e^l) / (1 - e^(l - l')). Edges that are
    wrong by e and e' change the quotient's upper part by at most a (e + e'); twice that is added.
    """
    (mass, mass_error), (other, other_error) = numerator, denominator
    scale = np.exp(np.minimum(losses[:-1], 700.0))
    raised = mass + mass_error
    edge_error = 2 * raised * (loss_errors[:-1] + loss_errors[1:])
    wanted = np.maximum(mass - other * scale, 0.0) + mass_error + other_error * scale + edge_error
    width = -np.expm1(losses[:-1] - losses[1:])
    upper = np.minimum(raised, np.divide(wanted, width, out=raised.copy(), where=width > wanted))
    weights = np.zeros(len(losses))
    weights[:-1] += raised - upper
    weights[1:] += upper
    return losses + loss_errors, weights


def _grid_atoms(losses: FloatArray, weights: FloatArray, spacing: float, infinite: float, steps: int) -> _GridLoss:
    """Spread each atom over its two neighbours on the grid, keeping the mean of exp(-loss)."""
    floors = np.floor(losses / spacing)
    share = np.expm1(floors * spacing - losses) / math.expm1(-spacing)
    share = np.clip(share + 8 * _UNIT * (1 + np.abs(floors)), 0.0, 1.0)
    lowest = int(floors.min())
    offsets = floors.astype(np.int64) - lowest
    size = int(offsets.max()) + 2
    dense = np.bincount(offsets, weights * (1 - share), size).astype(np.float64)
    dense += np.bincount(offsets + 1, weights * share, size)
    kept = np.flatnonzero(dense >= _SMALLEST_ATOM)
    return _GridLoss(kept + lowest, dense[kept], infinite + size * _SMALLEST_ATOM, steps)


# Composition -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Curve:
    """Upper bounds on δ at the grid points ``first``, ``first + 1``, ... ; before the first it is 1."""

    first: int
    deltas: FloatArray


def _composed_curve(losses: Sequence[_GridLoss], spacing: float) -> _Curve:
    steps = sum(loss.steps for loss in losses)
    law = _single_step(losses[0]) if steps == 1 else _convolve(losses)
    rounding = 1 + _UNIT * _roundings(law, losses)
    first = law.low if law.low > _MOST_STEP_POINTS else 0
    indices = np.arange(first, max(law.low + len(law.masses), first + 1))
    factors = np.exp(np.minimum(law.log_moment - law.tilt * indices, _LARGEST_EXPONENT))
    masses = np.zeros(len(indices))
    inside = law.masses[max(first - law.low, 0) :]
    where = slice(max(law.low - first, 0), max(law.low - first, 0) + len(inside))
    masses[where] = inside * factors[where]
    infinite = -math.expm1(sum(loss.steps * math.log1p(-min(loss.infinite, 1 - _UNIT)) for loss in losses))
    deltas = rounding * (_hockey_stick(masses, spacing) + infinite) + law.error * factors
    return _Curve(first, np.minimum(deltas, 1.0))


def _roundings(law: _TiltedLaw, losses: Sequence[_GridLoss]) -> float:
    """How many units of rounding, relative to δ, tilting, composing, tilting back and summing can lose."""
    count = len(law.masses)
    of_steps = sum(loss.steps * (64 + 4 * law.tilt * float(np.abs(loss.indices).max())) for loss in losses)
    return of_steps + 8 * count + 4 * (abs(law.log_moment) + law.tilt * (abs(law.low) + count))


@dataclass(frozen=True, eq=False)
class _TiltedLaw:
    """Masses of the composed loss at ``low``, ``low + 1``, ..., times exp(tilt * index - log_moment).

    ``error`` bounds the total mass of what is wrong with them.
    """

    low: int
    masses: FloatArray
    tilt: float
    log_moment: float
    error: float


def _single_step(loss: _GridLoss) -> _TiltedLaw:
    return _TiltedLaw(int(loss.indices[0]), _tilted(loss, 0.0), 0.0, _moment([loss], 0.0).value, 0.0)


def _convolve(losses: Sequence[_GridLoss]) -> _TiltedLaw:
    """The law of the sum, by FFT in a window.

    A transform of length N errs by at most ``unit = 2^-50 log2(2 N)`` at every frequency, eight roundings for each
    level of butterflies, and a power multiplies that by its exponent. The l1 norm of the error of the result is at
    most the l2 norm of the error of the spectrum. Mass outside the window is lost or folded into it; what is lost
    is part of the bound, and what is folded in only adds.
    """
    base = _useful_tilt(losses)
    low, high = _window(losses, base)
    longest = max(int(loss.indices[-1] - loss.indices[0]) for loss in losses) + 1
    size = next_fast_len(max(high - low + 1, longest), real=True)
    laws = [_tilted(loss, base.tilt, value) for loss, value in zip(losses, base.of_steps, strict=True)]
    steps = [loss.steps for loss in losses]
    if _is_rare(laws, steps):
        start, circular, error = _rare_powers(laws, steps, size)
    else:
        start, circular, error = 0, *_powers(laws, steps, size)
    start += sum(loss.steps * int(loss.indices[0]) for loss in losses)
    masses = np.roll(circular, -((low - start) % size))[: high - low + 1]
    return _TiltedLaw(low, np.maximum(masses, 0.0), base.tilt, base.value, error + 2 * _WINDOW_MASS)


def _powers(laws: Sequence[FloatArray], steps: Sequence[int], size: int) -> tuple[FloatArray, float]:
    """The laws composed ``steps`` times on a circle, and the l2 norm of the spectrum's error.

    Half of the spectrum is stored, hence the 2.
    """
    unit = 4 * _UNIT * math.log2(2 * size)
    transforms = [rfft(law, size) for law in laws]
    bounds = [np.abs(transform) + unit for transform in transforms]
    magnitude = np.exp(sum(count * np.log(bound) for count, bound in zip(steps, bounds, strict=True)))
    relative_error = 1 + sum(count / bound for count, bound in zip(steps, bounds, strict=True))
    error = unit * math.sqrt(2 * float(np.sum((relative_error * magnitude) ** 2)))
    matters = magnitude > _VANISHING  # few frequencies do, and powers are slow
    spectrum = matters.astype(np.complex128)
    for count, transform in zip(steps, transforms, strict=True):
        spectrum[matters] *= transform[matters] ** count
    return irfft(spectrum, size), error + size * _VANISHING


def _is_rare(laws: Sequence[FloatArray], steps: Sequence[int]) -> bool:
    """Whether most steps lie in one atom of their law, and few enough do not for exponentials to stay in range."""
    rest = [1 - float(law.max()) for law in laws]
    return max(rest) <= _RARE and sum(count * each for count, each in zip(steps, rest, strict=True)) <= _MOST_RARE


def _rare_powers(laws: Sequence[FloatArray], steps: Sequence[int], size: int) -> tuple[int, FloatArray, float]:
    """`_powers` of laws that have most of their mass c in one atom, which is left out of what is transformed.

    With the atom at 0 and r^ the transform of the rest, the composed law is the atom c^T and the inverse of

        c^T (exp(w) - 1),    w = T log(1 + r^ / c),

    summed over the laws. The rest of mass R gives r^ with an error of ``unit`` R only, and w with one of
    e = 2 T unit R / (c - R) with the roundings of the logarithm. As c^T |exp(w)| <= 1, the spectrum errs by about e,
    and not by T ``unit``: what is hardly ever sampled keeps its digits.

    Returns:
        How far the atom lies from the laws' first entries after all steps, the composed law from the atom on, and the
        l2 norm of the spectrum's error.
    """
    unit = 4 * _UNIT * math.log2(2 * size)
    shift, exponent, log_atom, error = 0, np.zeros(size // 2 + 1, dtype=np.complex128), 0.0, 0.0
    for law, count in zip(laws, steps, strict=True):
        place = int(np.argmax(law))
        atom, rest = float(law[place]), law.copy()
        rest[place] = 0.0
        around = np.zeros(size)
        around[: len(rest)] = rest
        exponent += count * _log1p(rfft(np.roll(around, -place)) / atom)
        error += 2 * unit * count * float(rest.sum()) / (atom - float(rest.sum()))
        shift, log_atom = shift + count * place, log_atom + count * math.log(atom)
    spectrum = math.exp(log_atom) * _expm1(exponent)
    magnitude = np.exp(log_atom + exponent.real) + error
    circular = irfft(spectrum, size)
    circular[0] += math.exp(log_atom)
    return shift, circular, math.sqrt(2 * float(np.sum((unit * np.abs(spectrum) + 1.1 * error * magnitude) ** 2)))


def _log1p(x: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    """log(1 + x), accurate relative to x, which numpy's is not for complex numbers."""
    real, imaginary = x.real, x.imag
    return np.asarray(
        0.5 * np.log1p(2 * real + real**2 + imaginary**2) + 1j * np.arctan2(imaginary, 1 + real), dtype=np.complex128
    )


def _expm1(x: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    """exp(x) - 1, accurate relative to x."""
    cosine_less_1 = -2 * np.sin(x.imag / 2) ** 2
    grown = np.expm1(x.real)
    return np.asarray(grown + cosine_less_1 * (1 + grown) + 1j * (1 + grown) * np.sin(x.imag), dtype=np.complex128)


@dataclass(frozen=True)
class _Moment:
    """K(tilt) = log E[exp(tilt * index)] of the composed loss without its infinite part, and two derivatives.

    ``of_steps`` are the values for one step of each law.
    """

    tilt: float
    value: float
    mean: float
    variance: float
    of_steps: tuple[float, ...]


def _moment(losses: Sequence[_GridLoss], tilt: float) -> _Moment:
    value = mean = variance = 0.0
    of_steps = []
    for loss in losses:
        exponents = tilt * loss.indices
        peak = float(max(exponents[0], exponents[-1]))
        tilted = loss.weights * np.exp(np.maximum(exponents - peak, -_LARGEST_EXPONENT))
        total = float(np.add.reduce(tilted))
        # sums of products, not dot products: BLAS would start threads, which costs more than the sum
        centre = float(np.add.reduce(tilted * loss.indices)) / total
        of_steps.append(peak + math.log(total))
        value += loss.steps * of_steps[-1]
        mean += loss.steps * centre
        variance += loss.steps * float(np.add.reduce(tilted * (loss.indices - centre) ** 2)) / total
    return _Moment(tilt, value, mean, variance, tuple(of_steps))


def _useful_tilt(losses: Sequence[_GridLoss]) -> _Moment:
    """A tilt towards the deltas of interest: exp(``_TILT_EXPONENT``) bounds what it amplifies below the mean.

    Rarely sampled examples with little noise have a heavy tail, and tilting far into it would need a huge window:
    the tilt is reduced until it does not widen the law much. Any value is valid.
    """
    plain = _moment(losses, 0.0)
    tilt = math.sqrt(2 * _TILT_EXPONENT / max(plain.variance, 1e-12))
    for _ in range(60):
        found = _moment(losses, tilt)
        if found.value - tilt * plain.mean < 1.2 * _TILT_EXPONENT and found.variance < _MOST_WIDENING * plain.variance:
            break
        tilt *= 0.8
    return found


def _chernoff(losses: Sequence[_GridLoss], base: _Moment, exponent: float) -> float:
    """The index beyond which the law that ``base`` tilts has at most exp(-|exponent|): above it, or below if negative.

    By Chernoff's bound at a change of tilt that is nearly best. Best is where the change times the new mean exceeds
    the growth of K by the exponent; the excess increases with the change. Any change is valid.
    """
    wanted, sign = abs(exponent), math.copysign(1.0, exponent)
    low, high = 0.0, math.inf
    proposal = math.sqrt(2 * wanted / max(base.variance, 1e-12))
    for _ in range(40):
        change = proposal
        found = _moment(losses, base.tilt + sign * change)
        reached = sign * change * found.mean - (found.value - base.value)
        if 0.7 * wanted < reached < 1.4 * wanted:
            break
        low, high = (change, high) if reached < wanted else (low, change)
        guess = change * min(4.0, math.sqrt(wanted / max(reached, 1e-12)))
        proposal = guess if low < guess < high else (low + high) / 2
    return (found.value - base.value + wanted) / (sign * change)


def _window(losses: Sequence[_GridLoss], base: _Moment) -> tuple[int, int]:
    """Indices outside of which the tilted law has at most ``_WINDOW_MASS`` on either side (Chernoff)."""
    exponent = -math.log(_WINDOW_MASS)
    high, low = _chernoff(losses, base, exponent), _chernoff(losses, base, -exponent)
    least = sum(loss.steps * int(loss.indices[0]) for loss in losses)
    most = sum(loss.steps * int(loss.indices[-1]) for loss in losses)
    return max(math.floor(low), least), min(math.ceil(high), most)


def _tilted(loss: _GridLoss, tilt: float, value: float | None = None) -> FloatArray:
    """One step's law, tilted and normalised, from its lowest index on; ``value`` is its log moment, if known."""
    value = _moment([replace(loss, steps=1)], tilt).value if value is None else value
    law = np.zeros(int(loss.indices[-1] - loss.indices[0]) + 1)
    exponents = np.maximum(tilt * loss.indices - value, -_LARGEST_EXPONENT)
    law[loss.indices - loss.indices[0]] = loss.weights * np.exp(exponents)
    return law


def _hockey_stick(masses: FloatArray, spacing: float) -> FloatArray:
    """δ at each point of a grid that carries ``masses``, by a recursion in which nothing cancels.

    δ(i - 1) = e^-h δ(i) + (1 - e^-h) Σ_{j >= i} mass(j), and δ is 0 at the last point.
    """
    from scipy.signal import lfilter  # takes scipy.stats with it: commands that account for nothing need not wait

    above = np.cumsum(masses[:0:-1])
    decay = math.exp(-spacing)
    deltas = lfilter([1.0], [1.0, -decay], -math.expm1(-spacing) * above)
    return np.append(np.asarray(deltas, dtype=np.float64)[::-1], 0.0)


def _upper_envelope(curves: Sequence[_Curve], spacing: float) -> PrivacyProfile:
    """The larger of the curves at every knot, as a profile."""
    first = min(curve.first for curve in curves)
    last = max(curve.first + len(curve.deltas) for curve in curves)
    deltas = np.zeros(last - first)
    for curve in curves:
        start = curve.first - first
        padded = np.full(len(deltas), curve.deltas[-1])
        padded[:start] = 1.0
        padded[start : start + len(curve.deltas)] = curve.deltas
        deltas = np.maximum(deltas, padded)
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]
    if not np.isfinite(deltas).all():
        raise InvalidArgumentError("mechanisms: their privacy loss is beyond floating point; use more noise")
    return PrivacyProfile(spacing * np.arange(first, last, dtype=np.float64), deltas)
