"""Rényi accounting: divergences of the Poisson-sampled Gaussian mechanism, and what they cost in epsilon.

With rate q and noise multiplier z, a step shows its observer either Q = N(0, z²), the example left out, or
P = (1 - q) N(0, z²) + q N(1, z²), the example eligible. The Rényi divergence of order α > 1 is

    D_α = log A_α / (α - 1),    A_α = E_Q[(P / Q)^α],

the larger of the two directions (Mironov, Talwar and Zhang 2019), so it covers addition and removal. Divergences
of steps add, order by order.

>>> divergences = 1000 * renyi_divergences(0.01, 1.0)
>>> epsilons, orders = epsilon_from_renyi(divergences, RENYI_ORDERS, 1e-5)
>>> round(float(epsilons[0]), 2)
2.11
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.errors import InvalidArgumentError

RENYI_ORDERS: FloatArray = 1 + np.concatenate(
    [
        np.geomspace(0.05, 1, 6, endpoint=False),
        np.geomspace(1, 7, 19, endpoint=False),
        np.geomspace(7, 192, 72, endpoint=False),
        np.geomspace(192, 8192, 23),
    ]
)
"""Default orders. A budget epsilon at delta needs about 2 log(1 / delta) / epsilon: 2,303 for 0.01 at 1e-5. They are
dense where little noise makes divergences explode with the order, so that the best order is a sharp one."""

MARGIN = 1e-8
"""Divergences are raised by the relative amount ``MARGIN * order / (order - 1)``; see ``renyi_divergences``."""

# An order this close to 1 makes the conversion lose its digits, and no budget is served best by it.
SMALLEST_CONVERTED_ORDER = 1.01

_WINDOW = 9.0  # standard deviations beyond the outermost peak; leaves out less than 1e-17 of the integral
_LARGEST_EXPONENT = 700.0  # exp() of more than this overflows
_SERIES_BELOW = 0.01  # where |α u| is smaller, (1 + u)^α - 1 - α u is summed as a series
_SERIES_TERMS = 8
_BLOCK_ROWS = 64  # bounds memory, and rows of similar z share a grid length


def renyi_divergences(
    sampling_rates: npt.ArrayLike, noise_multipliers: npt.ArrayLike, orders: npt.ArrayLike = RENYI_ORDERS
) -> FloatArray:
    """D_α of one step, a row for each (rate, multiplier) and a column for each order.

    With u(t) = q (exp(t / z - 1 / (2 z²)) - 1) and t standard normal, E[u] = 0 and therefore

        A_α - 1 = E[(1 + u)^α - 1 - α u],

    whose integrand is never negative: nothing cancels, however small the divergence. The integrand is analytic
    in the strip |Im t| < π z and no larger there than on the real line, so the trapezoid rule on a grid of step
    h errs by at most 2 exp(y² / 2 - 2 π y / h) for any y < π z; h is chosen to make this less than e^-44.

    Guarantee:
        No value is below the true divergence. What quadrature, window and floating point can take away is
        below the margin by which each value is raised: a relative 1e-8 α / (α - 1), and 1e-300 against
        underflow.

    ==================  =================================================
    case                value
    ==================  =================================================
    q = 0 or z = inf    0
    q = 1               α / (2 z²)
    A_α beyond e^700    α / (2 z²), which bounds every rate; far too much
    ==================  =================================================

    Args:
        sampling_rates: q in [0, 1], a scalar or one entry for each row.
        noise_multipliers: z > 0, a scalar or one entry for each row.
        orders: Real orders α > 1.

    Returns:
        An array of shape (rows, orders).
    """
    rates, multipliers = _rows(sampling_rates, noise_multipliers)
    alphas = _orders(orders)
    divergences = np.zeros((len(rates), len(alphas)))
    certain = rates == 1
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        divergences[certain] = alphas / (2 * multipliers[certain, None] ** 2)
    sampled = np.flatnonzero((rates > 0) & (rates < 1) & np.isfinite(multipliers))
    sampled = sampled[np.argsort(multipliers[sampled])]
    rows = _BLOCK_ROWS * (4 if len(alphas) == 1 else 1)  # what the orders share is then most of the work
    for start in range(0, len(sampled), rows):
        block = sampled[start : start + rows]
        divergences[block] = _sampled_divergences(rates[block], multipliers[block], alphas)
    return divergences


def epsilon_from_renyi(
    divergences: npt.ArrayLike, orders: npt.ArrayLike, deltas: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """The smallest epsilon that the (composed) divergences certify at ``deltas``, and the order that does it.

    A divergence D of order α certifies, at any delta (Canonne, Kamath and Steinke 2020, Proposition 12; Balle
    et al. 2020),

        ε = D + log(1 - 1/α) - log(δ α) / (α - 1),

    and ε = 0 where δ² > 1 - exp(-D) (Bretagnolle and Huber).

    Guarantee:
        Each order alone is a valid certificate, hence so is their minimum. Orders that are infinite certify
        nothing; if all are, epsilon is inf.

    Args:
        divergences: Shape (rows, orders), or one row.
        orders: The order of each column.
        deltas: A scalar or one entry for each row, in (0, 1).

    Returns:
        Epsilons and best orders, one of each for every row.
    """
    table, alphas = _table(divergences, orders)
    targets = np.broadcast_to(np.asarray(deltas, dtype=np.float64), (len(table),))
    _validate.open_unit(deltas=targets)
    log_deltas = np.log(targets)[:, None]
    epsilons = table + np.log1p(-1 / alphas) - (log_deltas + np.log(alphas)) / (alphas - 1)
    epsilons = np.where(alphas > SMALLEST_CONVERTED_ORDER, epsilons, np.inf)
    epsilons = np.where(targets[:, None] ** 2 + np.expm1(-table) > 0, 0.0, epsilons)
    best = np.argmin(epsilons, axis=1)
    return np.maximum(epsilons[np.arange(len(table)), best], 0.0), alphas[best]


def delta_from_renyi(
    divergences: npt.ArrayLike, orders: npt.ArrayLike, epsilons: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """The smallest delta that the (composed) divergences certify at ``epsilons``, and the order that does it.

    The inverse of ``epsilon_from_renyi``: a divergence D of order α certifies

        log δ = (α - 1) (D - ε + log(1 - 1/α)) - log α    and    δ = sqrt(1 - exp(-D)).

    Guarantee:
        As for ``epsilon_from_renyi``; never more than 1.

    Args:
        divergences: Shape (rows, orders), or one row.
        orders: The order of each column.
        epsilons: A scalar or one entry for each row, at least 0.

    Returns:
        Deltas and best orders, one of each for every row.
    """
    table, alphas = _table(divergences, orders)
    targets = np.broadcast_to(np.asarray(epsilons, dtype=np.float64), (len(table),))
    _validate.non_negative(epsilons=targets)
    log_deltas = (alphas - 1) * (table - targets[:, None] + np.log1p(-1 / alphas)) - np.log(alphas)
    log_deltas = np.where(alphas > SMALLEST_CONVERTED_ORDER, log_deltas, np.inf)
    with np.errstate(divide="ignore"):
        log_deltas = np.minimum(log_deltas, 0.5 * np.log(-np.expm1(-table)))
    best = np.argmin(log_deltas, axis=1)
    return np.exp(log_deltas[np.arange(len(table)), best]), alphas[best]


def _rows(sampling_rates: npt.ArrayLike, noise_multipliers: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    rates = np.atleast_1d(np.asarray(sampling_rates, dtype=np.float64))
    multipliers = np.atleast_1d(np.asarray(noise_multipliers, dtype=np.float64))
    _validate.closed_unit(sampling_rates=rates)
    _validate.positive(noise_multipliers=multipliers)
    if rates.ndim > 1 or multipliers.ndim > 1:
        raise _validate.fail("shapes", (rates.shape, multipliers.shape), "give scalars or 1-D arrays")
    if 1 not in (len(rates), len(multipliers)):
        _validate.same_length(sampling_rates=rates, noise_multipliers=multipliers)
    rates, multipliers = np.broadcast_arrays(rates, multipliers)
    return rates, multipliers


def _orders(orders: npt.ArrayLike) -> FloatArray:
    alphas = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    valid = (alphas > 1) & np.isfinite(alphas)
    if not (alphas.ndim == 1 and valid.all()):
        raise InvalidArgumentError(f"orders={orders!r}: give finite orders greater than 1, in one dimension")
    return alphas


def _table(divergences: npt.ArrayLike, orders: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    table, alphas = np.atleast_2d(np.asarray(divergences, dtype=np.float64)), _orders(orders)
    if table.ndim != 2 or table.shape[1] != len(alphas):
        raise _validate.fail("divergences.shape", table.shape, f"give {len(alphas)} columns, one for each order")
    if not (table >= 0).all():
        raise InvalidArgumentError("divergences: give numbers of at least 0 (NaN is not one)")
    return table, alphas


def _sampled_divergences(rates: FloatArray, multipliers: FloatArray, orders: FloatArray) -> FloatArray:
    """Rows with 0 < q < 1 and finite z."""
    q, z = rates[:, None], multipliers[:, None]
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        # (P / Q)^α >= (q exp(...))^α alone is beyond exp(700)
        overflows = orders * np.log(q) + orders * (orders - 1) / (2 * z**2) > _LARGEST_EXPONENT
    lengths = np.ceil((2 * _WINDOW + orders / z) / _grid_step(z)) + 1
    lengths = np.where(overflows, 0, lengths).max(axis=0).astype(np.int64)
    grid = _Grid(q, z, int(lengths.max()))
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        divergences = orders / (2 * z**2)
    for column, (order, length) in enumerate(zip(orders.tolist(), lengths.tolist(), strict=True)):
        rows = np.flatnonzero(~overflows[:, column])
        excess = grid.excess_moment(order, slice(None) if len(rows) == len(rates) else rows, length)
        raised = np.log1p(excess) / (order - 1) * (1 + MARGIN * order / (order - 1)) + 1e-300
        divergences[rows, column] = np.where(np.isfinite(raised), raised, divergences[rows, column])
    return divergences


def _grid_step(z: FloatArray) -> FloatArray:
    """The largest step whose trapezoid error, at y = π z or at the y that is best for it, is below e^-44."""
    return np.minimum(0.6, 2 * np.pi**2 * z / (45 + np.pi**2 * np.minimum(z, 3.0) ** 2 / 2))


class _Grid:
    """What does not depend on the order: each row has its own points t, from -9 on."""

    def __init__(self, q: FloatArray, z: FloatArray, length: int) -> None:
        step = _grid_step(z)
        t = step * np.arange(length) - _WINDOW
        log_ratio = t / z - 1 / (2 * z**2)
        log_weights = np.log(step / np.sqrt(2 * np.pi)) - 0.5 * t**2
        self.log_weights = log_weights
        self.weights = np.exp(log_weights)
        with np.errstate(over="ignore"):
            self.u = q * np.expm1(log_ratio)
        self.weighted_u = q * (np.exp(log_weights + log_ratio) - self.weights)
        self.log_one_plus_u = np.where(
            self.u < 1, np.log1p(np.minimum(self.u, 1.0)), np.logaddexp(np.log1p(-q), np.log(q) + log_ratio)
        )

    def excess_moment(self, order: float, rows: slice | npt.NDArray[np.int64], length: int) -> FloatArray:
        """A_α - 1 of the given rows, from the first ``length`` points; inf or NaN where it overflows."""
        part = (rows, slice(length))
        weights, u = self.weights[part], self.u[part]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            power = np.exp(order * self.log_one_plus_u[part] + self.log_weights[part])
            direct = power - weights - order * self.weighted_u[part]
            series = weights * _series(order, np.clip(u, -1.0, _SERIES_BELOW))
            summed: FloatArray = np.where(np.abs(order * u) < _SERIES_BELOW, series, direct).sum(axis=1)
        return summed


def _series(order: float, u: FloatArray) -> FloatArray:
    """(1 + u)^α - 1 - α u for small α u: the binomial series from its second power on."""
    nested = np.ones_like(u)
    for power in range(_SERIES_TERMS + 1, 2, -1):
        nested = 1 + (order + 1 - power) / power * u * nested
    value: FloatArray = 0.5 * order * (order - 1) * u**2 * nested
    return value
