"""The closed-form Rényi bound of the paper (Theorems 2.2 and 3.3), with its conditions checked.

It is about four times the true divergence where it holds and can be far below it where it does not: at q = 0.01,
z = 0.5 and 1,000 steps it would read epsilon 6.2 at delta 1e-5, against a certified lower bound of 12.9. Use
``inosgd.accounting.renyi`` or ``inosgd.accounting.privacy_loss`` to account; this is here to compare with the paper.
"""

from __future__ import annotations

import math
import sys

from inosgd import _validate

LARGEST_RATE = 0.2
SMALLEST_MULTIPLIER = 4.0


def closed_form_rdp(sampling_rate: float, noise_multiplier: float, steps: int, order: float) -> float:
    """The Rényi divergence 2 T α q² / z² of T steps, if the theorem's conditions hold.

    With L = log(1 + 1 / (q (α - 1))) they are

        q <= 1/5,    z >= 4,
        α <= z² L / 2 - 2 log z,
        α <= (z² L² / 2 - log 5 - 2 log z) / (L + log(q α) + 1 / (2 z²)).

    Guarantee:
        Where a value is returned, it is an upper bound on the divergence of order α of T steps of the
        Poisson-sampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, Theorem 11).

    Args:
        sampling_rate: q.
        noise_multiplier: z.
        steps: T.
        order: α > 1.

    Raises:
        InvalidArgumentError: If a condition fails; the message names it and what to give instead.

    >>> round(closed_form_rdp(sampling_rate=0.01, noise_multiplier=4.0, steps=1000, order=8.0), 6)
    0.1
    >>> closed_form_rdp(sampling_rate=0.01, noise_multiplier=0.5, steps=1000, order=8.0)
    Traceback (most recent call last):
    ...
    inosgd.errors.InvalidArgumentError: noise_multiplier=0.5: the closed form needs at least 4; account with \
renyi_divergences instead, which holds for every multiplier
    """
    _validate.closed_unit(sampling_rate=sampling_rate)
    _validate.finite_positive(noise_multiplier=noise_multiplier, order=order)
    _validate.whole(0, steps=steps)
    _check_rate_and_multiplier(sampling_rate, noise_multiplier)
    if not order > 1:
        raise _validate.fail("order", order, "give an order greater than 1")
    if sampling_rate == 0:
        return 0.0
    largest = _largest_order(sampling_rate, noise_multiplier, order)
    if not order <= largest:
        fix = f"the closed form needs at most {largest:.4g} at this order; give a smaller one, or account with "
        raise _validate.fail("order", order, fix + "renyi_divergences")
    divergence = 2 * steps * order * sampling_rate**2 / noise_multiplier**2
    return divergence * (1 + 4 * sys.float_info.epsilon)


def _check_rate_and_multiplier(q: float, z: float) -> None:
    if not q <= LARGEST_RATE:
        fix = f"the closed form needs at most {LARGEST_RATE:g}; account with renyi_divergences instead"
        raise _validate.fail("sampling_rate", q, fix + ", which holds for every rate")
    if not z >= SMALLEST_MULTIPLIER:
        fix = f"the closed form needs at least {SMALLEST_MULTIPLIER:g}; account with renyi_divergences instead"
        raise _validate.fail("noise_multiplier", z, fix + ", which holds for every multiplier")


def _largest_order(q: float, z: float, order: float) -> float:
    """The smaller right-hand side of the two conditions on α, which themselves depend on α."""
    log_term = math.log1p(1 / (q * (order - 1)))
    first = z**2 * log_term / 2 - 2 * math.log(z)
    numerator = z**2 * log_term**2 / 2 - math.log(5) - 2 * math.log(z)
    return min(first, numerator / (log_term + math.log(q * order) + 1 / (2 * z**2)))
