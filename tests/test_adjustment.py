"""An offset is a function of public values, undoes what unequal signals do, and a batch has no say in it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from inosgd import INO_SGD, BookkeepingEngine, Budget, Owners, SeededSource, Trainer, TrainingState, fit, supervised
from inosgd.adjustment import TARGETS, Adjustment
from inosgd.class_shares import ClassShares
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import ReferenceEngine
from inosgd.order import ORDERS
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms

TABLE = OwnerTable(("strict", "liberal"), [0.5, 5.0], [1e-5, 1e-5], [600, 300])
SHARES = ClassShares.declared({"strict": {"a": 0.5, "b": 0.5}, "liberal": {"c": 1.0}}, "abc")


def terms(rates=(0.1, 0.1), thresholds=(0.1, 0.5)) -> Terms:
    return Terms.for_owners(TABLE, np.array(rates), np.array(thresholds), 1.0)


def test_offsets_are_the_logarithms_of_heard_over_wanted_shares():
    heard = np.array([0.1 * 600 * 0.1 * 0.5, 0.1 * 600 * 0.1 * 0.5, 0.1 * 300 * 0.5])
    for target, wanted in {"natural": [300, 300, 300], "classes": [1, 1, 1], "owners": [0.5, 0.5, 1]}.items():
        expected = np.log(heard / heard.sum()) - np.log(np.array(wanted) / sum(wanted))
        found = Adjustment(1.0, target).offsets(terms(), TABLE, SHARES)
        np.testing.assert_allclose(found, expected - expected.mean(), atol=1e-3)
        np.testing.assert_allclose(Adjustment(1.5, target).offsets(terms(), TABLE, SHARES), 1.5 * found)


@pytest.mark.parametrize("target", TARGETS)
def test_equal_signals_per_example_leave_natural_shares_alone(target):
    equal = terms(thresholds=(0.3, 0.3))
    offsets = Adjustment(1.0, target).offsets(equal, TABLE, SHARES)
    assert (np.abs(offsets).max() < 1e-12) == (target != "owners")  # classes are equally frequent here


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
    st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=2),
    st.floats(0, 3),
    st.sampled_from(TARGETS),
)
def test_offsets_are_finite_for_all_terms_and_shares(rates, thresholds, tau, target):
    offsets = Adjustment(tau, target).offsets(Terms(rates, thresholds, 1.0, 1.0), TABLE, SHARES)
    assert np.isfinite(offsets).all()
    assert np.abs(offsets).max() <= tau * 2 * math.log(3 / 1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Adjustment(math.nan), "tau=nan"),
        (lambda: Adjustment(math.inf), "tau=inf"),
        (lambda: Adjustment(-1.0), "tau=-1"),
        (lambda: Adjustment(1.0, "fair"), "target='fair': choose one of natural, owners, classes"),
        (lambda: ClassShares.declared({"o": {"a": 0.5, "b": 0.4}}, "ab"), r"shares\['o'\]: they add up to 0.9"),
        (lambda: ClassShares.declared({"o": {"a": 1.5, "b": -0.5}}, "ab"), r"shares\['o'\]\[0\]=1.5: give a"),
        (lambda: ClassShares.declared({"o": {"a": math.nan, "b": 1}}, "ab"), r"shares\['o'\]\[0\]=nan"),
        (lambda: ClassShares.declared({"o": {"d": 1.0}}, "ab"), r"shares\['o'\]='d': give shares of the classes a, b"),
        (lambda: SHARES.rows_for(("nobody",)), "shares: none of nobody has any"),
        (lambda: SHARES.and_those_of(ClassShares.declared({"o": {"a": 1.0}}, "ab")), "give the same"),
    ],
)
def test_bad_input_is_one_error(wrong, message):
    with pytest.raises(InvalidArgumentError, match=message):
        wrong()


def test_who_has_no_shares_is_like_the_others():
    rows = SHARES.rows_for(("liberal", "new", "strict"), (100, 5, 300))
    np.testing.assert_allclose(rows[1], 0.75 * rows[2] + 0.25 * rows[0])
    assert ClassShares.from_json(SHARES.to_json()) == SHARES


def training(method=INO_SGD, losses=None, classes=3, engine=None, phases=None) -> tuple[Trainer, nn.Module]:
    generator = torch.Generator().manual_seed(0)
    owners = Owners.from_labels(
        ["strict"] * 60 + ["liberal"] * 30,
        {"strict": Budget(epsilon=50, delta=1e-3), "liberal": Budget(epsilon=50, delta=1e-3)},
    )
    rates, thresholds = np.array([0.5, 0.5]), np.array([0.1, 0.5])
    phases = phases or (Phase(4, Terms.for_owners(owners.table, rates, thresholds, 2.0)),)
    examples = torch.randn(90, 4, generator=generator), torch.randint(3, (90,), generator=generator)
    torch.manual_seed(0)
    model = nn.Linear(4, classes)
    plan = Plan(owners.table, phases, "pld", np.zeros(2))
    losses = losses or supervised(F.cross_entropy)
    return Trainer(plan, owners, examples, losses, method, engine or BookkeepingEngine(), shares=SHARES), model


def trained(trainer: Trainer, model: nn.Module) -> torch.Tensor:
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.5), SeededSource(0))
    fit(trainer, state)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


ADJUSTED = dataclasses.replace(INO_SGD, adjustment=Adjustment(1.0, "classes"))


@pytest.mark.parametrize("order", [*ORDERS])
def test_training_adds_the_offsets_of_the_step_and_predictions_do_not(order):
    method = dataclasses.replace(ADJUSTED, order=ORDERS[order])
    trainer, model = training(method)
    offsets = torch.from_numpy(Adjustment(1.0, "classes").offsets(trainer.plan.at(0), trainer.owners.table, SHARES))

    def by_hand(model, examples):
        return F.cross_entropy(model(examples[0]) + offsets.float(), examples[1], reduction="none")

    plain, other = training(dataclasses.replace(INO_SGD, order=ORDERS[order]), by_hand)
    assert torch.equal(trained(trainer, model), trained(plain, other))
    assert not torch.equal(trained(*training()), trained(*training(method)))


def test_offsets_follow_the_plan_when_its_terms_change():
    owners = training()[0].owners
    rates = np.array([0.5, 0.5])
    phases = tuple(
        Phase(2, Terms.for_owners(owners.table, rates, np.array(thresholds), 2.0))
        for thresholds in ((0.1, 0.5), (0.5, 0.1))
    )
    trainer, _ = training(ADJUSTED, phases=phases)
    first, second = (trainer.losses_under(trainer.plan.at(step), SHARES).offsets[torch.float64] for step in (0, 2))
    assert first[2] > 0 > second[2]


def test_the_reference_engine_agrees():
    one = trained(*training(ADJUSTED))
    other = trained(*training(ADJUSTED, engine=ReferenceEngine()))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_offset_from_the_classes_of_the_batch_is_refused():
    def losses(model, examples):
        inputs, targets = examples
        frequencies = torch.bincount(targets, minlength=3).clamp(min=1) / len(targets)
        return F.cross_entropy(model(inputs) + frequencies.log(), targets, reduction="none")

    with pytest.raises(InvalidArgumentError, match="another loss in a batch than alone"):
        trained(*training(losses=losses))


def test_what_an_adjustment_needs_is_asked_for():
    trainer, _ = training()
    with pytest.raises(InvalidArgumentError, match="shares=None: the method adjusts its loss"):
        dataclasses.replace(trainer, method=ADJUSTED, shares=None)
    with pytest.raises(InvalidArgumentError, match="these losses take no offsets"):
        dataclasses.replace(trainer, method=ADJUSTED, losses=lambda model, examples: model(examples[0]).sum(1))
    with pytest.raises(InvalidArgumentError, match=r"one logit for each of 3 classes"):
        trained(*training(ADJUSTED, classes=4))
