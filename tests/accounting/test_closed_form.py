"""The paper's closed form: an upper bound inside its conditions, refused outside."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inosgd.accounting.closed_form import closed_form_rdp
from inosgd.accounting.privacy_loss import SampledGaussian, compose
from inosgd.accounting.renyi import epsilon_from_renyi, renyi_divergences
from inosgd.errors import InvalidArgumentError
from tests.properties import tries


def test_value():
    assert closed_form_rdp(0.02, 5.0, 1000, 4.0) == pytest.approx(2 * 1000 * 4 * 0.02**2 / 25, rel=1e-14)
    assert closed_form_rdp(0.0, 5.0, 1000, 4.0) == 0
    assert closed_form_rdp(0.02, 5.0, 0, 4.0) == 0


@tries(50)
@given(st.floats(1e-4, 0.2), st.floats(4, 50), st.floats(1.1, 200))
def test_it_is_an_upper_bound_wherever_it_is_given(q, z, order):
    try:
        bound = closed_form_rdp(q, z, 1, order)
    except InvalidArgumentError:
        assume(False)
    assert bound >= renyi_divergences(q, z, [order])[0, 0]


def test_it_would_be_too_small_where_it_is_refused():
    """At (0.01, 0.5, 1000) the formula reads 6.21; the mechanism costs 13.36."""
    orders = [1 + tenth / 10 for tenth in range(1, 600)]
    formula = [[2 * 1000 * order * 0.01**2 / 0.5**2 for order in orders]]
    read = epsilon_from_renyi(formula, orders, 1e-5)[0][0]
    assert read == pytest.approx(6.21, abs=0.01)
    assert compose([SampledGaussian(0.01, 0.5, 1000)]).epsilon(1e-5) == pytest.approx(13.36, abs=0.01)
    exact = epsilon_from_renyi(1000 * renyi_divergences(0.01, 0.5, orders), orders, 1e-5)[0][0]
    assert exact == pytest.approx(15.46, abs=0.01)
    for order in (1.5, 8.0):
        with pytest.raises(InvalidArgumentError, match=r"noise_multiplier=0\.5: the closed form needs at least 4"):
            closed_form_rdp(0.01, 0.5, 1000, order)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.3, 4.0, 10, 2.0), r"sampling_rate=0\.3: .* at most 0\.2"),
        ((0.1, 4.0, 10, 50.0), r"order=50\.0: .* needs at most"),
        ((0.1, 4.0, 10, 1.0), r"order=1\.0: give an order greater than 1"),
        ((0.1, math.nan, 10, 2.0), "noise_multiplier=nan"),
        ((math.nan, 4.0, 10, 2.0), "sampling_rate=nan"),
        ((0.1, 4.0, -1, 2.0), "steps=-1"),
        ((0.1, 4.0, 10, math.nan), "order=nan"),
    ],
)
def test_refusals_name_the_argument(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        closed_form_rdp(*arguments)


@pytest.mark.parametrize(("q", "z", "largest"), [(0.001, 4.0, 26.716), (0.2, 20.0, 12.944)])
def test_each_condition_on_the_order_binds_somewhere(q, z, largest):
    """The first alone would admit 27.99 in the second case, and the second alone 155.04 in the first."""
    closed_form_rdp(q, z, 1, largest - 0.002)
    with pytest.raises(InvalidArgumentError, match="order="):
        closed_form_rdp(q, z, 1, largest + 0.002)
