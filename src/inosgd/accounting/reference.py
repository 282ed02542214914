"""The reference accountant: dp-accounting, asked about one owner at a time.

Slow and independent of our own cores; plans and ledgers are verified by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dp_accounting import PrivacyAccountant

ORDERS = (*range(2, 64), *(round(64 * 2 ** (quarter / 4)) for quarter in range(29)))
"""Whole orders up to 8,192. At fractional ones dp-accounting is slow, and up to 2% above the true divergence."""

Exposure = tuple[float, float, int]
"""A sampling rate, a noise multiplier, and a number of steps."""


def reference_epsilon(
    exposures: Iterable[Exposure],
    delta: float,
    accountant: str,
    *,
    discretization: float = 1e-4,
    orders: Sequence[float] = ORDERS,
) -> float:
    """The epsilon at ``delta`` of sampled Gaussian mechanisms composed one after the other.

    Args:
        exposures: Rate, noise multiplier and steps of each phase.
        delta: Where on the privacy profile to read epsilon.
        accountant: "rdp" or "pld".
        discretization: The grid of the privacy loss for "pld"; finer is tighter and slower.
        orders: The orders for "rdp"; any of them alone gives a valid bound.
    """
    _validate.open_unit(delta=delta)
    import dp_accounting  # it takes seconds, so it is imported only when it is used

    judge = _accountant(accountant, discretization, orders)
    for rate, multiplier, steps in exposures:
        if rate > 0 and steps > 0:
            gaussian = dp_accounting.GaussianDpEvent(multiplier)
            judge.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
    return float(judge.get_epsilon(delta))


def reference_divergences(exposures: Iterable[Exposure], orders: Sequence[float] = ORDERS) -> FloatArray:
    """The Rényi divergence, at each of ``orders``, of sampled Gaussian mechanisms composed one after the other."""
    import dp_accounting

    judge = dp_accounting.rdp.RdpAccountant(list(orders))
    for rate, multiplier, steps in exposures:
        if rate > 0 and steps > 0:
            gaussian = dp_accounting.GaussianDpEvent(multiplier)
            judge.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
    found: FloatArray = judge.rdp
    return found


def _accountant(name: str, discretization: float, orders: Sequence[float]) -> PrivacyAccountant:
    import dp_accounting

    if name == "pld":
        return dp_accounting.pld.PLDAccountant(value_discretization_interval=discretization)
    if name == "rdp":
        return dp_accounting.rdp.RdpAccountant(orders)
    raise InvalidArgumentError(f"accountant={name!r}: choose one of pld, rdp")
