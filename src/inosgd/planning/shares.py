"""Fair shares: how to divide the expected batch among owners, using only public sizes and budgets.

Owner n's signal against the noise is s_n = q_n |D_n| C_n / sigma = q_n |D_n| / z_n, the quantity in the paper's
condition for every owner's loss to fall (Thm. 3.1). Along an owner's privacy curve the signal per example
t = q / z rises with q and saturates: by the central limit for privacy

    t(q) = q sqrt(log(1 + mu^2 / (T q^2)))   ->   mu / sqrt(T)   as q grows.

Alpha-fair shares maximise  sum_n |D_n| u(t_n),  u(t) = t^(1-a) / (1-a)  (log t for a = 1),  under
sum_n q_n |D_n| = b. The exponent a runs from the most total signal (0) to equal signals (infinity). Shares decide
how well budgets are used, never whether they are kept: thresholds are solved exactly afterwards.
"""

from __future__ import annotations

import math

import numpy as np

from inosgd._arrays import FloatArray, IntArray

_LOWEST_LOG_RATE = math.log(1e-12)


def fair_rates(mu: FloatArray, examples: IntArray, steps: int, batch: float, exponent: float) -> FloatArray:
    """The alpha-fair sampling rates; their expected batch is ``batch``.

    Stationarity gives u'(t_n) t_n'(q_n) = price for all owners with 0 < q_n < 1. The left side falls in q_n, and
    the expected batch falls with the price, so both are found by bisection.

    Args:
        mu: The Gaussian parameter that each budget allows.
        examples: The number of examples with that budget.
        steps: T.
        batch: b, at most the number of examples.
        exponent: a, from 0 to infinity.
    """
    scale = mu.max() / math.sqrt(steps)
    low, high = -800.0 * (1 + _finite(exponent)), 800.0 * (1 + _finite(exponent))
    for _ in range(200):
        ends = low, high
        price = (low + high) / 2
        rates = _rates_at(price, mu, steps, exponent, scale)
        low, high = (price, high) if np.dot(rates, examples) > batch else (low, price)
        if (low, high) == ends:
            break  # no number lies between them
    rates = _rates_at(high, mu, steps, exponent, scale)
    return np.minimum(rates * float(batch / np.dot(rates, examples)), 1.0)


def _rates_at(log_price: float, mu: FloatArray, steps: int, exponent: float, scale: float) -> FloatArray:
    low, high = np.full(len(mu), _LOWEST_LOG_RATE), np.zeros(len(mu))
    for _ in range(60):
        middle = (low + high) / 2
        worth_more = _log_worth(np.exp(middle), mu, steps, exponent, scale) > log_price
        low, high = np.where(worth_more, middle, low), np.where(worth_more, high, middle)
    return np.exp(high)


def _log_worth(rates: FloatArray, mu: FloatArray, steps: int, exponent: float, scale: float) -> FloatArray:
    """log(u'(t) t'(q)), with t measured in units of ``scale``; for an infinite exponent, -log t."""
    ratio = mu**2 / (steps * rates**2)
    logarithm = np.log1p(ratio)
    log_signal = np.log(rates / scale) + np.log(logarithm) / 2
    if math.isinf(exponent):
        return -log_signal
    # t' = (L - r / (1 + r)) / sqrt(L); for small r the difference is r^2 / 2 and would cancel.
    difference = np.where(ratio < 1e-5, ratio**2 / 2, logarithm - ratio / (1 + ratio))
    worth: FloatArray = np.log(difference) - np.log(logarithm) / 2 - exponent * log_signal
    return worth


def _finite(exponent: float) -> float:
    return exponent if math.isfinite(exponent) else 1.0
