"""Suggestions: each rule speaks where it should, and is silent where it must be."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.analysis.evaluation import Evaluation, OwnerQuality
from inosgd.analysis.guessing import Guessing
from inosgd.analysis.suggestions import (
    MOST,
    NORMS,
    Setup,
    Suggestion,
    beside_yardstick,
    class_shares,
    classes_alike,
    fewer_steps,
    larger_batch,
    larger_rate,
    majority,
    more_steps,
    other_plan,
    smaller_model,
    smaller_rate,
    steadier,
    suggestions,
    tighter_threshold,
    too_sure,
    unmoved,
    with_yardstick,
)

SETUP = Setup(
    steps=200,
    variant="sample",
    batch=64.0,
    examples=1000,
    parameters=100,
    signals={"strict": 3.0, "liberal": 30.0},
    sizes={"strict": 500, "liberal": 500},
    spent_shares={"strict": 1.0, "liberal": 1.0},
    threshold=1.0,
    learning_rate=0.5,
)
BETTER = Guessing("accuracy", 0.8, 0.5, 0.02, 0.02)
GUESSING = Guessing("accuracy", 0.5, 0.5, 0.02, 0.02)


def curve_of(scores, losses, guessing=BETTER, owners=None, measures=None, **also) -> list[Evaluation]:
    """A curve with these scores and losses; measures, owners and guessing are those of its end."""
    points = [
        Evaluation(10 * (number + 1), float(score), {}, float(loss), examples=1000, members=(500, 500))
        for number, (score, loss) in enumerate(zip(scores, losses, strict=True))
    ]
    end = {"guessing": guessing, "owners": owners or {}, "measures": measures or {}, **also}
    return [*points[:-1], dataclasses.replace(points[-1], **end)]


def rising(count=20, jitter=0.0, seed=0):
    """A training that is still improving at its end."""
    steps, noise = np.linspace(0, 1, count), np.random.default_rng(seed).normal(size=count)
    return curve_of(0.4 + 0.4 * steps, 2.0 - steps + jitter * noise)


def flat(count=20, jitter=0.0, guessing=BETTER, **also):
    """A training that levelled off after a tenth of its steps."""
    noise = np.random.default_rng(1).normal(size=count)
    scores = np.where(np.arange(count) < count // 10, 0.4, 0.8) + jitter * noise
    return curve_of(scores, np.full(count, 0.5), guessing, **also)


def settings(found) -> list[str]:
    return [each.setting for each in found]


# The learning rate.


def test_a_training_that_diverged_gets_a_smaller_rate_and_nothing_else():
    diverged = curve_of([0.5, 0.8, 0.6, 0.3], [1.0, 0.6, 1.5, 4.0])
    found = suggestions(diverged, SETUP)
    assert settings(found) == ["learning_rate"]
    assert found[0].to == 0.17
    assert "80.0 % after step 20 and is 30.0 % at the end" in found[0].because
    assert settings(smaller_rate(curve_of([0.5, 0.5], [1.0, math.nan]), SETUP)) == ["learning_rate"]


@pytest.mark.parametrize(
    ("scores", "losses"),
    [
        ([0.5, 0.8, 0.79, 0.78], [1.0, 0.5, 0.6, 0.7]),  # the loss rises, the score stays
        ([0.5, 0.9, 0.7, 0.7], [1.0, 0.5, 0.5, 0.55]),  # the score falls, the loss stays
        ([0.5, 0.6, 0.7, 0.8], [1.0, 0.9, 0.8, 0.7]),
    ],
)
def test_no_smaller_rate(scores, losses):
    assert list(smaller_rate(curve_of(scores, losses), SETUP)) == []


def test_a_smooth_fall_that_is_not_over_gets_a_larger_rate():
    assert [each.to for each in larger_rate(rising(), SETUP)] == [1.0]
    assert list(larger_rate(rising(jitter=0.05), SETUP)) == []  # noisy: a larger rate would be noisier
    assert list(larger_rate(flat(), SETUP)) == []


def ended(loss, predicted=(500, 500), guessing=BETTER, members=(500, 500), jitter=0.0, **also):
    """A curve that ends so; from one evaluation to the next the loss goes up and down by ``jitter``."""
    losses = loss + jitter * (np.arange(10) % 2 - 1)
    return curve_of(np.full(10, 0.5), losses, guessing, predicted=predicted, members=members, **also)


def test_a_model_that_is_sure_of_wrong_classes_gets_a_smaller_rate():
    (found,) = too_sure(ended(1.3, jitter=0.2), SETUP)
    assert (found.setting, found.to) == ("learning_rate", 0.17)
    assert "is 1.30, and with equal probabilities for all classes it would be 0.69" in found.because
    assert list(too_sure(ended(1.3), SETUP)) == []  # no sign of large updates
    assert list(too_sure(ended(0.8, jitter=0.2), SETUP)) == []
    assert list(too_sure(ended(1.3, jitter=0.2, members=()), SETUP)) == []  # other tasks have other losses
    assert list(too_sure(ended(1.3, jitter=0.2, members=(250,) * 4), SETUP)) == []
    assert list(too_sure(rising(), SETUP)) == []


def test_a_model_that_was_hardly_moved_gets_a_larger_rate():
    nothing = {"predicted": (1000, 0), "members": (700, 300)}
    assert [each.to for each in unmoved(ended(0.68, **nothing), SETUP)] == [2.0]
    assert [each.to for each in unmoved(ended(0.68, guessing=GUESSING), SETUP)] == [2.0]
    assert list(unmoved(ended(0.68), SETUP)) == []  # it is better than guessing
    assert list(unmoved(ended(0.61, **nothing), SETUP)) == []  # it was moved: to the shares of the classes
    assert list(unmoved(ended(0.9, **nothing), SETUP)) == []


# Steps.


def test_more_steps_while_it_still_improves():
    (found,) = more_steps(rising(jitter=0.02), SETUP)
    assert (found.setting, found.to) == ("steps", 400)
    assert found.evidence["noise_factor_at_most"] == pytest.approx(math.sqrt(2))
    assert list(more_steps(flat(), SETUP)) == []


def test_fewer_steps_where_it_levelled_off_long_ago():
    (found,) = fewer_steps(flat(), SETUP)
    assert (found.setting, found.to) == ("steps", 100)


@pytest.mark.parametrize(
    "curve",
    [rising(), flat(8), flat(guessing=GUESSING), flat(guessing=None), curve_of([0.9] * 19 + [0.8], [1.0] * 20)],
    ids=["rising", "too few points", "guessing", "not measured", "worse than before"],
)
def test_no_fewer_steps(curve):
    assert list(fewer_steps(curve, SETUP)) == []


@pytest.mark.parametrize("batch", [8, 64, 400])
@pytest.mark.parametrize("variant", ["uniform", "sample", "scale", "fair"])
def test_the_planner_needs_no_more_noise_than_is_told(variant, batch):
    table = OwnerTable(("strict", "liberal"), [1.0, 8.0], [1e-5, 1e-5], [500, 500])
    asked = {"variant": variant, "expected_batch_size": batch, "clipping_threshold": 1.0, "accountant": "rdp"}
    once, twice = (
        make_plan(table, PlanConfig(steps=steps, **asked), verify=False).at(0).noise_scale for steps in (200, 400)
    )
    assert 1 <= twice / once <= 1.42
    assert 0.7 <= once / twice <= 1


# Averages.


def test_an_unsteady_score_gets_an_average():
    assert settings(steadier(flat(jitter=0.05), SETUP)) == ["averaging"]
    assert list(steadier(flat(jitter=0.05), dataclasses.replace(SETUP, averaged=True))) == []
    assert list(steadier(flat(jitter=0.002), SETUP)) == []
    assert list(steadier(flat(6, jitter=0.05), SETUP)) == []


# Plans.


def owners_with(strict: float, examples: int = 500) -> dict[str, OwnerQuality]:
    return {"strict": OwnerQuality(strict, 1.0, examples), "liberal": OwnerQuality(0.9, 0.3, 500)}


def test_an_owner_with_a_weak_signal_and_low_accuracy_gets_another_plan():
    (found,) = other_plan(flat(owners=owners_with(0.6)), SETUP)
    assert (found.setting, found.to, found.owner) == ("variant", "fair", "strict")
    assert "Owner strict has accuracy 60.0 %" in found.because
    assert "10 % of the largest signal" in found.because
    hidden = found.unnamed()
    assert "strict" not in str(hidden)
    assert "An owner has accuracy 60.0 %" in hidden.because
    assert hidden.owner is None


@pytest.mark.parametrize(
    ("owners", "changes"),
    [
        (owners_with(0.78), {}),  # not far below
        (owners_with(0.6, 8), {}),  # too few examples to tell
        (owners_with(0.6), {"variant": "fair"}),
        (owners_with(0.6), {"signals": {"strict": 20.0, "liberal": 30.0}}),  # the plan is not what holds it back
        ({"strict": OwnerQuality(0.6, 1.0, 500)}, {"signals": {"strict": 3.0}}),
    ],
    ids=["near", "few", "fair already", "strong", "alone"],
)
def test_no_other_plan(owners, changes):
    assert list(other_plan(flat(owners=owners), dataclasses.replace(SETUP, **changes))) == []


def test_budgets_that_a_uniform_plan_leaves_unused():
    uniform = dataclasses.replace(SETUP, variant="uniform", spent_shares={"strict": 1.0, "liberal": 0.1})
    (found,) = other_plan(flat(), uniform)
    assert "Owner liberal spends 10 % of its budget" in found.because
    assert "liberal" not in str(found.unnamed())
    used = dataclasses.replace(uniform, spent_shares={"strict": 1.0, "liberal": 0.9})
    assert list(other_plan(flat(), used)) == []


# Classes.

PLAIN, ADJUSTED = (
    dataclasses.replace(SETUP, variant="fair", adjusted=words)
    for words in ("", "signals taken out of the loss (tau 1.5, target owners) by class shares")
)


def test_unequal_signals_and_a_plain_loss_call_for_class_shares():
    low = flat(owners=owners_with(0.6))
    (found,) = class_shares(low, PLAIN)
    assert (found.setting, found.owner) == ("shares", "strict")
    assert "shares.count = true" in found.text
    assert "strict" not in str(found.unnamed())
    for unknown_or_adjusted in (ADJUSTED, SETUP):
        assert list(class_shares(low, unknown_or_adjusted)) == []
    equal = dataclasses.replace(PLAIN, signals={"strict": 29.0, "liberal": 30.0})
    assert list(class_shares(low, equal)) == []
    assert list(class_shares(flat(owners=owners_with(0.78)), PLAIN)) == []
    assert list(class_shares(flat(owners=owners_with(0.6), members=()), PLAIN)) == []  # no classes, no shares


def test_a_rare_class_that_is_not_recognised_calls_for_a_loss_that_treats_classes_alike():
    rare = flat(classes=(0.95, 0.1), members=(800, 200))
    for setup in (PLAIN, ADJUSTED):
        (found,) = classes_alike(rare, setup, ("well", "ill"))
        assert (found.setting, found.to) == ("adjustment", "classes")
        assert "Of class ill, 10 % are recognised; it has 20 % of held-out examples." in found.because
    alike = dataclasses.replace(ADJUSTED, adjusted="signals taken out of the loss (tau 1, target classes)")
    assert list(classes_alike(rare, alike)) == []
    assert list(classes_alike(rare, SETUP)) == []  # not known
    assert list(classes_alike(flat(classes=(0.95, 0.1), members=(200, 800)), PLAIN)) == []  # low, but not rare
    assert list(classes_alike(flat(classes=(0.95, 0.8), members=(800, 200)), PLAIN)) == []
    assert list(classes_alike(flat(classes=(0.95, 0.0), members=(992, 8)), PLAIN)) == []  # too few to tell


# Batches and models.

DROWNED = dataclasses.replace(SETUP, signals={"strict": 1.0, "liberal": 2.0}, parameters=5000)


def test_noise_that_drowned_everything_gets_a_larger_batch_and_a_smaller_model():
    guessing = flat(guessing=GUESSING)
    assert [each.to for each in larger_batch(guessing, DROWNED)] == [250.0]  # no more than a quarter
    assert settings(smaller_model(guessing, DROWNED)) == ["model"]
    assert DROWNED.noise_ratio == pytest.approx(math.sqrt(5000) / 3)


def test_one_answer_is_no_learning_either():
    same = flat(guessing=BETTER, predicted=(1000, 0), members=(700, 300))
    assert settings(larger_batch(same, DROWNED)) == ["expected_batch_size"]
    assert settings(smaller_model(same, DROWNED)) == ["model"]


def test_noise_that_a_model_learnt_under_is_no_reason_to_change():
    for rule in (larger_batch, smaller_model):
        assert list(rule(flat(), DROWNED)) == []  # it is better than guessing
        assert list(rule(flat(guessing=GUESSING), dataclasses.replace(DROWNED, parameters=4))) == []  # no such noise
    large = dataclasses.replace(DROWNED, batch=300.0)
    assert list(larger_batch(flat(guessing=GUESSING), large)) == []
    small = dataclasses.replace(DROWNED, parameters=900)
    assert list(smaller_model(flat(guessing=GUESSING), small)) == []


# Thresholds.


def test_a_threshold_that_nothing_reaches_is_tightened():
    (found,) = tighter_threshold(flat(measures={NORMS: 0.2}), SETUP)
    assert (found.setting, found.to) == ("clipping_threshold", 0.2)
    for reached in (0.6, 1.5, 0.0, None):
        assert list(tighter_threshold(flat(measures={NORMS: reached}), SETUP)) == []


# The yardstick.


def test_a_yardstick_tells_noise_from_a_model_that_cannot_learn_it():
    final = flat()[-1]
    assert majority(final) == 0.5
    assert settings(beside_yardstick(final, 0.52, SETUP)) == ["model"]
    assert settings(beside_yardstick(final, 0.95, SETUP)) == ["expected_batch_size"]
    assert list(beside_yardstick(final, 0.85, SETUP)) == []
    assert settings(with_yardstick((), final, 0.95, SETUP)) == ["expected_batch_size"]


# Together.


def test_one_suggestion_for_each_setting_and_at_most_three():
    curve = rising()
    loose = [*curve[:-1], dataclasses.replace(curve[-1], owners=owners_with(0.3), measures={NORMS: 0.1})]
    found = suggestions(loose, SETUP)
    assert len(found) == MOST
    assert settings(found) == ["variant", "learning_rate", "steps"]
    assert suggestions([], SETUP) == ()


def test_a_training_that_does_well_gets_none():
    good = curve_of(0.9 - 0.5 * np.exp(-np.arange(20) / 5), np.linspace(1.0, 0.5, 20), owners=owners_with(0.88))
    steady = [dataclasses.replace(point, overall=0.9) if point.step > 40 else point for point in good]
    assert settings(suggestions(steady, SETUP)) == ["steps"]  # it may stop earlier
    short = steady[-6:]
    assert suggestions(short, SETUP) == ()


def test_suggestions_survive_json():
    (found,) = more_steps(rising(jitter=0.02), SETUP)
    assert Suggestion.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_set_up_of_a_plan():
    table = OwnerTable(("strict", "liberal"), [1.0, 8.0], [1e-5, 1e-5], [500, 500])
    config = PlanConfig(steps=20, variant="sample", expected_batch_size=50, clipping_threshold=2.0, accountant="rdp")
    plan = make_plan(table, config, verify=False)
    setup = Setup.of_plan(plan, 10, learning_rate=0.1)
    assert (setup.steps, setup.examples, setup.variant) == (20, 1000, "sample")
    assert setup.threshold == pytest.approx(2.0)
    assert setup.batch == pytest.approx(50)
    assert plan.epochs == pytest.approx(20 * 50 / 1000)
    assert all(0 < share <= 1 for share in setup.spent_shares.values())
