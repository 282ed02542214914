"""Spending: from what was released to the epsilon that each owner has spent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray, distinct_rows
from inosgd.accounting.privacy_loss import RESOLUTION, SampledGaussian, compose
from inosgd.accounting.renyi import RENYI_ORDERS, epsilon_from_renyi, renyi_divergences
from inosgd.accounting.total_variation import composed_distance, shift_distance
from inosgd.plan import Phase
from inosgd.plan_config import ACCOUNTANTS


class Exposures(NamedTuple):
    """Steps of the sampled Gaussian mechanism for several owners: a rate and a noise multiplier for each."""

    sampling_rates: FloatArray
    noise_multipliers: FloatArray
    steps: int


def epsilons_spent(phases: Sequence[Phase], deltas: FloatArray, accountant: str) -> FloatArray:
    """The epsilon that ``phases`` together cost each owner's examples, at the owner's delta.

    Guarantee:
        An upper bound: under these phases each example of owner n has (epsilon[n], deltas[n])-differential
        privacy for the addition or removal of that example.
    """
    exposures = [
        Exposures(phase.terms.sampling_rates, phase.terms.noise_multipliers(), phase.steps) for phase in phases
    ]
    return epsilons(exposures, deltas, accountant)


def epsilons(
    exposures: Sequence[Exposures], deltas: FloatArray, accountant: str, *, resolution: float = RESOLUTION
) -> FloatArray:
    """The epsilon of each owner's composed exposures at its delta; an upper bound.

    Owners with equal exposures are computed once. Where delta covers the total-variation distance, epsilon is 0
    (`inosgd.accounting.total_variation`). Else an owner that is sampled without noise has spent infinity. A coarser
    ``resolution`` of the privacy loss is faster and less tight: 0.02% at twice the default.
    """
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    if not exposures:
        return np.zeros(len(deltas))
    columns = [column for exposure in exposures for column in exposure[:2]]
    first, owner_rows = distinct_rows(*columns)
    rows = np.column_stack(columns)[first]
    steps = [exposure.steps for exposure in exposures]
    spent = np.full(len(deltas), np.inf)
    bare = ((rows[:, 0::2] > 0) & (rows[:, 1::2] == 0)).any(axis=1)
    by_delta_alone = deltas >= _distances(rows, steps)[owner_rows]
    spent[by_delta_alone] = 0.0
    covered = ~bare[owner_rows] & ~by_delta_alone
    if accountant == "pld":
        spent[covered] = _by_privacy_loss(rows, steps, owner_rows[covered], deltas[covered], resolution)
    else:
        spent[covered] = _by_renyi(rows, steps, owner_rows[covered], deltas[covered])
    return spent


def _distances(rows: FloatArray, steps: Sequence[int]) -> FloatArray:
    """The total-variation distance of each row's phases."""
    single = [q * shift_distance(np.ones_like(z), z) for q, z in zip(rows.T[0::2], rows.T[1::2], strict=True)]
    return composed_distance(single, steps)


def _by_renyi(rows: FloatArray, steps: Sequence[int], owner_rows: IntArray, deltas: FloatArray) -> FloatArray:
    first, position = distinct_rows(owner_rows, deltas)
    used = owner_rows[first]
    divergences = np.zeros((len(used), len(RENYI_ORDERS)))
    for phase, count in enumerate(steps):
        rates, multipliers = rows[used, 2 * phase], rows[used, 2 * phase + 1]
        divergences += count * renyi_divergences(rates, np.where(rates > 0, multipliers, np.inf))
    return epsilon_from_renyi(divergences, RENYI_ORDERS, deltas[first])[0][position]


def _by_privacy_loss(
    rows: FloatArray, steps: Sequence[int], owner_rows: IntArray, deltas: FloatArray, resolution: float
) -> FloatArray:
    spent = np.empty(len(deltas))
    by_row = np.argsort(owner_rows, kind="stable")
    starts = np.flatnonzero(np.diff(owner_rows[by_row], prepend=-1))
    for members in np.split(by_row, starts[1:]) if len(by_row) else []:
        row = rows[owner_rows[members[0]]].tolist()
        phases = zip(row[0::2], row[1::2], steps, strict=True)
        lived = tuple(SampledGaussian(rate, z, count) for rate, z, count in phases if rate > 0)
        different, position = np.unique(deltas[members], return_inverse=True)
        spent[members] = np.array(_epsilons_of(lived, tuple(different.tolist()), resolution))[position]
    return spent


@lru_cache(maxsize=4096)
def _epsilons_of(
    mechanisms: tuple[SampledGaussian, ...], deltas: tuple[float, ...], resolution: float
) -> tuple[float, ...]:
    """Epsilon at each delta; kept, as a plan, its ledger and its report ask for the same, and trainings share plans."""
    return tuple(compose(mechanisms, resolution=resolution).epsilon(np.array(deltas)).tolist())
