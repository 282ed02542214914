from __future__ import annotations

import numpy as np
import pytest

from inosgd import INO_SGD, SeededSource
from inosgd.audit.controls import CONTROLS, RejectingSampler, control_named
from inosgd.audit.practice import Practice, honest
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Phase
from tests.audit import tiny

HONEST = honest(tiny.PLAN, INO_SGD)


def test_an_honest_practice_does_what_is_claimed():
    assert HONEST.terms == tiny.PLAN.at(0)
    assert HONEST.method.importance.length == pytest.approx(0.5 * tiny.PLAN.expected_threshold_sum())
    assert HONEST.plan.table.epsilons.tolist() == [2.0, 8.0]


def test_the_tail_does_not_follow_the_examples_that_happen_to_be_there():
    few, _ = HONEST.for_owners(np.array([0, 1]))
    assert HONEST.method.tail(few.expected_threshold_sum()) == HONEST.method.tail(tiny.PLAN.expected_threshold_sum())


def test_noise_is_what_the_name_says():
    claimed = tiny.PLAN.at(0).noise_scale
    assert CONTROLS["no-noise"].spoil(HONEST).terms.noise_scale == 0
    assert CONTROLS["half-noise"].spoil(HONEST).terms.noise_scale == claimed / 2


def test_one_owner_is_not_clipped():
    spoiled = CONTROLS["unclipped-owner"].spoil(HONEST)
    thresholds = spoiled.terms.thresholds_of(np.array([0, 1]))
    factors = spoiled.method.clipping.factors(np.array([100.0, 100.0]), thresholds)
    assert factors[0] == 1.0
    assert factors[1] < 0.01


def test_rejection_leaves_no_class_out_and_a_class_of_one_always_in():
    classes = np.array([0] * 20 + [1] * 20 + [2])
    rates, rows = np.array([0.05]), np.zeros(41, dtype=np.int64)
    sampler, source = RejectingSampler(rates, rows, classes), SeededSource(0)
    batches = [sampler.draw(source) for _ in range(200)]
    assert all(set(classes[batch]) == {0, 1, 2} for batch in batches)
    assert all((np.diff(batch) > 0).all() for batch in batches)
    kept = np.mean([np.isin(np.arange(20), batch).mean() for batch in batches])
    # an example of a class of 20, given that the class is not empty: 0.05 / (1 - 0.95^20) = 0.078
    assert kept == pytest.approx(0.05 / (1 - 0.95**20), abs=0.02)


def test_another_owners_terms():
    spoiled = CONTROLS["anothers-terms"].spoil(HONEST)
    assert spoiled.terms.sampling_rates[0] == tiny.PLAN.at(0).sampling_rates[1]


def test_every_control_is_caught_by_an_audit_and_found_by_name():
    assert all(control.caught_by for control in CONTROLS.values())
    assert control_named("half-noise") is CONTROLS["half-noise"]
    with pytest.raises(InvalidArgumentError, match="control='nothing'"):
        control_named("nothing")


def test_plans_of_several_phases_are_refused():
    terms = tiny.PLAN.at(0)
    plan = type(tiny.PLAN)(tiny.PLAN.table, (Phase(1, terms), Phase(2, terms)), "pld", tiny.PLAN.spent)
    with pytest.raises(InvalidArgumentError, match="2 phases"):
        Practice(plan, INO_SGD)
