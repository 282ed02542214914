"""Adam that subtracts the noise's variance: its arithmetic, its floor, and that it hears of the noise of each step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from inosgd import SeededSource, TrainingState, fit
from inosgd.errors import InvalidArgumentError
from inosgd.optimizers import CorrectedAdam
from inosgd.plan import Phase
from inosgd.runs.saving import restore, write_checkpoint
from tests import tiny

BETAS, LR, EPS = (0.8, 0.95), 0.05, 1e-8


def recomputed(gradients: np.ndarray, variances: np.ndarray, floor: float, weight_decay: float = 0.0) -> np.ndarray:
    """The definition, with whole sums instead of recursions."""
    parameter = np.ones(gradients.shape[1])
    for now in range(1, len(gradients) + 1):
        weights = [beta ** np.arange(now - 1, -1, -1.0) for beta in BETAS]
        mean = weights[0] / weights[0].sum() @ gradients[:now]
        share = weights[1] / weights[1].sum()
        square, noise = share @ gradients[:now] ** 2, share @ variances[:now]
        parameter = parameter * (1 - LR * weight_decay)
        parameter = parameter - LR * mean / np.sqrt(np.maximum(square - noise, max(floor * noise, EPS**2)))
    return parameter


def stepped(gradients: np.ndarray, variances: np.ndarray, floor: float, weight_decay: float = 0.0) -> np.ndarray:
    parameter = nn.Parameter(torch.ones(gradients.shape[1], dtype=torch.float64))
    optimizer = CorrectedAdam([parameter], LR, BETAS, EPS, weight_decay, floor)
    for gradient, variance in zip(gradients, variances, strict=True):
        parameter.grad = torch.from_numpy(gradient)
        optimizer.param_groups[0]["noise_variance"] = float(variance)
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_it_is_its_definition_also_where_the_noise_changes(floor, weight_decay):
    rng = np.random.default_rng(0)
    variances = np.repeat([0.04, 0.25], 6)
    gradients = rng.normal(size=(12, 50)) * np.sqrt(variances)[:, None] + np.linspace(0, 3, 50)
    expected = recomputed(gradients, variances, floor, weight_decay)
    np.testing.assert_allclose(stepped(gradients, variances, floor, weight_decay), expected, rtol=1e-9)
    once = recomputed(gradients, np.full(12, 0.04), floor, weight_decay)
    assert np.abs(expected - once).max() > 1e-4  # the control: a variance that was told once


def test_without_noise_it_is_adam():
    gradients = np.random.default_rng(1).normal(size=(20, 30))
    parameter = nn.Parameter(torch.ones(30, dtype=torch.float64))
    adam = torch.optim.Adam([parameter], LR, BETAS, EPS)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        adam.step()
    np.testing.assert_allclose(stepped(gradients, np.zeros(20), 0.1), parameter.detach().numpy(), rtol=1e-6)


def test_it_gives_back_the_sizes_of_gradients_below_the_noise():
    """Gradients of 0.5 and 0.25 under noise of 1: by Adam both coordinates move as their gradients, here alike."""
    rng = np.random.default_rng(2)
    truth = np.repeat([0.5, 0.25], 200)
    gradients = truth + rng.normal(size=(400, 400))
    moved = {}
    for name, variance in (("corrected", 1.0), ("adam", 0.0)):
        parameter = nn.Parameter(torch.zeros(400, dtype=torch.float64))
        optimizer = CorrectedAdam([parameter], 1.0, (0.99, 0.999), floor=0.01)
        optimizer.param_groups[0]["noise_variance"] = variance
        for gradient in gradients:
            parameter.grad = torch.from_numpy(gradient)
            optimizer.step()
        sizes = -parameter.detach().numpy()
        moved[name] = np.median(sizes[:200]) / np.median(sizes[200:])
    assert moved["adam"] == pytest.approx(2.0, rel=0.15)
    assert moved["corrected"] < 1.5


def test_the_floor_bounds_what_a_coordinate_moves():
    """Squares below the noise's variance: the difference is negative, and the floor is divided by."""
    gradients, variance = np.full((5, 1), 0.1), 1.0
    assert 1 - stepped(gradients, np.full(5, variance), 0.25)[0] == pytest.approx(5 * LR * 0.1 / 0.5)
    with_none = 1 - stepped(gradients, np.full(5, variance), 0.0)[0]
    assert with_none == pytest.approx(5 * LR * 0.1 / EPS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"floor": -1.0}, r"floor=-1.0"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\]=1.0: give a number of at least 0 and below 1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InvalidArgumentError, match=words):
        CorrectedAdam(tiny.model().parameters(), **settings)


def test_a_training_tells_the_variance_of_each_phase_and_a_checkpoint_keeps_it(tmp_path):
    louder = dataclasses.replace(tiny.PLAN.at(0), noise_scale=3 * tiny.PLAN.at(0).noise_scale)
    plan = dataclasses.replace(tiny.PLAN, phases=(Phase(2, tiny.PLAN.at(0)), Phase(4, louder)))
    trainer, model, optimizer = tiny.parts(plan, CorrectedAdam)
    state, told = TrainingState.start(trainer, model, optimizer, SeededSource(1)), []
    at_three = None
    for _ in range(plan.steps):
        fit(trainer, state, steps=1)
        told.append(optimizer.param_groups[0]["noise_variance"])
        if state.step == 3:
            at_three = write_checkpoint(tmp_path, state)
    expected = [(plan.at(step).noise_scale / plan.at(step).expected_batch_size) ** 2 for step in range(plan.steps)]
    assert told == expected
    assert told[2] == pytest.approx(9 * told[1])
    trainer, again, optimizer = tiny.parts(plan, CorrectedAdam)
    resumed = TrainingState.start(trainer, again, optimizer, SeededSource(9), state.ledger)
    restore(at_three, resumed)
    fit(trainer, resumed)
    assert tiny.bits(again) == tiny.bits(model)


def test_other_optimizers_are_told_nothing():
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    fit(trainer, TrainingState.start(trainer, model, optimizer, SeededSource(1)), steps=1)
    assert "noise_variance" not in optimizer.param_groups[0]
