"""Auto: a choice from public facts, which leaves what was asked for and every other method alone."""

from __future__ import annotations

import dataclasses

import pytest

from inosgd.adjustment import Adjustment
from inosgd.analysis.task import classification, multi_label, regression
from inosgd.averaging import Averaging
from inosgd.method import AUTO, METHODS
from inosgd.study.auto import choose, in_words
from inosgd.study.built_in import STUDIES
from inosgd.study.shares import settled

CONFIG = STUDIES["digits"].config.by(AUTO)
TWO = classification(["a", "b"])


@pytest.mark.parametrize(
    ("task", "shares", "adjustment"),
    [
        (TWO, True, Adjustment(1.5, "owners")),
        (TWO, False, None),
        (regression(["y"]), True, None),
        (multi_label(["x", "y"]), True, None),
    ],
)
def test_the_rule(task, shares, adjustment):
    chosen = choose(CONFIG, task, shares=shares)
    assert chosen.method.adjustment == adjustment
    assert (chosen.method.importance, chosen.averaging) == (None, Averaging("exponential"))
    assert (chosen.plan.variant, chosen.learning_rate) == ("fair", CONFIG.learning_rate)
    assert choose(chosen, task, shares=shares) == chosen
    assert "auto: a fair plan" in in_words(chosen)


def test_short_trainings_average_over_fewer_iterates():
    for steps, decay in ((5, 0.0), (40, 0.75), (100, 0.9), (5000, 0.9)):
        assert choose(CONFIG.changed({"steps": steps}), TWO, shares=True).averaging.decay == pytest.approx(decay)


def test_what_is_asked_for_stays():
    asked = dataclasses.replace(CONFIG.changed({"adjustment.tau": 2.0}), averaging=Averaging("tail"))
    chosen = choose(asked, TWO, shares=True)
    assert (chosen.method.adjustment, chosen.averaging) == (Adjustment(2.0, "owners"), Averaging("tail"))
    for method in METHODS.values():
        if method is not AUTO:
            config = STUDIES["digits"].config.by(method)
            assert choose(config, TWO, shares=True) is config


def test_it_depends_on_no_example_and_on_no_count():
    data = STUDIES["digits"].split(0)
    other = dataclasses.replace(data, examples=data.examples.only(data.owners.assignment.argsort()))
    assert settled(CONFIG, data) == settled(CONFIG, other)
    counting = dataclasses.replace(CONFIG, count_classes=True)
    planned = settled(counting, dataclasses.replace(data, shares=None)).plan
    assert dataclasses.replace(planned, counting=None) == settled(CONFIG, data).plan
