"""A stack of perceptrons is trained exactly as `train_step` trains each of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inosgd import IDP_SGD, INO_SGD
from inosgd.audit.batched import Stack, can_stack, train_stacked
from inosgd.audit.controls import CONTROLS
from inosgd.audit.practice import honest
from inosgd.audit.shadow import logit_confidences, membership
from inosgd.gradients import supervised
from inosgd.models import perceptron
from inosgd.order import RANDOM
from inosgd.randomness import SeededSource
from inosgd.study.study import LabelledExamples
from inosgd.training import fit
from tests.audit import tiny

EXAMPLES = LabelledExamples(tiny.DATA.examples.inputs.double(), tiny.DATA.examples.targets)
WIDE = dataclasses.replace(tiny.DATA, examples=EXAMPLES)


def _serial(initial, practice, rows, source) -> nn.Module:
    model = perceptron(4, 3, 3, 2, seed=0).double()
    model.load_state_dict(initial.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    examples = EXAMPLES.only(rows)
    trainer = practice.trainer(WIDE.owners.assignment[rows], examples, supervised(F.cross_entropy))
    fit(trainer, practice.start(trainer, model, optimizer, source, examples.targets.numpy()))
    return model


@pytest.mark.parametrize(
    "practice",
    [
        honest(tiny.PLAN, IDP_SGD),
        honest(tiny.PLAN, INO_SGD),
        honest(tiny.plan_for("scale"), INO_SGD),
        honest(tiny.PLAN, dataclasses.replace(INO_SGD, order=RANDOM)),
        *(control.spoil(honest(tiny.PLAN, INO_SGD)) for control in CONTROLS.values()),
    ],
    ids=["idp", "ino", "ino-scale", "ino-random-order", *CONTROLS],
)
def test_equals_train_step_on_the_same_draws(practice):
    initial = perceptron(4, 3, 3, 2, seed=5).double()
    members = [np.flatnonzero(membership(0, number, len(EXAMPLES))) for number in range(3)]
    stack = train_stacked(initial, practice, WIDE, members, [SeededSource(number) for number in range(3)], 0.5)
    for number, rows in enumerate(members):
        model = _serial(initial, practice, rows, SeededSource(number))
        for mine, theirs in zip(stack.parameters, model.parameters(), strict=True):
            torch.testing.assert_close(mine[number], theirs, rtol=1e-9, atol=1e-10)
    moved = max(float((mine - mine[:1]).abs().max()) for mine in stack.parameters)
    assert moved > 1e-3  # the models differ from each other, so agreement is not that of models at rest


def test_a_batch_may_be_empty_and_a_model_may_have_no_examples():
    practice = honest(tiny.PLAN, INO_SGD)
    initial = perceptron(4, 3, 3, 2, seed=5).double()
    nobody = np.zeros(0, dtype=np.int64)
    stack = train_stacked(initial, practice, WIDE, [nobody], [SeededSource(0)], 0.5)
    model = _serial(initial, practice, nobody, SeededSource(0))
    for mine, theirs in zip(stack.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(mine[0], theirs)


def test_outputs_are_those_of_the_models():
    model = perceptron(4, 3, 2, seed=1)
    outputs = Stack.of(model, 2).outputs(tiny.DATA.examples.inputs, at_once=7)
    torch.testing.assert_close(outputs[1], model(tiny.DATA.examples.inputs).detach())


def test_only_plain_perceptrons_are_stacked():
    assert can_stack(perceptron(4, 3, 2, seed=0))
    assert not can_stack(nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2)))
    assert not can_stack(nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)))
    assert not can_stack(nn.Conv2d(1, 1, 1))
    frozen = perceptron(4, 3, 2, seed=0)
    frozen[0].weight.requires_grad_(False)
    assert not can_stack(frozen)


def test_confidence_is_the_logit_also_where_it_is_extreme():
    outputs = torch.tensor([[[1.0, 2.0, 0.5], [800.0, 0.0, 0.0]]])
    targets = torch.tensor([1, 0])
    p = float(torch.softmax(outputs[0, 0].double(), 0)[1])
    found = logit_confidences(outputs, targets)
    assert found[0, 0] == pytest.approx(np.log(p / (1 - p)))
    assert found[0, 1] == pytest.approx(800 - np.log(2))
