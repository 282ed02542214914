"""The filter: which charges an account allows, and by which theorem.

Trainings are chosen in view of earlier ones and run at the same time. An account therefore has one Rényi order α, fixed
when it opens, and a *room*: the divergence R of that order that its budget (ε, δ) allows,

    R = ε - log(1 - 1/α) + log(δ α) / (α - 1),

the conversion of `inosgd.accounting.renyi` solved for the divergence. A release with divergence D at order α is allowed
while the divergences of all releases so far and D add up to at most R.

Theorem:
    Let releases be chosen one after the other, each in view of all earlier outcomes, and let each be charged, before
    its noise is drawn, a bound on its divergence at order α. If the charges never add up to more than R, all
    releases together have Rényi divergence at most R at order α: the Rényi filter of Feldman and Zrnic (2021,
    "Individual privacy accounting via a Rényi filter"). It is applied to each owner's units alone, as they do.
    Steps of trainings that run at the same time are one such sequence, in the order in which they happen.
    For mechanisms that are interactive in themselves, filters of a fixed Rényi order hold as well (Haney et al. 2023,
    "Concurrent composition for interactive differential privacy with adaptive privacy-loss parameters").

Divergences are counted in whole units of 1e-12. Prices are rounded up and rooms down, so that sums are exact: what is
reserved, charged and given back leaves no rounding behind.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inosgd._arrays import FloatArray, IntArray, by_key
from inosgd.accounting.reference import ORDERS
from inosgd.accounting.renyi import renyi_divergences
from inosgd.errors import InvalidArgumentError

UNIT = 1e-12
"""Of Rényi divergence."""

LARGEST = 1 << 60
"""No price of a release and no room is above this many units; sums of a few stay within 64 bits."""

_ROUNDING = 1e-12  # relative: far more than the arithmetic here can lose


def offsets(orders: npt.ArrayLike, deltas: npt.ArrayLike) -> FloatArray:
    """ε - D of the conversion from a divergence D of order α to ε at δ, rounded up."""
    alphas, targets = np.asarray(orders, dtype=np.float64), np.asarray(deltas, dtype=np.float64)
    exact = np.log1p(-1 / alphas) - (np.log(targets) + np.log(alphas)) / (alphas - 1)
    found: FloatArray = exact + _ROUNDING * np.abs(exact)
    return found


def best_orders(epsilons: FloatArray, deltas: FloatArray) -> IntArray:
    """For each budget the whole order at which most Gaussian releases fit.

    k releases of a Gaussian mechanism of noise multiplier z have divergence α k / (2 z²), so that the order with the
    largest R / α allows most of them. Sampled mechanisms with a noise multiplier of about 1 or more are close to that;
    with much less noise a smaller order is better.

    Raises:
        InvalidArgumentError: For a budget that no order up to 8,192 can certify.
    """
    best, value = np.zeros(len(epsilons), dtype=np.int64), np.zeros(len(epsilons))
    for order in ORDERS:
        room_per_order = (epsilons - offsets(order, deltas)) / order
        better = room_per_order > value
        best[better], value[better] = order, room_per_order[better]
    if not best.all():
        worst = int(np.argmin(best))
        raise InvalidArgumentError(
            f"epsilon={epsilons[worst]:g} at delta={deltas[worst]:g}: no order up to {ORDERS[-1]} certifies so little; "
            "ask for a larger budget"
        )
    return best


def rooms(epsilons: FloatArray, deltas: FloatArray, orders: IntArray) -> IntArray:
    """The units that budgets allow at their orders, rounded down; 0 where a lowered budget allows nothing.

    Epsilon 0 allows nothing, whatever delta is: it is the budget of an owner that is paused or has withdrawn.
    """
    exact = np.where(epsilons > 0, (epsilons * (1 - _ROUNDING) - offsets(orders, deltas)) / UNIT, 0.0)
    allowed: IntArray = np.floor(np.clip(exact, 0, LARGEST)).astype(np.int64)
    return allowed


def epsilons_of(units: IntArray, deltas: FloatArray, orders: IntArray) -> FloatArray:
    """The ε that divergences certify at their deltas, rounded up; 0 where nothing is charged."""
    divergences = units * (UNIT * (1 + _ROUNDING))
    certified = np.maximum(divergences + offsets(orders, deltas), 0.0)
    return np.where((units <= 0) | (deltas**2 + np.expm1(-divergences) > 0), 0.0, certified)


def prices(rates: FloatArray, multipliers: FloatArray, orders: IntArray) -> IntArray:
    """The units that one release of the sampled Gaussian mechanism costs, row by row, rounded up.

    Raises:
        InvalidArgumentError: For a release without noise, which has no finite price.
    """
    sampled = rates > 0
    if (multipliers[sampled] <= 0).any():
        raise InvalidArgumentError("noise_multiplier=0: a release without noise has no price; add noise")
    found = np.zeros(len(rates))
    for order, rows in by_key(np.where(sampled, orders, 0)):
        if order:
            found[rows] = renyi_divergences(rates[rows], multipliers[rows], [float(order)])[:, 0]
    return in_units(found)


def in_units(divergences: FloatArray) -> IntArray:
    """Divergences in whole units, rounded up."""
    if not (divergences < LARGEST * UNIT).all():
        raise InvalidArgumentError(f"divergence={divergences.max():g}: no account allows so much; add noise")
    return np.ceil(divergences * ((1 + _ROUNDING) / UNIT)).astype(np.int64)
