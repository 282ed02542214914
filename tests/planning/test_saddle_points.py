"""Estimates are close where they are said to be, and no plan rests on them, however wrong they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.accounting import Exposures, epsilons
from inosgd.accounting.spending import epsilons_spent
from inosgd.plan import Phase
from inosgd.planning import saddle_points
from inosgd.planning.classes import BudgetClasses
from inosgd.planning.saddle_points import estimated_epsilons
from inosgd.planning.solving import estimated_multipliers

BUDGETS = np.geomspace(0.3, 9, 10)
ASK = {"steps": 60, "expected_batch_size": 60, "clipping_threshold": 1.0}
WRONG = {
    "far too low": lambda estimates: estimates / 3,
    "far too high": lambda estimates: estimates * 3,
    "nothing": np.zeros_like,
    "infinite": lambda estimates: np.full_like(estimates, np.inf),
    "in disorder": lambda estimates: estimates * np.exp(np.sin(1e6 * estimates)),
}


@pytest.fixture
def many(monkeypatch):
    """Ten budgets are many, and dp-accounting is not asked: our own accountant looks at all of them afresh."""
    monkeypatch.setattr("inosgd.planning.classes.MOST_EXACT", 4)
    monkeypatch.setattr("inosgd.planning.variants.WEAKEST", 3)
    monkeypatch.setattr("inosgd.planning.solving.ANCHORS", 4)
    monkeypatch.setattr("inosgd.planning.planner.reference_excess", lambda *_: (0.0, 0, 0.0))


def estimating(monkeypatch, wrong) -> None:
    def estimate(*arguments):
        return wrong(estimated_epsilons(*arguments))

    for module in ("solving", "classes"):
        monkeypatch.setattr(f"inosgd.planning.{module}.estimated_epsilons", estimate)


def table(budgets=BUDGETS) -> OwnerTable:
    names = tuple(f"owner {row}" for row in range(len(budgets)))
    return OwnerTable(names, budgets, np.full(len(budgets), 1e-5), np.full(len(budgets), 100))


def steps_of(rates, multipliers, count) -> Exposures:
    return Exposures(np.atleast_1d(np.float64(rates)), np.atleast_1d(np.float64(multipliers)), count)


@pytest.mark.parametrize("past", [0, 300])
@given(q=st.floats(0.01, 1.0), z=st.floats(2.0, 20.0), delta=st.sampled_from([1e-4, 1e-5, 1e-8]))
def test_estimates_of_many_steps_are_within_a_thousandth(past, q, z, delta):
    lived = [*([steps_of(q / 2, z * 1.3, past)] if past else []), steps_of(q, z, 300)]
    exact = epsilons(lived, np.array([delta]), "pld")
    if exact[0] > 0.01:
        assert estimated_epsilons(lived, np.array([delta]), exact) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("q", "z"), [(0.004, 0.72), (0.01, 0.8), (0.001, 0.4)])
def test_where_rare_losses_decide_the_integral_is_closer_than_the_saddle_point(q, z, monkeypatch):
    lived, deltas = [steps_of(q, z, 1000)], np.array([1e-5])
    exact = epsilons(lived, deltas, "pld")
    summed = estimated_epsilons(lived, deltas, exact)
    monkeypatch.setattr(saddle_points, "_LARGEST_CORRECTION", np.inf)
    assert abs(summed / exact - 1) < 2e-3 < abs(estimated_epsilons(lived, deltas, exact) / exact - 1)


@pytest.mark.filterwarnings("error")
def test_estimates_are_numbers_at_every_extreme():
    rates = np.array([0, 0.1, 0.1, 1, 1e-9, 1, 1e-12, 1, 0.5, 1e-3])
    multipliers = np.array([0, 0, np.inf, 1e9, 0.1, 0.1, 1e7, 1e-3, 1e-2, 0.7])
    for near in (1e-9, 1.0, 1e6):
        for delta in (1e-300, 1e-5, 0.999):
            for steps in (1, 1000, 10**9):
                found = estimated_epsilons(
                    [Exposures(rates, multipliers, steps)], np.full(10, delta), np.full(10, near)
                )
                assert (found >= 0).all()
                assert found[:3].tolist() == [0, np.inf, 0]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("variant", ["scale", "sample", "fair"])
def test_budgets_are_kept_and_used_whatever_the_estimates_say(variant, wrong, monkeypatch):
    """With a past and without; for the control see `test_estimates_alone_would_exceed_budgets`."""
    estimating(monkeypatch, WRONG[wrong])
    first = make_plan(table(), PlanConfig(variant=variant, **ASK))
    raised = np.where(np.arange(10) % 3 == 0, 1.5 * BUDGETS, BUDGETS)
    past = [Phase(20, first.phases[0].terms)]
    again = make_plan(table(raised), PlanConfig(variant=variant, **ASK), past=past)
    for plan in (first, again):
        fresh = epsilons_spent(plan.phases, plan.table.deltas, "pld")
        assert (fresh <= plan.spent * (1 + 1e-6)).all()
        assert (plan.spent <= plan.table.epsilons).all()
        used = plan.spent / plan.table.epsilons
        assert (used[0] if variant == "fair" else used.min()) > 0.99
    assert again.at(20).expected_batch_size == pytest.approx(60, rel=3e-3)


@pytest.mark.usefixtures("many")
def test_estimates_alone_would_exceed_budgets(monkeypatch):
    """The control: what wrong estimates find is beyond all budgets, by the same accountant."""
    estimating(monkeypatch, WRONG["far too low"])
    rates = np.full(10, 0.06)
    classes = BudgetClasses.of(table(), past=(Exposures(rates, np.full(10, 30.0), 20),))
    found = Exposures(rates, estimated_multipliers(classes, rates, 40, "pld"), 40)
    assert (epsilons([*classes.past, found], classes.deltas, "pld") > classes.epsilons).all()


@pytest.mark.usefixtures("many")
def test_a_capped_fair_plan_keeps_its_cap_and_says_what_it_spends():
    plan = make_plan(table(), PlanConfig(variant="fair", **ASK))
    terms = plan.at(0)
    signals = terms.sampling_rates * terms.clipping_thresholds
    assert signals.max() <= plan.config.fairness.max_ratio * signals.min() * (1 + 1e-9)
    capped = np.isclose(signals, signals.max(), rtol=1e-6)
    assert capped.sum() > 1
    fresh = epsilons_spent(plan.phases, plan.table.deltas, "pld")
    assert (fresh <= plan.spent * (1 + 1e-6)).all()
    assert fresh == pytest.approx(plan.spent, rel=1e-3)
