"""Plans hold public numbers, are JSON, and never promise more than a budget allows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import Fairness, OwnerTable, Plan, PlanConfig
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Phase, Terms

TABLE = OwnerTable(("a", "b"), [1.0, 8.0], [1e-5, 1e-5], [100, 300])


def terms(rates=(0.1, 0.2), thresholds=(1.0, 2.0), noise=3.0) -> Terms:
    return Terms.for_owners(TABLE, np.array(rates), np.array(thresholds), noise)


def plan(**changes) -> Plan:
    values = {
        "table": TABLE,
        "phases": (Phase(3, terms()), Phase(2, terms(noise=5.0))),
        "accountant": "pld",
        "spent": np.array([0.9, 7.0]),
    }
    return Plan(**(values | changes))


def test_the_expected_batch_and_threshold_sum():
    assert terms().expected_batch_size == pytest.approx(70)
    assert plan().expected_threshold_sum() == pytest.approx(0.1 * 100 * 1 + 0.2 * 300 * 2)


def test_phases_follow_each_other():
    made = plan()
    assert made.steps == 5
    assert [made.at(step).noise_scale for step in range(5)] == [3, 3, 3, 5, 5]
    with pytest.raises(InvalidArgumentError, match="step=5: the plan ends after 5 steps"):
        made.at(5)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
    st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=2),
    st.floats(0, 1e3),
)
def test_a_plan_equals_itself_after_json(rates, thresholds, noise):
    values = Terms(rates, thresholds, noise, 7.0)
    made = plan(phases=(Phase(4, values),))
    again = Plan.from_json(made.to_json())
    assert again == made
    assert json.loads(made.to_json())["format"] == 3


@given(st.floats(0, math.inf), st.floats(1, math.inf), st.none() | st.floats(0, 10), st.booleans())
def test_what_a_plan_was_asked_for_survives_json(exponent, ratio, margin, large):
    knobs = {"fairness": Fairness(exponent, ratio), "profile_margin": margin, "allow_large_deltas": large}
    config = PlanConfig(steps=5, variant="fair", expected_batch_size=70, noise_scale=3.0, accountant="rdp", **knobs)
    made = plan(config=config)
    assert Plan.from_json(made.to_json()) == made
    assert PlanConfig.from_json(json.loads(json.dumps(config.to_json(), allow_nan=False))) == config
    assert (made.variant, plan().variant) == ("fair", "by hand")


def test_a_plan_of_an_earlier_version_is_refused_by_its_version():
    fields = json.loads(plan().to_json())
    del fields["config"]
    earlier = fields | {"format": 1, "variant": "sample", "preferences": {}}
    with pytest.raises(InvalidArgumentError, match=r"format=1: another version of inosgd wrote this plan.*plan again"):
        Plan.from_json(json.dumps(earlier))


def test_different_plans_differ():
    assert plan() != plan(phases=(Phase(3, terms()),))
    assert plan() != plan(spent=np.array([0.8, 7.0]))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: terms(rates=(0.1, 1.2)), r"sampling_rate\[1\]=1.2"),
        (lambda: terms(rates=(math.nan, 0.2)), r"sampling_rate\[0\]=nan"),
        (lambda: terms(thresholds=(0.0, 1.0)), r"clipping_threshold\[0\]=0.0"),
        (lambda: terms(thresholds=(1e-9, 1.0)), "within a factor of 1,000,000"),
        (lambda: terms(noise=-1.0), "noise_scale=-1.0"),
        (lambda: terms(rates=(0.0, 0.0)), "expected_batch_size=0.0"),
        (lambda: Phase(0, terms()), "steps=0"),
        (lambda: Phase(True, terms()), "steps=True"),
        (lambda: plan(spent=np.array([1.1, 7.0])), "owner 'a' allows only epsilon=1"),
        (lambda: plan(spent=np.array([np.nan, 7.0])), "owner 'a' allows only"),
        (lambda: plan(phases=()), "at least one phase"),
        (lambda: Plan.from_json(plan().to_json().replace('"format": 3', '"format": 9')), "format=9"),
    ],
)
def test_bad_plans_are_refused_by_name(build, words):
    with pytest.raises(InvalidArgumentError, match=words):
        build()
