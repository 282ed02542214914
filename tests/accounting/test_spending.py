"""From phases to what each owner has spent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import OwnerTable
from inosgd.accounting import ACCOUNTANTS, Exposures, epsilons, epsilons_spent, reference_epsilon
from inosgd.accounting.reference import ORDERS
from inosgd.accounting.renyi import epsilon_from_renyi, renyi_divergences
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Phase, Terms
from tests.properties import tries

TABLE = OwnerTable(("a", "b", "c"), [1.0, 2.0, 3.0], [1e-5, 1e-5, 1e-6], [100, 100, 100])


def phase(steps: int, noise: float = 2.0, rates=(0.01, 0.05, 0.05)) -> Phase:
    return Phase(steps, Terms.for_owners(TABLE, np.array(rates), np.array([1.0, 1.0, 0.5]), noise))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(parts=st.lists(st.integers(1, 40), min_size=1, max_size=6), noise=st.floats(0.6, 8.0))
@tries(8)
def test_phases_with_equal_terms_are_one_phase(accountant, parts, noise):
    apart = epsilons_spent([phase(steps, noise) for steps in parts], TABLE.deltas, accountant)
    together = epsilons_spent([phase(sum(parts), noise)], TABLE.deltas, accountant)
    np.testing.assert_allclose(apart, together, rtol=1e-6)
    more = epsilons_spent([phase(sum(parts) + 1, noise)], TABLE.deltas, accountant)
    assert (more > together).all()  # the control: one step is seen


OWNER_TERMS = [(0.01, 1.0), (0.05, 1.0), (0.05, 0.5)]
"""Rate and threshold of each owner in the phases below."""


@pytest.mark.parametrize("owner", [*(pytest.param(row, marks=pytest.mark.long) for row in (0, 1)), 2])
def test_different_phases_agree_with_the_reference(owner):
    (rate, threshold), delta = OWNER_TERMS[owner], float(TABLE.deltas[owner])
    exposures = [(rate, 2.0 / threshold, 30), (rate, 1.0 / threshold, 20)]
    phases = [phase(30, 2.0), phase(20, 1.0)]
    by_pld = epsilons_spent(phases, TABLE.deltas, "pld")[owner]
    reference = reference_epsilon(exposures, delta, "pld", discretization=1e-5)
    assert reference * (1 - 1e-4) <= by_pld <= reference * (1 + 1e-3)

    by_rdp = epsilons_spent(phases, TABLE.deltas, "rdp")[owner]
    whole_orders = reference_epsilon(exposures, delta, "rdp")
    divergences = sum(steps * renyi_divergences(q, z, ORDERS) for q, z, steps in exposures)
    assert epsilon_from_renyi(divergences, ORDERS, delta)[0][0] == pytest.approx(whole_orders, rel=1e-6)
    assert by_pld <= by_rdp <= whole_orders  # real orders certify no less than whole ones, and never beat PLD


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_nothing_released_nothing_sampled_and_nothing_hidden(accountant):
    assert (epsilons_spent([], TABLE.deltas, accountant) == 0).all()
    spent = epsilons_spent([phase(10, noise=0.0, rates=(0.0, 0.1, 1.0))], TABLE.deltas, accountant)
    assert spent.tolist() == [0.0, math.inf, math.inf]


def test_a_coarser_grid_is_never_more_optimistic():
    exposures = [Exposures(np.array([0.02]), np.array([1.2]), 500)]
    fine, coarse = (epsilons(exposures, np.array([1e-5]), "pld", resolution=step)[0] for step in (0.03, 0.2))
    assert fine < coarse < 1.01 * fine


def test_an_unknown_accountant_is_refused_by_name():
    with pytest.raises(InvalidArgumentError, match="accountant='moments': choose one of pld, rdp"):
        epsilons_spent([phase(1)], TABLE.deltas, "moments")
