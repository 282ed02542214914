"""Findings: each rule fires where it should and is silent where it should be, on made-up and on real trainings."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.analysis.evaluation import Evaluation, judged
from inosgd.analysis.findings import (
    Finding,
    at_chance,
    drowned,
    findings,
    noise_ratio,
    one_answer,
    shared_findings,
    still_improving,
)
from inosgd.analysis.guessing import Guessing
from inosgd.analysis.task import Task, classification, multi_label, regression
from inosgd.compare.entrant import Entrant
from inosgd.compare.training import train_once
from inosgd.method import method_named
from inosgd.owners import Owners
from inosgd.study.built_in import STUDIES

THREE = classification(["x", "y", "z"])


def evaluation(predicted, targets, groups=None, task: Task = THREE, names=("a", "b")) -> Evaluation:
    """A final evaluation of a classifier with these answers."""
    predicted, targets = np.asarray(predicted), np.asarray(targets)
    outputs = np.eye(task.outputs)[predicted]
    groups = np.zeros(len(targets), dtype=np.int64) if groups is None else np.asarray(groups)
    return judged(task, outputs, np.ones(len(targets)), targets, groups, names, step=100, measure=True)


def kinds(found) -> list[tuple[str, str]]:
    return [(each.kind, each.about) for each in found]


def dealt(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Answers and classes that have nothing to do with each other."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 3, count), generator.choice(3, count, p=[0.6, 0.3, 0.1])


# One answer.


def test_one_class_for_everything():
    found = list(one_answer(evaluation([0] * 100, [0] * 60 + [1] * 40), ("cat", "dog", "cow")))
    assert kinds(found) == [("one-answer", "the model")]
    assert "predicts class cat for every held-out example, although only 60.0 % of them" in found[0].text
    assert found[0].evidence == {"predicted_share": 1.0, "actual_share": 0.6}


@pytest.mark.parametrize(
    ("predicted", "targets"),
    [
        ([0] * 96 + [1] * 4, [0] * 60 + [1] * 40),  # a few other answers
        ([0] * 100, [0] * 97 + [1] * 3),  # there is hardly anything else
        ([0] * 20, [0] * 12 + [1] * 8),  # too few to tell
        ([0] * 490 + [1] * 10, [0] * 475 + [1] * 25),  # the others are rare, and some are found
    ],
)
def test_no_alarm_about_one_answer(predicted, targets):
    assert list(one_answer(evaluation(predicted, targets))) == []


def numbers_evaluated(outputs, targets, groups=None) -> Evaluation:
    outputs, targets = np.asarray(outputs)[:, None], np.asarray(targets)[:, None]
    groups = np.zeros(len(targets), dtype=np.int64) if groups is None else groups
    names = ("a", "b")
    return judged(regression(["y"]), outputs, np.ones(len(targets)), targets, groups, names, 100, measure=True)


def test_one_number_for_everything():
    targets = np.random.default_rng(0).normal(size=200)
    assert kinds(one_answer(numbers_evaluated(0.01 * targets + 3, targets))) == [("one-answer", "the model")]
    assert list(one_answer(numbers_evaluated(0.2 * targets, targets))) == []
    assert list(one_answer(numbers_evaluated(np.zeros(200), np.ones(200)))) == []  # the targets are one answer too


# Chance.


@pytest.mark.parametrize("seed", range(5))
def test_answers_dealt_out_at_random_are_at_chance(seed):
    """With 1,000 examples; 19 of 20 seeds are expected to be found at the level that is tested."""
    assert kinds(at_chance(evaluation(*dealt(1000, seed)))) == [("at-chance", "the model")]


def test_a_small_improvement_is_not_chance():
    generator = np.random.default_rng(0)
    answers, targets = dealt(1000, 0)
    knowing = np.where(generator.random(1000) < 0.15, targets, answers)
    assert list(at_chance(evaluation(knowing, targets))) == []


def test_a_handful_of_examples_says_nothing():
    """Whatever the answers are; an owner with few held-out examples must not be called badly treated."""
    for seed in range(50):
        assert list(at_chance(evaluation(*dealt(8, seed)))) == []


def two_owners(own_answers, seed=0):
    """Owner a is predicted well; owner b, with the same mix of classes, gets ``own_answers``."""
    generator = np.random.default_rng(seed)
    targets = generator.choice(3, 600, p=[0.6, 0.3, 0.1])
    answers = np.where(generator.random(300) < 0.9, targets[:300], 0)
    return evaluation(np.append(answers, own_answers(targets[300:])), targets, [0] * 300 + [1] * 300)


def test_an_owner_who_always_gets_the_majority_class():
    found = list(at_chance(two_owners(np.zeros_like)))
    assert kinds(found) == [("at-chance", "owner b")]
    assert "For owner b the model is no better than guessing: accuracy" in found[0].text
    assert found[0].evidence["reached"] == pytest.approx(found[0].evidence["guessing"])


def test_an_owner_below_its_majority_class_who_is_still_told_apart():
    """Accuracy below that of a constant answer is not chance if the answers depend on the examples."""
    generator = np.random.default_rng(1)

    def answers(targets):
        return np.where(generator.random(len(targets)) < 0.4, targets, generator.integers(0, 3, len(targets)))

    found = two_owners(answers)
    assert found.owners["b"].score < 0.65
    assert kinds(at_chance(found)) == []


def test_owners_of_one_class_each():
    """What there is to learn is to tell owners apart: one owner is right, and would be at chance by itself."""
    targets = np.repeat([0, 1], 100)
    groups = targets
    good = np.where(np.arange(200) % 20 == 0, 1 - targets, targets)
    assert list(at_chance(evaluation(good, targets, groups))) == []
    ignored = np.append(np.zeros(100, dtype=np.int64), np.arange(100) % 2 * 2)  # class y is never predicted
    assert kinds(at_chance(evaluation(ignored, targets, groups))) == [
        ("at-chance", "owner b"),
        ("at-chance", "classes"),
    ]


def test_classes_that_are_never_predicted():
    targets = np.repeat([0, 1, 2], [80, 80, 40])
    found = list(at_chance(evaluation(np.where(targets == 2, 0, targets), targets), ("cat", "dog", "cow")))
    assert kinds(found) == [("at-chance", "classes")]
    assert "One class is not recognised: cow." in found[0].text
    assert found[0].evidence == {"cow": 0.0}
    few = np.repeat([0, 1, 2], [80, 80, 4])
    assert list(at_chance(evaluation(np.where(few == 2, 0, few), few))) == []
    seldom = np.where((targets == 2) & (np.arange(200) % 10 > 0), 0, targets)  # recall 10 %, and always right
    assert list(at_chance(evaluation(seldom, targets))) == []


def test_balanced_accuracy_of_a_rare_class():
    task = classification(["x", "y", "z"], balanced=True)
    targets = np.repeat([0, 1], [900, 100])
    assert kinds(at_chance(evaluation(np.zeros(1000, dtype=int), targets, task=task))) == [("at-chance", "the model")]
    better = np.where(np.arange(1000) % 3 == 0, targets, 0)
    assert list(at_chance(evaluation(better, targets, task=task))) == []


def labels_evaluated(strength: float, count: int, seed: int = 0) -> Evaluation:
    generator = np.random.default_rng(seed)
    targets = (generator.random((count, 2)) < 0.2).astype(float)
    outputs = strength * targets + generator.normal(size=targets.shape)
    task = multi_label(["x", "y"])
    return judged(task, outputs, np.ones(count), targets, np.arange(count) % 2, ("a", "b"), 9, measure=True)


def test_labels_that_are_guessed():
    assert kinds(at_chance(labels_evaluated(0.0, 2000))) == [("at-chance", "the model")]
    assert list(at_chance(labels_evaluated(1.0, 2000))) == []
    assert list(at_chance(labels_evaluated(0.0, 30))) == []


def test_numbers_that_are_guessed():
    generator = np.random.default_rng(0)
    targets, noise = generator.normal(size=(2, 1000))
    groups = np.arange(1000) % 2
    assert kinds(at_chance(numbers_evaluated(0.05 * noise, targets, groups))) == [("at-chance", "the model")]
    assert list(at_chance(numbers_evaluated(0.8 * targets + 0.3 * noise, targets, groups))) == []
    one_owner = np.where(groups == 1, 0.1 * noise, 0.9 * targets)
    assert kinds(at_chance(numbers_evaluated(one_owner, targets, groups))) == [("at-chance", "owner b")]
    assert list(at_chance(numbers_evaluated(0.05 * noise[:8], targets[:8]))) == []


def test_a_negative_error_margin_would_be_caught():
    """The control of the rule itself: at the level with many examples, and with few."""
    assert Guessing("accuracy", 0.5, 0.5, 0.01, 0.01).at_level
    assert not Guessing("accuracy", 0.5, 0.5, 0.1, 0.1).at_level
    assert not Guessing("accuracy", 0.55, 0.5, 0.01, 0.01).at_level
    assert Guessing("accuracy", 0.3, 0.5, 0.01, 0.01).at_level


# Still improving.


def curve_of(scores, losses) -> list[Evaluation]:
    pairs = zip(scores, losses, strict=True)
    return [Evaluation(10 * (n + 1), float(score), {}, float(loss)) for n, (score, loss) in enumerate(pairs)]


def made_up_curve(points: int, rate: float, noise: float, seed: int) -> list[Evaluation]:
    """A curve that approaches 0.9 with noise; the larger the rate, the earlier."""
    generator = np.random.default_rng(seed)
    time = np.linspace(1 / points, 1, points)
    risen = 0.9 * (1 - np.exp(-rate * time))
    score = risen + noise * generator.normal(size=points)
    return curve_of(score, 2.3 * (1 - risen) + 2 * noise * generator.normal(size=points))


@pytest.mark.parametrize("points", [10, 20])
def test_a_training_that_ends_too_early(points):
    found = list(still_improving(made_up_curve(points, 1.0, 0.002, 0)))
    assert kinds(found) == [("still-improving", "the model")]
    assert "accuracy rose by" in found[0].text
    assert found[0].evidence["to_step"] == 10 * points


@pytest.mark.parametrize("points", [10, 20])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_few_false_alarms_on_curves_that_are_flat_at_the_end(points, noise):
    """At most 1 % of 200 curves, whose noise is independent from point to point."""
    alarms = sum(bool(list(still_improving(made_up_curve(points, 30.0, noise, seed)))) for seed in range(200))
    assert alarms <= 2


def test_few_false_alarms_on_curves_that_wander():
    """Noise of a training goes on from point to point: a random walk that is pulled back, 200 curves."""
    alarms = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        walk = np.zeros(20)
        for n in range(1, 20):
            walk[n] = 0.6 * walk[n - 1] + 0.01 * generator.normal()
        alarms += bool(list(still_improving(curve_of(0.8 + walk, 0.6 - 2 * walk))))
    assert alarms <= 20


def test_short_curves_and_losses_that_rise_say_nothing():
    rising = np.linspace(0.1, 0.8, 7)
    assert list(still_improving(curve_of(rising, 1 - rising))) == []
    rising = np.linspace(0.1, 0.8, 12)
    assert list(still_improving(curve_of(rising, rising))) == []
    assert list(still_improving(curve_of(rising, np.full(12, np.nan)))) == []
    assert kinds(still_improving(curve_of(rising, 1 - rising))) == [("still-improving", "the model")]  # the control


# Noise.


@pytest.fixture(scope="module")
def plan():
    table = OwnerTable(("a", "b"), [0.5, 0.5], [1e-5] * 2, [500, 500])
    arguments = {"variant": "uniform", "expected_batch_size": 20, "clipping_threshold": 0.5, "accountant": "rdp"}
    return make_plan(table, PlanConfig(steps=50, **arguments))


def test_the_ratio_by_hand(plan):
    terms = plan.at(0)
    largest = 0.5 * terms.expected_batch_size
    assert noise_ratio(terms, plan.table.sizes, 100) == pytest.approx(10 * terms.noise_scale / largest)


def test_noise_that_drowned_everything(plan):
    guessed, learnt = evaluation(*dealt(1000, 0)), evaluation(np.arange(99) % 3, np.arange(99) % 3)
    found = list(drowned([guessed], plan, 1_000_000))
    assert kinds(found) == [("drowned", "the model")]
    assert found[0].evidence["noise_ratio"] > 1
    assert list(drowned([learnt], plan, 1_000_000)) == []  # noise alone is no alarm
    assert list(drowned([guessed], plan, 1)) == []  # and neither is a model that learnt nothing
    assert kinds(findings([guessed], (), plan, 1_000_000)) == [("drowned", "the model")]  # it says why


def test_no_better_than_the_initial_model(plan):
    answers, targets = dealt(1000, 0)
    knowing = np.where(np.arange(1000) % 2 == 0, targets, answers)
    later = dataclasses.replace(evaluation(knowing, targets), loss=1.2)
    first = dataclasses.replace(later, step=0, loss=1.1)
    assert kinds(drowned([first, later], plan, 1_000_000)) == [("drowned", "the model")]
    assert list(drowned([dataclasses.replace(first, loss=1.3), later], plan, 1_000_000)) == []


# Together.


def test_findings_are_plain_values():
    found = findings([evaluation([0] * 100, [0] * 60 + [1] * 40)])
    assert kinds(found) == [("one-answer", "the model")]  # what follows from it is not said again
    assert Finding.from_json(json.loads(json.dumps(found[0].to_json()))) == found[0]
    assert findings([]) == ()


def test_seeds_have_findings_in_common():
    one, other = Finding("a", "x", "One.", {}), Finding("b", "x", "Other.", {})
    found = shared_findings([[one, other], [one], [one]], "ino-sgd")
    assert [each.text for each in found] == ["ino-sgd (3 of 3 seeds): One."]
    assert shared_findings([[one], []], "ino-sgd") == ()
    assert [each.text for each in shared_findings([[one]], "m")] == ["m: One."]


def trained(name: str, steps: int, budgets: float = 1.0, method: str = "idp-sgd"):
    """A small real training of a study that comes with the program, with other steps and budgets."""
    study = STUDIES[name].changed({"steps": steps, "accountant": "rdp"})
    data = study.split(0)
    table = data.owners.table
    table = OwnerTable(table.names, budgets * table.epsilons, table.deltas, table.sizes)
    data = dataclasses.replace(data, owners=Owners(table, data.owners.assignment))
    return train_once(study, data, Entrant(method, method_named(method)), 0).findings


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("digits", 200, 1 / 400), [("drowned", "the model")]),
        (("digits", 20), [("at-chance", "owner digits 0-4"), ("at-chance", "classes")]),
        (("digits", 200), [("still-improving", "the model")]),
        (("digits", 300, 20.0, "dp-sgd"), []),
        (("breast-cancer", 100, 1 / 200), [("drowned", "the model")]),
        (("breast-cancer", 20), [("one-answer", "the model")]),
        (("breast-cancer", 100, 4.0), []),
    ],
    ids=str,
)
def test_real_trainings(arguments, expected):
    assert kinds(trained(*arguments)) == expected
