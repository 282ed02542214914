from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import nn

from inosgd import INO_SGD
from inosgd.audit.practice import honest
from inosgd.audit.shadow import ShadowTask, membership, outputs_of, tasks_for, train_shadows
from tests.audit import tiny


def test_membership_is_a_fair_coin_for_every_model_and_example():
    """40,000 coins: 0.5 +- 0.0125 is five standard deviations; so are correlations of 0.05 between 200 models."""
    drawn = np.stack([membership(0, number, 200) for number in range(200)])
    assert abs(drawn.mean() - 0.5) < 0.0125
    assert np.abs(np.corrcoef(drawn.astype(float))[np.triu_indices(200, 1)]).mean() < 0.07
    assert (drawn[3] == membership(0, 3, 200)).all()
    assert (drawn[3] != membership(1, 3, 200)).any()


def test_stacked_and_serial_models_agree():
    """The path for models that cannot be stacked gives what the stack gives, to the rounding of float32."""
    practice = honest(tiny.PLAN, INO_SGD)
    stacked = train_shadows(ShadowTask(tiny.STUDY, practice, 0, (0, 1)))

    class Hidden(nn.Module):  # the same perceptron, not recognised as one
        def __init__(self, data, seed: int) -> None:
            super().__init__()
            self.inner = tiny.STUDY.model(data, seed)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(inputs)

    study = dataclasses.replace(tiny.STUDY, model=Hidden)
    serial = train_shadows(ShadowTask(study, practice, 0, (0, 1)))
    np.testing.assert_allclose(stacked, serial, atol=1e-4)


def test_units_of_learning_rates_change_nothing_and_averages_are_what_is_attacked():
    practice, terms = honest(tiny.PLAN, INO_SGD), tiny.PLAN.at(0)
    usual = train_shadows(ShadowTask(tiny.STUDY, practice, 0, (0,)))
    eta = tiny.STUDY.config.learning_rate * terms.noise_scale / terms.expected_batch_size
    in_noise = tiny.STUDY.changed({"learning_rate": eta, "learning_rate_unit": "noise"})
    np.testing.assert_allclose(train_shadows(ShadowTask(in_noise, practice, 0, (0,))), usual, atol=1e-4)
    everything = {"averaging": "exponential", "averaging_decay": 0.0}  # the average is the last iterate
    serial = train_shadows(ShadowTask(in_noise.changed(everything), practice, 0, (0,)))
    np.testing.assert_allclose(serial, usual, atol=1e-4)
    averaged = train_shadows(ShadowTask(in_noise.changed({"averaging": "tail"}), practice, 0, (0,)))
    assert np.abs(averaged - usual).max() > 1e-2


def test_outputs_are_of_the_evaluation_mode_and_the_mode_is_put_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)).train()
    first, other = (outputs_of(model, tiny.DATA.examples.inputs, at_once=rows) for rows in (5, 50))
    torch.testing.assert_close(first, other, rtol=1e-5, atol=1e-6)
    assert model.training


def test_tasks_cover_every_model_once():
    practice = honest(tiny.PLAN, INO_SGD)
    for stacked in (True, False):
        tasks = tasks_for(tiny.STUDY, practice, 0, range(70), stacked=stacked)
        assert [number for task in tasks for number in task.numbers] == list(range(70))
    assert len(tasks) == 70
