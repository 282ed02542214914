"""Schedules move on with every step, by the number of steps alone; a resumed run has the same rates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inosgd import SeededSource, TrainingState, fit
from inosgd.errors import InvalidArgumentError
from inosgd.runs.saving import restore, write_checkpoint
from inosgd.schedules import SCHEDULES, factor, scheduled
from tests import tiny


def started(name: str, **options) -> tuple:
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    also = {"schedule": scheduled(optimizer, name, tiny.STEPS, **options)}
    return trainer, TrainingState.start(trainer, model, optimizer, SeededSource(0), also=also)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_each_step_is_its_definition(name):
    trainer, state = started(name, warmup=2)
    rates = []
    for _ in range(tiny.STEPS):
        rates.append(state.optimizer.param_groups[0]["lr"])
        fit(trainer, state, steps=1)
    assert rates == pytest.approx([0.1 * factor(name, step, tiny.STEPS, 2) for step in range(tiny.STEPS)])


def test_a_constant_schedule_changes_no_bit():
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    plain = TrainingState.start(trainer, model, optimizer, SeededSource(0))
    fit(trainer, plain)
    trainer, state = started("constant")
    fit(trainer, state)
    assert tiny.bits(state.model) == tiny.bits(plain.model)
    trainer, state = started("linear")
    fit(trainer, state)
    assert tiny.bits(state.model) != tiny.bits(plain.model)  # the control


def test_a_checkpoint_keeps_it(tmp_path):
    trainer, whole = started("cosine")
    fit(trainer, whole)
    trainer, half = started("cosine")
    fit(trainer, half, steps=5)
    checkpoint = write_checkpoint(tmp_path, half)
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    also = {"schedule": scheduled(optimizer, "cosine", tiny.STEPS)}
    again = TrainingState.start(trainer, model, optimizer, SeededSource(9), half.ledger, also)
    restore(checkpoint, again)
    fit(trainer, again)
    assert tiny.bits(again.model) == tiny.bits(whole.model)


def test_names_and_numbers_that_mean_nothing_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(InvalidArgumentError, match="schedule='plateau'"):
        scheduled(optimizer, "plateau", 10)
    with pytest.raises(InvalidArgumentError, match="warmup=10: give fewer than the 10 steps"):
        scheduled(optimizer, "cosine", 10, warmup=10)
