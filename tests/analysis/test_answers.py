"""Answers: what is asked first, in the right order, with what held-out examples can tell."""

from __future__ import annotations

import json

import numpy as np
import pytest

from inosgd import OwnerTable
from inosgd.analysis.answers import (
    BUDGETS,
    LOW,
    NEXT,
    QUALITY,
    Answer,
    about_budgets,
    about_low,
    about_next,
    about_quality,
    answers,
    untold,
)
from inosgd.analysis.findings import Finding, findings
from inosgd.analysis.intervals import score_interval, share_interval
from inosgd.analysis.suggestions import AGAIN, Suggestion
from tests.analysis.test_findings import THREE, evaluation

TABLE = OwnerTable(("strict", "liberal"), [0.5, 5.0], [1e-5, 1e-5], [100, 100])
SPENT = np.array([0.49999, 4.0])
MORE = Suggestion("steps", "Try 400 steps.", "It still improved.", "The budgets stay the same.")


def useless():
    """A model that predicts one class for everything."""
    return evaluation([0] * 200, [0] * 120 + [1] * 80, [0] * 100 + [1] * 100, names=("strict", "liberal"))


def useful(right=0.9, owner=0.9):
    """A model that is right about ``right`` of one owner's examples and ``owner`` of the other's."""
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 3, 400)
    share = np.repeat([right, owner], 200)
    answered = np.where(generator.random(400) < share, targets, (targets + 1) % 3)
    return evaluation(answered, targets, [0] * 200 + [1] * 200, names=("strict", "liberal"))


def questions(found) -> list[str]:
    return [each.question for each in found]


def test_a_useless_model_comes_before_everything():
    found = answers(TABLE, SPENT, useless(), findings([useless()], THREE.names), (), classes=THREE.names)
    assert questions(found) == [QUALITY, BUDGETS, NEXT]
    assert found[0].good is False
    assert found[0].text.startswith("No. The model predicts class x for every held-out example")
    assert "No rule tells why" in found[2].text
    assert "--yardstick-not-private" in found[2].text


def test_a_useful_model_comes_after_the_budgets():
    found = answers(TABLE, SPENT, useful(), (), (MORE,), classes=THREE.names)
    assert questions(found) == [BUDGETS, QUALITY, LOW, NEXT]
    assert [each.good for each in found[:3]] == [True, True, True]


def test_an_exceeded_budget_comes_first_and_names_the_owner():
    over = about_budgets(TABLE, np.array([0.6, 4.0]))
    assert over.good is False
    assert "1 of 2 owners exceeded their budgets: strict" in over.text
    assert "strict" not in about_budgets(TABLE, np.array([0.6, 4.0]), named=False).text
    first = answers(TABLE, np.array([0.6, 4.0]), useless(), findings([useless()]), ())[0]
    assert first.question == BUDGETS


def test_a_share_is_rounded_up_and_within_a_budget_that_is_kept():
    assert "is 100 %" in about_budgets(TABLE, SPENT).text
    assert "is 98.1 %" in about_budgets(TABLE, np.array([0.4902, 4.0])).text
    assert "100" not in about_budgets(TABLE, np.array([0.4902, 4.0])).text


def test_quality_has_an_interval_and_the_majority_beside_it():
    found = about_quality(useful(), ())
    assert "by 400 held-out examples" in found.text
    assert "predicting the largest class gives" in found.text
    assert "not private" not in found.text
    assert "without privacy 95.0 % (not private)" in about_quality(useful(), (), 0.95).text


def test_a_model_below_the_majority_is_not_called_good():
    most = evaluation([0] * 150 + [1] * 50, [0] * 180 + [1] * 20)
    assert about_quality(most, ()).good is False
    assert "no better than that constant answer" in about_quality(most, ()).text
    assert about_quality(None, ()).good is None


def test_low_owners_and_classes_are_named_beyond_chance():
    found = about_low(useful(0.9, 0.6), (), THREE.names)
    assert found.good is False
    assert "1 owner: liberal (" in found.text
    assert "liberal" not in about_low(useful(0.9, 0.6), (), THREE.names, named=False).text
    assert about_low(useful(), (), THREE.names).good is True


def test_a_class_that_is_hardly_recognised():
    predicted = [0] * 100 + [1] * 100 + [0] * 45 + [2] * 5
    found = about_low(evaluation(predicted, [0] * 100 + [1] * 100 + [2] * 50), (), THREE.names)
    assert "1 class: z (recall 10.0 %)" in found.text


def test_a_handful_of_examples_is_marked_and_not_called_low():
    few = evaluation([1] * 5 + [0] * 200, [0] * 5 + [0] * 200, [0] * 5 + [1] * 200, names=("strict", "liberal"))
    many = about_low(few, (), THREE.names)
    assert "Too few held-out examples to tell for 1 owner (strict), below 30" in many.text
    assert "owner: strict" not in many.text or score_interval(few.owners["strict"], "accuracy").high < few.overall


def test_what_is_next_says_what_trying_costs():
    assert about_next((MORE,)).text == f"{MORE} {AGAIN}"
    assert "(2) Try 400" in about_next((MORE, MORE)).text
    assert AGAIN not in about_next(()).text


def test_findings_that_an_answer_has_told_are_not_told_again():
    about_model = Finding("one-answer", "the model", "", {})
    improving = Finding("still-improving", "the model", "", {})
    other = Finding("at-chance", "owner a", "", {})
    assert untold((about_model, other, improving), (MORE,)) == (other,)
    assert untold((improving,), ()) == (improving,)


def test_answers_survive_json():
    found = about_budgets(TABLE, SPENT)
    assert Answer.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.93])
def test_intervals_cover_the_share_that_examples_are_drawn_with(share):
    """19 of 20 intervals; a normal approximation would cover less near 1."""
    hits = np.random.default_rng(0).binomial(60, share, size=2000)
    covered = [low <= share <= high for low, high in (share_interval(hit / 60, 60) for hit in hits)]
    assert 0.93 <= np.mean(covered) <= 0.98
    narrow = [abs(hit / 60 - share) <= 1.0 * np.sqrt(share * (1 - share) / 60) for hit in hits]
    assert np.mean(narrow) < 0.93  # the control: one standard error is not enough
