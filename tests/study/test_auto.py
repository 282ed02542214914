"""Auto: a choice from public facts, which leaves what was asked for and every other method alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.adjustment import Adjustment, class_signals
from inosgd.analysis.task import classification, multi_label, regression
from inosgd.averaging import Averaging
from inosgd.class_shares import ClassShares
from inosgd.errors import InvalidArgumentError
from inosgd.method import AUTO, METHODS
from inosgd.owners import Owners, OwnerTable
from inosgd.plan import Terms
from inosgd.plan_config import Fairness
from inosgd.study.auto import MAX_RATIO, choose, in_words
from inosgd.study.built_in import STUDIES
from inosgd.study.config import plan_for, plan_once
from inosgd.study.shares import settled

CONFIG = STUDIES["digits"].config.by(AUTO)
TWO = classification(["a", "b"])
TABLE = OwnerTable(("strict", "liberal"), np.array([1.0, 8.0]), np.full(2, 1e-5), np.array([720, 720]))


def data_with(first, second, *, task=TWO, table=TABLE):
    """Data of two owners, of whose examples these shares are of class a; None for no shares."""
    owners = Owners(table, np.repeat(np.arange(len(table)), table.sizes))
    shares = None
    if first is not None:
        given_shares = {"strict": {"a": first, "b": 1 - first}, "liberal": {"a": second, "b": 1 - second}}
        shares = ClassShares.declared(given_shares, ["a", "b"])
    return dataclasses.replace(STUDIES["digits"].split(0), task=task, owners=owners, shares=shares)


@pytest.mark.parametrize(
    ("task", "shares", "adjustment", "cap"),
    [
        (TWO, 1.0, Adjustment(1.5, "owners"), 3.0),
        (TWO, None, None, 2.0),
        (regression(["y"]), 1.0, None, 2.0),
        (multi_label(["x", "y"]), 1.0, None, 2.0),
    ],
)
def test_the_rule(task, shares, adjustment, cap):
    data = data_with(shares, 0.0, task=task)
    chosen = choose(CONFIG, data)
    assert chosen.method.adjustment == adjustment
    assert (chosen.method.importance, chosen.averaging) == (None, Averaging("exponential"))
    assert (chosen.plan.variant, chosen.plan.fairness) == ("fair", Fairness(max_ratio=cap))
    assert chosen.learning_rate == CONFIG.learning_rate
    assert choose(chosen, data) == chosen
    assert f"auto: a fair plan in which liberal owners have at most {cap:g}" in in_words(chosen)


@pytest.mark.parametrize(
    ("liberal_share", "variant", "cap"),
    [(0.0, "fair", 3.0), (0.15, "fair", math.inf), (0.4, "scale", 2.0), (1.0, "scale", 2.0)],
)
def test_where_liberal_owners_hold_the_strict_ones_classes_too_nobody_is_capped(liberal_share, variant, cap):
    chosen = choose(CONFIG, data_with(1.0, liberal_share))
    assert (chosen.plan.variant, chosen.method.variant) == (variant, variant)
    assert chosen.plan.fairness.max_ratio == cap
    capped = variant == "fair" and cap < math.inf
    assert ("without a cap" in in_words(chosen)) == (not capped)


@given(st.floats(0, 1), st.floats(0, 1))
def test_no_class_has_more_than_three_times_the_signal_of_another(first, second):
    data = data_with(first, second)
    chosen = choose(CONFIG, data)
    signals = class_signals(plan_for(chosen, TABLE, verify=False).at(0), TABLE, data.shares)
    assert signals.max() <= MAX_RATIO * signals.min() * (1 + 1e-6)


def test_a_class_has_the_mean_signal_of_the_owners_that_hold_it():
    terms = Terms(np.array([0.1, 0.2]), np.array([0.5, 1.0]), 1.0, 100.0)
    for share, expected in ((1.0, 0.05), (0.5, (0.05 * 1 + 0.2 * 0.5) / 1.5)):
        shares = data_with(1.0, 1 - share).shares
        assert class_signals(terms, TABLE, shares)[0] == pytest.approx(expected if share < 1 else 0.05)


def test_a_count_has_no_say_in_the_plan():
    counting = dataclasses.replace(CONFIG, count_classes=True)
    for shares in (None, 0.4):
        data = data_with(shares, 0.4)
        if data.shares is not None:
            only = ClassShares.declared({"strict": {"a": 1.0}}, ["a", "b"])
            data = dataclasses.replace(data, shares=only)
        assert choose(counting, data).plan.fairness == Fairness(max_ratio=MAX_RATIO)


def test_a_training_that_goes_on_keeps_its_plan():
    begun = dataclasses.replace(CONFIG.plan, variant="scale")
    assert choose(CONFIG, data_with(1.0, 0.0), begun).plan.variant == "scale"


def test_short_trainings_average_over_fewer_iterates():
    for steps, decay in ((5, 0.0), (40, 0.75), (100, 0.9), (5000, 0.9)):
        chosen = choose(CONFIG.changed({"steps": steps}), data_with(1.0, 1.0))
        assert chosen.averaging.decay == pytest.approx(decay)


def test_an_adjustment_that_is_asked_for_is_not_dropped_where_it_cannot_be_had():
    asked = CONFIG.changed({"adjustment.tau": 1.0})
    with pytest.raises(InvalidArgumentError, match="adjustment: it needs class shares"):
        settled(asked, data_with(None, None))
    assert settled(CONFIG, data_with(None, None)).method.adjustment is None


def test_what_is_asked_for_stays():
    asked = dataclasses.replace(CONFIG.changed({"adjustment.tau": 2.0}), averaging=Averaging("tail"))
    data = data_with(1.0, 0.0)
    chosen = choose(asked, data)
    assert (chosen.method.adjustment, chosen.averaging) == (Adjustment(2.0, "owners"), Averaging("tail"))
    capped = CONFIG.by(AUTO, Fairness(max_ratio=1.5))
    assert choose(capped, data).plan.fairness == Fairness(max_ratio=1.5)
    for method in METHODS.values():
        if method is not AUTO:
            config = STUDIES["digits"].config.by(method)
            assert choose(config, data) is config


def test_it_depends_on_no_example_and_on_no_count():
    data = STUDIES["digits"].split(0)
    other = dataclasses.replace(data, examples=data.examples.only(data.owners.assignment.argsort()))
    assert settled(CONFIG, data) == settled(CONFIG, other)
    counting = dataclasses.replace(CONFIG, count_classes=True)
    planned = settled(counting, dataclasses.replace(data, shares=None)).plan
    assert dataclasses.replace(planned, counting=None) == settled(CONFIG, data).plan


def test_a_plan_that_was_tried_is_verified_before_anyone_trains_by_it(dp_accounting_is_asked):
    config = CONFIG.changed({"steps": 7})
    tried = plan_once(config, TABLE, verify=False)
    assert plan_once(config, TABLE, verify=False) is tried
    assert plan_once(config, TABLE) is not tried
    assert plan_once(config, TABLE, verify=False) is tried
