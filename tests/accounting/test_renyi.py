"""Rényi divergences against closed forms, quadrature in 40 digits, and dp-accounting."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from hypothesis import given
from hypothesis import strategies as st

from inosgd.accounting.renyi import (
    MARGIN,
    RENYI_ORDERS,
    delta_from_renyi,
    epsilon_from_renyi,
    renyi_divergences,
)
from inosgd.errors import InvalidArgumentError
from tests.properties import tries

CASES = [(0.01, 1.0), (0.2, 4.0), (1e-6, 0.5), (1e-9, 2.0), (0.5, 0.3), (0.999, 1.5), (0.05, 1e4)]


def binomial_divergence(q, z, order):
    """The exact divergence of an integer order, in 60 digits: A = Σ C(α, k) (1 - q)^(α - k) q^k e^(k (k - 1) / 2z²)."""
    with mpmath.workdps(60):
        q, z = mpmath.mpf(q), mpmath.mpf(z)
        terms = (
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / (2 * z**2))
            for k in range(order + 1)
        )
        return mpmath.log(mpmath.fsum(terms)) / (order - 1)


def integrated_divergence(q, z, order):
    """The divergence of a real order, by 40-digit quadrature of a different form of the integral."""
    with mpmath.workdps(40):
        q, z, order = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)

        def integrand(t):
            return (1 - q + q * mpmath.exp(t / z - 1 / (2 * z**2))) ** order * mpmath.npdf(t)

        pieces = mpmath.linspace(-14, 14 + order / z, 30)
        return mpmath.log(mpmath.quad(integrand, pieces)) / (order - 1)


def excess(value, truth):
    """How far ``value`` is above ``truth``, relatively."""
    return float((mpmath.mpf(float(value)) - truth) / truth)


@pytest.mark.parametrize(("q", "z"), CASES)
@pytest.mark.parametrize("order", [2, 3, 7, 32])
def test_integer_orders_are_exact_up_to_the_stated_margin(q, z, order):
    value = renyi_divergences(q, z, [order])[0, 0]
    if order * math.log(q) + order * (order - 1) / (2 * z**2) > 700:
        assert value == order / (2 * z**2)
        return
    assert 0 <= excess(value, binomial_divergence(q, z, order)) < 1.01 * MARGIN * order / (order - 1)


@pytest.mark.parametrize(
    ("q", "z", "order"), [(0.01, 1.0, 1.05), (0.3, 0.4, 2.5), (0.001, 0.3, 4.7), (0.02, 30.0, 300.5), (0.9, 2.0, 1.5)]
)
def test_real_orders_are_exact_up_to_the_stated_margin(q, z, order):
    value = renyi_divergences(q, z, [order])[0, 0]
    truth = integrated_divergence(q, z, order)
    assert 0 <= excess(value, truth) < 1.01 * MARGIN * order / (order - 1)
    lowered = value * (1 - 3 * MARGIN * order / (order - 1))
    assert excess(lowered, truth) < 0  # negative control: a slightly low value is caught


def test_edges_of_rate_and_multiplier():
    orders = [1.5, 2.0, 64.0]
    assert renyi_divergences(0.0, 1.0, orders).tolist() == [[0.0, 0.0, 0.0]]
    assert renyi_divergences(0.5, math.inf, orders).tolist() == [[0.0, 0.0, 0.0]]
    np.testing.assert_allclose(renyi_divergences(1.0, 3.0, orders), [[order / 18 for order in orders]], rtol=1e-15)
    np.testing.assert_array_equal(renyi_divergences(0.5, 0.3, [1000.0]), [[1000 / (2 * 0.3**2)]])
    assert (renyi_divergences(1e-200, 1.0, orders) > 0).all()


def test_rows_broadcast_and_do_not_depend_on_each_other():
    rates = np.array([0.01, 1.0, 0.2, 0.0, 1e-5] * 30)
    multipliers = np.geomspace(0.3, 1e4, 150)
    together = renyi_divergences(rates, multipliers)
    alone = np.vstack([renyi_divergences(q, z) for q, z in zip(rates, multipliers, strict=True)])
    np.testing.assert_allclose(together, alone, rtol=1e-11)
    np.testing.assert_array_equal(renyi_divergences(rates, 2.0)[7], renyi_divergences(rates[7], [2.0])[0])


@pytest.mark.parametrize(
    ("rates", "multipliers", "orders"),
    [
        (-0.1, 1.0, [2.0]),
        (float("nan"), 1.0, [2.0]),
        (0.1, 0.0, [2.0]),
        (0.1, float("nan"), [2.0]),
        (0.1, 1.0, [1.0]),
        (0.1, 1.0, [float("nan")]),
        ([0.1, 0.2], [1.0, 1.0, 1.0], [2.0]),
        ([[0.1]], 1.0, [2.0]),
    ],
)
def test_invalid_arguments_are_refused(rates, multipliers, orders):
    with pytest.raises(InvalidArgumentError):
        renyi_divergences(rates, multipliers, orders)


def test_agreement_with_dp_accounting():
    orders = [*range(2, 64), 100, 200]
    for q, z in [(0.01, 0.8), (0.05, 2.0), (0.3, 6.0), (1e-3, 1.0)]:
        reference = RdpAccountant(orders)
        reference.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), 1000)
        ours = 1000 * renyi_divergences(q, z, orders)[0]
        exact = np.array(orders) * np.log(q) + np.array(orders) ** 2 / (2 * z**2) < 650
        np.testing.assert_allclose(ours[exact], reference._rdp[exact], rtol=1e-6)
        assert (ours[exact] >= reference._rdp[exact] - 1e-9).all()
        epsilon, _ = epsilon_from_renyi(ours, orders, 1e-5)
        assert epsilon[0] == pytest.approx(reference.get_epsilon(1e-5), rel=1e-6)
        assert epsilon[0] >= reference.get_epsilon(1e-5) - 1e-9


@tries(15)
@given(st.floats(1e-4, 0.5), st.floats(0.6, 30), st.integers(1, 10_000), st.floats(1e-12, 0.5), st.floats(0, 20))
def test_conversions_are_those_of_dp_accounting(q, z, steps, delta, epsilon):
    row = steps * renyi_divergences(q, z)[0]
    certified, order = epsilon_from_renyi(row, RENYI_ORDERS, delta)
    expected, expected_order = compute_epsilon(RENYI_ORDERS, row, delta)
    assert certified[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert certified[0] >= expected - 1e-9
    assert expected == 0 or order[0] == expected_order
    certified, _ = delta_from_renyi(row, RENYI_ORDERS, epsilon)
    expected, _ = compute_delta(RENYI_ORDERS, row, epsilon)
    assert certified[0] == pytest.approx(expected, rel=1e-6, abs=1e-300)


@tries(8)
@given(st.floats(1e-5, 0.9), st.floats(0.4, 50), st.floats(1.01, 1.5))
def test_divergences_grow_with_rate_order_and_less_noise(q, z, factor):
    base = renyi_divergences(q, z)[0]
    more_often = renyi_divergences(min(q * factor, 1.0), z)[0]
    less_noise = renyi_divergences(q, z / factor)[0]
    slack = 1 - 4e-7
    assert (more_often >= base * slack).all()
    assert (less_noise >= base * slack).all()
    assert (base[1:] >= base[:-1] * slack).all()


@tries(10)
@given(st.floats(1e-4, 0.3), st.floats(0.7, 20), st.integers(1, 5000), st.floats(1e-9, 1e-2))
def test_delta_inverts_epsilon(q, z, steps, delta):
    row = steps * renyi_divergences(q, z)
    epsilon, order = epsilon_from_renyi(row, RENYI_ORDERS, delta)
    if 0 < epsilon[0] < np.inf:
        back, _ = delta_from_renyi(row, RENYI_ORDERS, epsilon)
        assert back[0] <= delta * (1 + 1e-6)
        assert order[0] in RENYI_ORDERS


def test_conversion_refuses_what_it_cannot_use():
    for divergences, deltas in [([[np.nan, 1.0]], 1e-5), ([[-1.0, 1.0]], 1e-5), ([[1.0]], 1e-5), ([[1.0, 1.0]], 0.0)]:
        with pytest.raises(InvalidArgumentError):
            epsilon_from_renyi(divergences, [2.0, 3.0], deltas)
    with pytest.raises(InvalidArgumentError):
        delta_from_renyi([[1.0, 1.0]], [2.0, 3.0], -1.0)
    assert np.isinf(epsilon_from_renyi([[np.inf, np.inf]], [2.0, 3.0], 1e-5)[0]).all()


def rdp_epsilon(q, z, steps=1000, delta=1e-5):
    return epsilon_from_renyi(steps * renyi_divergences(q, z), RENYI_ORDERS, delta)[0][0]


@pytest.mark.parametrize(
    ("q", "z", "epsilon"), [(0.19345, 4, 8), (0.01892, 4, 0.6), (0.05, 4 / 1.5894, 3), (0.05, 4 / 0.3278, 0.5)]
)
def test_numbers_of_the_paper(q, z, epsilon):
    assert rdp_epsilon(q, z) == pytest.approx(epsilon, rel=2e-3)


def test_the_papers_3_29_would_cost_8_40():
    assert rdp_epsilon(0.05, 4 / 3.29) == pytest.approx(8.40, abs=0.02)
    assert rdp_epsilon(0.02, 4 / 3.2887) == pytest.approx(3, abs=0.01)


def test_small_budgets_need_the_high_orders():
    assert len(RENYI_ORDERS) <= 120
    assert rdp_epsilon(0.003, 30.0) < 0.01
    low = RENYI_ORDERS[RENYI_ORDERS <= 63]
    assert epsilon_from_renyi(1000 * renyi_divergences(0.003, 30.0, low), low, 1e-5)[0][0] > 0.1
