"""Rooms, orders and prices: rounded to the private side, and compared with dp-accounting and mpmath."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.accounting.reference import ORDERS, reference_divergences, reference_epsilon
from inosgd.accounting.renyi import epsilon_from_renyi
from inosgd.accounting.selection import NegativeBinomialTrials, PoissonTrials
from inosgd.accounts.charge import Charge, cost
from inosgd.accounts.filter import UNIT, best_orders, epsilons_of, prices, rooms
from inosgd.errors import InvalidArgumentError
from tests.properties import tries

budgets = st.tuples(st.floats(0.05, 20.0), st.floats(1e-9, 1e-3))


@given(budgets)
def test_a_room_converts_to_no_more_than_its_budget(budget):
    epsilon, delta = np.array([budget[0]]), np.array([budget[1]])
    orders = best_orders(epsilon, delta)
    room = rooms(epsilon, delta, orders)
    assert room[0] > 0
    certified, _ = epsilon_from_renyi([[float(room[0]) * UNIT]], [float(orders[0])], delta)
    assert certified[0] <= epsilon[0]
    assert epsilons_of(room, delta, orders)[0] == pytest.approx(budget[0], rel=1e-6)


@given(budgets)
def test_rooms_are_those_of_arbitrary_precision(budget):
    epsilon, delta = np.array([budget[0]]), np.array([budget[1]])
    order = int(best_orders(epsilon, delta)[0])
    with mpmath.workdps(50):
        a, d = mpmath.mpf(order), mpmath.mpf(budget[1])
        exact = mpmath.mpf(budget[0]) - mpmath.log(1 - 1 / a) + mpmath.log(d * a) / (a - 1)
    room = int(rooms(epsilon, delta, np.array([order]))[0])
    assert room <= exact / UNIT
    assert room * UNIT >= exact - 1e-8 * max(1, budget[0])


def test_the_best_order_is_best_for_gaussian_releases():
    epsilon, delta = np.array([1.0]), np.array([1e-5])
    chosen = int(best_orders(epsilon, delta)[0])
    releases = {order: rooms(epsilon, delta, np.array([order]))[0] / order for order in ORDERS}
    assert releases[chosen] == max(releases.values())


def test_a_budget_that_no_order_certifies_is_refused():
    with pytest.raises(InvalidArgumentError, match="larger budget"):
        best_orders(np.array([1e-4]), np.array([1e-5]))


@given(st.floats(1e-4, 1.0), st.floats(0.6, 50.0), st.sampled_from(ORDERS[:70]))
@tries(25)
def test_prices_are_at_least_what_dp_accounting_finds_and_hardly_more(rate, multiplier, order):
    try:
        price = prices(np.array([rate]), np.array([multiplier]), np.array([order]))[0] * UNIT
    except InvalidArgumentError:
        assert order / (2 * multiplier**2) > 1e6
        return
    exact = float(reference_divergences([(rate, multiplier, 1)], [order])[0])
    assert price >= exact * (1 - 1e-7) - UNIT
    assert price <= exact * (1 + 1e-6) + 3 * UNIT or exact * (order - 1) > 600  # beyond e^700 our bound is coarse


def test_who_is_not_sampled_pays_nothing_and_no_noise_has_no_price():
    assert prices(np.array([0.0]), np.array([np.inf]), np.array([8]))[0] == 0
    with pytest.raises(InvalidArgumentError, match="without noise"):
        prices(np.array([0.1]), np.array([0.0]), np.array([8]))


def test_a_room_full_of_steps_is_within_the_budget_by_dp_accounting():
    epsilon, delta = np.array([1.0]), np.array([1e-5])
    orders = best_orders(epsilon, delta)
    price, room = prices(np.array([0.02]), np.array([1.5]), orders)[0], rooms(epsilon, delta, orders)[0]
    steps = int(room // price)
    assert reference_epsilon([(0.02, 1.5, steps)], 1e-5, "rdp", orders=[int(orders[0])]) <= 1.0
    assert reference_epsilon([(0.02, 1.5, steps * 11 // 10)], 1e-5, "rdp", orders=[int(orders[0])]) > 1.0  # control


@pytest.mark.parametrize("trials", [PoissonTrials(5.0), NegativeBinomialTrials.geometric(4.0)])
def test_a_selection_costs_what_dp_accounting_says_of_one(trials):
    import dp_accounting

    table = np.array([[0.05, 6.0]])
    price = Charge(table, ((50,),), trials).prices(np.array([8]))[0, 0] * UNIT
    single = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(6.0)), 50
    )
    shape = math.inf if isinstance(trials, PoissonTrials) else trials.eta
    accountant = dp_accounting.rdp.RdpAccountant(list(ORDERS))
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(single, trials.mean, shape))
    exact = float(accountant.rdp[ORDERS.index(8)])
    assert exact * (1 - 1e-6) <= price <= exact * 1.4  # it may use a bound at a higher order as well
    assert price > 50 * prices(np.array([0.05]), np.array([6.0]), np.array([8]))[0] * UNIT


def test_costs_of_pieces_add_up_exactly():
    unit_prices = np.array([[3, 5], [0, 7]])
    assert cost(unit_prices, (2, 3), 0).tolist() == [0, 0]
    assert cost(unit_prices, (2, 3), 3).tolist() == [11, 7]
    assert cost(unit_prices, (2, 3), 5).tolist() == [21, 21]
