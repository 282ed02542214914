"""A learning rate in noise units is eta b / sigma, by the terms of each step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from inosgd import IDP_SGD, Budget, Plan, SeededSource, TrainingState, fit, make_plan
from inosgd.errors import InvalidArgumentError
from inosgd.method import DP_SGD
from inosgd.plan import Phase
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.study.config import OPTIMIZERS, TrainingConfig
from inosgd.study.study import Study
from tests import tiny
from tests.studies import written_study

ETA = 0.05


def in_unit(plan: Plan, unit: str):
    return dataclasses.replace(tiny.trainer_for(plan), learning_rate_unit=unit)


def phases_of(plan: Plan) -> Plan:
    """The plan with another noise scale and expected batch size in its second half."""
    terms = plan.at(0)
    other = dataclasses.replace(
        terms,
        sampling_rates=terms.sampling_rates / 2,
        noise_scale=3 * terms.noise_scale,
        expected_batch_size=terms.expected_batch_size / 2,
    )
    half = plan.steps // 2
    return dataclasses.replace(plan, phases=(Phase(half, terms), Phase(plan.steps - half, other)))


def trained(plan: Plan, unit: str, rate: float, set_rate=None, **settings) -> torch.Tensor:
    trainer, model = in_unit(plan, unit), tiny.model().double()
    inputs, targets = tiny.examples(len(trainer.store))
    trainer = dataclasses.replace(trainer, examples=(inputs.double(), targets))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, **settings)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(3))
    for step in range(plan.steps):
        if set_rate is not None:
            optimizer.param_groups[0]["lr"] = set_rate(plan.at(step))
        fit(trainer, state, steps=1)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_phase_is_the_rate_eta_b_over_sigma(momentum):
    terms = tiny.PLAN.at(0)
    same = ETA * terms.expected_batch_size / terms.noise_scale
    noise = trained(tiny.PLAN, "noise", ETA, momentum=momentum)
    torch.testing.assert_close(noise, trained(tiny.PLAN, "batch", same, momentum=momentum), rtol=0, atol=1e-13)
    assert (noise - trained(tiny.PLAN, "batch", ETA, momentum=momentum)).abs().max() > 1e-3


def test_it_follows_the_terms_of_each_step():
    plan = phases_of(tiny.PLAN)
    noise = trained(plan, "noise", ETA)

    def converted(terms):
        return ETA * terms.expected_batch_size / terms.noise_scale

    torch.testing.assert_close(noise, trained(plan, "batch", 1.0, converted), rtol=0, atol=1e-13)
    first = converted(plan.at(0))
    assert (noise - trained(plan, "batch", first)).abs().max() > 1e-3  # the control: a rate that was converted once


def test_noise_moves_parameters_alike_under_every_plan():
    """Nothing is sampled, so a step is noise alone, of standard deviation eta."""
    for plan in (tiny.PLAN, tiny.first_plan(variant="uniform", clipping_threshold=5.0)):
        quiet = dataclasses.replace(plan.at(0), sampling_rates=np.zeros(2))
        trainer = in_unit(dataclasses.replace(plan, phases=(Phase(1, quiet),)), "noise")
        trainer = dataclasses.replace(trainer, method=IDP_SGD)
        model = tiny.model(width=500)
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        fit(trainer, TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=ETA), SeededSource(1)))
        moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        assert float(moved.std()) == pytest.approx(ETA, rel=0.06)  # 5 standard deviations of 4,502 draws


def went_on(folder: Path, unit: str, rate) -> tuple[Plan, torch.Tensor]:
    """Five steps, a raised budget, and the steps that are left under its plan; ``rate`` is a function of terms."""
    run = tiny.new_run(folder)
    with run.lock() as locked:
        trainer, (_, model, optimizer) = in_unit(tiny.PLAN, unit), tiny.parts(tiny.PLAN)
        state = begin(locked, trainer, model, optimizer, SeededSource(1))
        optimizer.param_groups[0]["lr"] = rate(tiny.PLAN.at(0))
        train_durably(locked, trainer, state, every=5, steps=5)
        state.ledger.close()
        carry_out(locked, propose(run, Changes(budgets={"strict": Budget(epsilon=3.0, delta=1e-5)}), verify=False))
        plan = run.plan()
        trainer, (_, model, optimizer) = in_unit(plan, unit), tiny.parts(plan)
        state = resume(locked, trainer, model, optimizer).state
        optimizer.param_groups[0]["lr"] = rate(plan.at(5))
        train_durably(locked, trainer, state, every=5)
        state.ledger.close()
        other = dataclasses.replace(trainer, learning_rate_unit="batch" if unit == "noise" else "noise")
        with pytest.raises(InvalidArgumentError, match=r"learning_rate_unit: not what run .* was begun with"):
            resume(locked, other, model, optimizer)
    return plan, nn.utils.parameters_to_vector(model.parameters()).detach()


def test_budgets_that_change_during_a_run_convert_it(tmp_path):
    plan, noise = went_on(tmp_path / "noise", "noise", lambda _: ETA)
    assert plan.at(5).noise_scale != plan.at(4).noise_scale
    _, batch = went_on(tmp_path / "batch", "batch", lambda at: ETA * at.expected_batch_size / at.noise_scale)
    torch.testing.assert_close(noise, batch, rtol=0, atol=1e-5)


def test_it_is_refused_without_noise_and_by_name():
    silent = dataclasses.replace(tiny.PLAN.at(0), noise_scale=0.0)
    unlimited = dataclasses.replace(tiny.PLAN, phases=(*tiny.PLAN.phases, Phase(1, silent)))
    with pytest.raises(InvalidArgumentError, match="learning_rate_unit='noise': the plan has steps without noise"):
        in_unit(unlimited, "noise")
    assert in_unit(unlimited, "batch").learning_rate_unit == "batch"
    with pytest.raises(InvalidArgumentError, match="learning_rate_unit='sigma': choose one of batch, noise"):
        in_unit(tiny.PLAN, "sigma")


class Scaled(torch.optim.SGD):
    """Might do anything with gradients."""


@pytest.mark.parametrize("build", [*(each for each in OPTIMIZERS.values() if each is not torch.optim.SGD), Scaled])
def test_optimizers_that_rescale_gradients_are_refused(build):
    model = tiny.model()
    optimizer = build(model.parameters(), lr=0.1)
    with pytest.raises(
        InvalidArgumentError, match="rescales gradients, so a learning rate in noise units means nothing"
    ):
        TrainingState.start(in_unit(tiny.PLAN, "noise"), model, optimizer, SeededSource(1))
    TrainingState.start(in_unit(tiny.PLAN, "batch"), model, optimizer, SeededSource(1))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sgd"])
def test_configurations_refuse_them_by_name(name):
    config = TrainingConfig(DP_SGD, tiny.first_plan(variant="uniform").config, ETA, optimizer=name)
    with pytest.raises(InvalidArgumentError, match=f"learning_rate_unit='noise': {name} rescales gradients"):
        dataclasses.replace(config, learning_rate_unit="noise")


def test_a_study_says_its_unit_and_the_usual_one_is_kept_where_it_does_not(tmp_path):
    assert written_study(tmp_path).config.learning_rate_unit == "batch"
    study: Study = written_study(tmp_path, ("learning_rate = 2.0", 'learning_rate = 0.1\nlearning_rate_unit = "noise"'))
    config = study.config
    assert (config.learning_rate, config.learning_rate_unit) == (0.1, "noise")
    assert config.to_json()["learning_rate_unit"] == "noise"
    terms = make_plan(tiny.PLAN.table, config.plan, verify=False).at(0)
    assert config.rate_in_batch_units(terms) == 0.1 * terms.expected_batch_size / terms.noise_scale
    usual = study.changed({"learning_rate_unit": "batch"})
    assert usual.config.rate_in_batch_units(terms) == 0.1
    assert usual != study
