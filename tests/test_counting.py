"""Counts of classes: charged before they are made, as noisy as was charged for, and never made twice."""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inosgd import (
    IDP_SGD,
    Budget,
    Ledger,
    Owners,
    PlanConfig,
    SecureSource,
    SeededSource,
    Trainer,
    TrainingState,
    make_plan,
    supervised,
    verify_ledger,
)
from inosgd import counting as counting_module
from inosgd.class_shares import ClassShares
from inosgd.counting import Labels, count_classes, counted_shares
from inosgd.errors import (
    BudgetExceededError,
    InfeasibleError,
    InvalidArgumentError,
    LedgerError,
    TrainingStoppedError,
    UnknownOwnerError,
)
from inosgd.ledger.history import LEDGER_FORMAT
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.plan_config import Counting
from inosgd.planning.counts import count_terms

CLASSES = ("a", "b", "c")
CONFIG = PlanConfig(
    steps=20, variant="fair", expected_batch_size=200, clipping_threshold=1.0, counting=Counting(len(CLASSES))
)


def owners(sizes=(2000, 4000)) -> Owners:
    budgets = {name: Budget(epsilon=eps, delta=1e-5) for name, eps in zip("no", (1.0, 5.0), strict=True)}
    return Owners.from_labels(np.repeat(["n", "o"], sizes), budgets)


def labels(who: Owners, seed=0) -> Labels:
    return Labels(CLASSES, np.random.default_rng(seed).choice(3, p=[0.6, 0.3, 0.1], size=len(who)))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(owners().table, CONFIG)


def test_a_count_is_planned_with_the_training_and_all_of_it_is_within_the_budgets(plan):
    alone = make_plan(plan.table, dataclasses.replace(CONFIG, counting=None))
    assert (plan.spent <= plan.table.epsilons).all()
    assert plan.at(0).noise_scale > alone.at(0).noise_scale
    assert plan.at(0).noise_scale < 1.03 * alone.at(0).noise_scale
    assert plan.charges == (Phase(1, plan.count), *plan.phases)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_shares_are_about_right_and_in_the_ledger(plan, tmp_path):
    who = owners()
    with closing(Ledger(plan.table, "pld", tmp_path / "ledger.jsonl", horizon=20)) as with_file:
        shares = count_classes(with_file, plan, who, labels(who), SecureSource())
    np.testing.assert_allclose(shares.rows_for("no"), [[0.6, 0.3, 0.1]] * 2, atol=0.08)
    assert shares.sources == ("counted", "counted")
    assert (with_file.spent() > 0).all()
    again = Ledger.read(tmp_path / "ledger.jsonl")
    assert counted_shares(again, CLASSES) == shares
    assert again.spent().tolist() == with_file.spent().tolist()
    report = verify_ledger(tmp_path / "ledger.jsonl")
    assert report.good
    assert report.spent == dict(zip("no", with_file.spent().tolist(), strict=True))


def test_steps_are_charged_on_top_of_the_count(plan):
    who, ledger = owners(), Ledger.for_plan(plan)
    count_classes(ledger, plan, who, labels(who), SeededSource(0))
    for step in range(20):
        ledger.record(step, plan.at(step))
    np.testing.assert_allclose(ledger.spent(), plan.spent, rtol=1e-6)
    greedy = make_plan(plan.table, dataclasses.replace(CONFIG, counting=None))
    other = Ledger.for_plan(greedy)
    other.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)
    with pytest.raises(BudgetExceededError):
        for step in range(20):
            other.record(step, greedy.at(step))


def test_what_was_counted_is_never_given_back(plan):
    who, ledger = owners(), Ledger.for_plan(plan)
    count_classes(ledger, plan, who, labels(who), SeededSource(0))
    before = ledger.spent()
    ledger.record(0, plan.at(0))
    ledger.mark_rollback(0)
    assert ledger.spent().tolist() == before.tolist()
    wider = OwnerTable((*plan.table.names, "new"), [1, 5, 3], [1e-5] * 3, [2000, 4000, 100])
    ledger.mark_change(0, wider)
    assert ledger.spent().tolist() == [*before, 0.0]
    with pytest.raises(BudgetExceededError):
        ledger.mark_change(0, dataclasses.replace(wider, epsilons=np.array([0.01, 5, 3])))


def test_a_second_count_gives_the_first_again_and_nothing_is_charged(plan):
    who, ledger = owners(), Ledger.for_plan(plan)
    first = count_classes(ledger, plan, who, labels(who), SecureSource())
    position = ledger.position
    assert count_classes(ledger, plan, who, labels(who, 1), SecureSource()) == first
    assert ledger.position == position
    with pytest.raises(InvalidArgumentError, match="counted once, before the first step"):
        ledger.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)


def test_a_count_comes_before_the_first_step(plan):
    ledger = Ledger.for_plan(plan)
    ledger.record(0, plan.at(0))
    with pytest.raises(InvalidArgumentError, match="before the first step"):
        count_classes(ledger, plan, owners(), labels(owners()), SeededSource(0))


def test_killed_between_charge_and_outcome_it_is_not_counted_again(plan):
    ledger = Ledger.for_plan(plan)
    ledger.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)
    with pytest.raises(LedgerError, match="train anew"):
        count_classes(ledger, plan, owners(), labels(owners()), SeededSource(0))


def test_a_count_that_no_budget_allows_is_refused_and_nothing_is_written(plan):
    strict = dataclasses.replace(plan.table, epsilons=np.array([1e-3, 1e-3]))
    ledger = Ledger(strict, "pld")
    position = ledger.position
    with pytest.raises(BudgetExceededError):
        ledger.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)
    with pytest.raises(InvalidArgumentError, match="is charged for a threshold of"):
        ledger.record_count(plan.count, sensitivity=2 * plan.count.clipping_thresholds)
    assert ledger.position == position


def test_the_ledger_takes_no_counts_out_of_place(plan):
    ledger = Ledger.for_plan(plan)
    for body in ({"kind": "counts", "counts": [[1.0], [2.0]]}, {"kind": "count", "terms": {}}):
        with pytest.raises(LedgerError):
            ledger.history.take(body)
    ledger.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)
    for counts in ([[1.0, 2.0]], [[1.0, math.nan], [0.0, 0.0]], [1.0, 2.0]):
        with pytest.raises(LedgerError):
            ledger.history.take({"kind": "counts", "counts": counts})
    assert LEDGER_FORMAT == 5


@pytest.mark.parametrize(
    ("sizes", "epsilon", "named"), [((2000, 20), 5.0, "'o'"), ((2000, 4000), 1e-3, "'n'")], ids=["small", "strict"]
)
def test_owners_that_cannot_be_counted_usefully_are_named(sizes, epsilon, named):
    table = OwnerTable(("n", "o"), [min(epsilon, 1.0), 5.0], [1e-5] * 2, sizes)
    with pytest.raises(InfeasibleError, match=f"owner {named}: counting 3 classes.*declare") as error:
        count_terms(table, Counting(3))
    assert error.value.owner == named.strip("'")


def test_who_is_counted_can_be_chosen():
    terms = count_terms(owners().table, Counting(3, ("o",)))
    assert terms.sampling_rates.tolist() == [0.0, 1.0]
    plan = make_plan(owners().table, dataclasses.replace(CONFIG, counting=Counting(3, ("o",))))
    shares = count_classes(Ledger.for_plan(plan), plan, owners(), labels(owners()), SeededSource(0))
    assert shares.owners == ("o",)
    with pytest.raises(UnknownOwnerError, match="there is no owner 'x'"):
        count_terms(owners().table, Counting(3, ("x",)))


def test_labels_that_are_no_class_numbers_are_refused(plan):
    numbers = labels(owners()).numbers
    for wrong in (numbers + 1, numbers - 1, numbers.astype(float)):
        with pytest.raises(InvalidArgumentError, match="give a class number from 0 to 2"):
            Labels(CLASSES, wrong)
    ledger = Ledger.for_plan(plan)
    with pytest.raises(InvalidArgumentError, match="len"):
        count_classes(ledger, plan, owners(), Labels(CLASSES, numbers[:-1]), SeededSource(0))
    assert ledger.history.count is None


def noiseless(monkeypatch, plan: Plan, who: Owners, numbers: np.ndarray) -> np.ndarray:
    """What would be released but for its noise, in units of the noise."""
    seen = []

    def without_noise(total, scale, source):
        seen.append(total.value.numpy().reshape(len(who.table), -1) / scale)
        return total.value

    monkeypatch.setattr(counting_module, "release", without_noise)
    count_classes(Ledger.for_plan(plan), plan, who, Labels(CLASSES, numbers), SeededSource(0))
    return seen[0]


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5999))
def test_one_example_moves_the_counts_by_what_is_charged(plan, seed, left_out):
    with pytest.MonkeyPatch.context() as monkeypatch:
        who, numbers = owners(), labels(owners(), seed).numbers
        kept = np.delete(np.arange(len(who)), left_out)
        sizes = who.table.sizes - (np.arange(2) == who.assignment[left_out])
        fewer = Owners(dataclasses.replace(who.table, sizes=sizes), who.assignment[kept])
        moved = noiseless(monkeypatch, plan, who, numbers) - noiseless(monkeypatch, plan, fewer, numbers[kept])
        charged = 1 / plan.count.noise_multipliers()[who.assignment[left_out]]
        assert 0.999 * charged <= np.linalg.norm(moved) <= charged


def test_noise_is_what_is_charged_and_the_test_would_see_less(plan):
    who, classes = owners(), labels(owners())
    true = np.array([np.bincount(classes.numbers[who.assignment == row], minlength=3) for row in range(2)])

    def noise(planned: Plan) -> np.ndarray:
        ledgers = [Ledger.for_plan(planned) for _ in range(300)]
        for seed, ledger in enumerate(ledgers):
            count_classes(ledger, planned, who, classes, SeededSource(seed))
        found = np.array([ledger.history.counts for ledger in ledgers])
        return (found - true) / plan.count.noise_multipliers()[:, None]

    assert stats.kstest(noise(plan).ravel(), "norm").pvalue > 1e-3
    count = plan.count
    less = Terms(count.sampling_rates, 1.3 * count.clipping_thresholds, 1.0, count.expected_batch_size)
    assert stats.kstest(noise(dataclasses.replace(plan, count=less)).ravel(), "norm").pvalue < 1e-3


def test_a_count_is_of_all_of_an_owners_examples_or_of_none(plan):
    count = plan.count
    rare = Terms(np.full(2, 1e-7), np.full(2, 1e9), 1.0, 1.0)  # would be charged next to nothing
    with pytest.raises(InvalidArgumentError, match="give 0 or 1"):
        dataclasses.replace(plan, count=rare)
    ledger = Ledger.for_plan(plan)
    with pytest.raises(InvalidArgumentError, match="give 0 or 1"):
        ledger.record_count(rare, sensitivity=rare.clipping_thresholds)
    with pytest.raises(LedgerError):
        ledger.history.take({"kind": "count", "terms": rare.to_json()})
    ledger.mark_stop("an owner asked", plan.table)
    with pytest.raises(TrainingStoppedError):
        ledger.record_count(count, sensitivity=count.clipping_thresholds)


def test_owners_of_whom_noise_left_nothing_hold_all_classes_alike():
    shares = ClassShares.counted(("n", "o"), CLASSES, np.array([[-3.0, -1.0, -2.0], [1.0, 3.0, -1.0]]))
    np.testing.assert_allclose(shares.shares, [[1 / 3, 1 / 3, 1 / 3], [0.25, 0.75, 0.0]])
    with pytest.raises(InvalidArgumentError, match="it has shares twice"):
        ClassShares.counted(("n", "n"), CLASSES, np.ones((2, 3)))


def test_what_cannot_be_counted_is_refused_before_anything_is_charged(plan):
    who = owners()
    inputs, numbers = torch.zeros(len(who), 2), labels(who).numbers
    given = (plan, who, (inputs, torch.from_numpy(numbers)), supervised(F.cross_entropy), IDP_SGD)
    with pytest.raises(InvalidArgumentError, match="the plan counts 3 classes"):
        Trainer(*given, labels=Labels(("a", "b", "c", "d"), numbers))
    with pytest.raises(InvalidArgumentError, match="shares are declared for"):
        declared = ClassShares.declared({"n": {"x": 1.0}}, ("x", "y", "z"))
        Trainer(*given, labels=Labels(CLASSES, numbers), shares=declared)
    for wrong in (numbers[:, None], numbers.astype(float)):
        with pytest.raises(InvalidArgumentError, match="labels of"):
            Labels(CLASSES, wrong)
    assert len(Labels(CLASSES, numbers.tolist())) == len(numbers)


def test_a_model_without_a_logit_for_each_class_is_refused_before_anything_is_charged(plan):
    who = owners()
    numbers = labels(who).numbers
    examples = (torch.zeros(len(who), 2), torch.from_numpy(numbers))
    trainer = Trainer(plan, who, examples, supervised(F.cross_entropy), IDP_SGD, labels=Labels(CLASSES, numbers))
    model, ledger = torch.nn.Linear(2, 5), Ledger.for_plan(plan)
    with pytest.raises(InvalidArgumentError, match="one logit for each of 3 classes"):
        TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), 0.1), SeededSource(0), ledger)
    assert not ledger.spent().any()
