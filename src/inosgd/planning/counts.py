"""Counts: how much noise the count of an owner's classes gets, from its budget alone."""

from __future__ import annotations

import math

import numpy as np

from inosgd.errors import InfeasibleError, InvalidArgumentError, UnknownOwnerError
from inosgd.owners import OwnerTable
from inosgd.plan import Terms
from inosgd.plan_config import Counting
from inosgd.planning.classes import gaussian_mu

LARGEST_ERROR = 0.25
"""A count is of use if the total-variation distance of its shares to the true ones is at most this, in expectation."""

MULTIPLIER_GRID = 1.02
"""Noise multipliers are rounded up to powers of this, so that similar budgets are planned alike."""


def count_terms(table: OwnerTable, counting: Counting) -> Terms:
    """The terms of a count: rate 1 and noise multiplier z_n = 1 / (share mu_n) for each owner that is counted.

    mu_n is the Gaussian parameter of the owner's budget. One example moves its owner's histogram by 1 and no other, so
    that the count is, for each of its examples, a Gaussian mechanism with noise multiplier z_n.

    Raises:
        InfeasibleError: If an owner is too small or too strict for its count to be of use; it is named.
    """
    asked = set(table.names if counting.owners is None else counting.owners)
    unknown = sorted(asked - set(table.names))
    if unknown:
        name = unknown[0]
        raise UnknownOwnerError(name, f"counting.owners: there is no owner {name!r}; name owners of the table")
    counted = np.array([name in asked for name in table.names]) & (table.sizes > 0)
    if not counted.any():
        raise InvalidArgumentError("counting.owners: none of them has examples; name owners that have some")
    exact = 1 / (counting.share * gaussian_mu(table.epsilons, table.deltas))
    multipliers = MULTIPLIER_GRID ** np.ceil(np.log(exact) / math.log(MULTIPLIER_GRID))
    errors = np.sqrt(2 / np.pi) / 2 * counting.classes * multipliers / np.maximum(table.sizes, 1)
    useless = counted & ~(errors <= LARGEST_ERROR)
    if useless.any():
        worst = int(np.argmax(np.where(useless, errors, 0.0)))
        raise _of_no_use(table, counting, worst, float(multipliers[worst]), float(errors[worst]))
    thresholds = np.where(counted, 1 / multipliers, (1 / multipliers)[counted].min())
    return Terms(counted.astype(np.float64), thresholds, 1.0, float(table.sizes[counted].sum()))


def _of_no_use(table: OwnerTable, counting: Counting, row: int, multiplier: float, error: float) -> InfeasibleError:
    name = table.names[row]
    return InfeasibleError(
        f"owner {name!r}: counting {counting.classes} classes of {table.sizes[row]:,} {table.units} at "
        f"epsilon={table.epsilons[row]:g} needs noise of {multiplier:.3g} on every count, which would leave the "
        f"shares about {min(error, 1.0):.0%} off; declare this owner's shares, or leave it out: it is then taken "
        "to be like the others",
        owner=name,
    )
