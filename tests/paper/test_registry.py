"""Every row of the registry trains, on made-up data of the right shape."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from inosgd.compare.comparison import Task, train_task
from inosgd.errors import InvalidArgumentError
from inosgd.models import MODELS
from inosgd.paper.datasets import ASSIGNMENTS, synthetic
from inosgd.paper.experiments import methods
from inosgd.paper.registry import SCALES, SETTINGS, study_named, study_of
from inosgd.study.study import FITTED_SCALING, PUBLIC_RANGES

PER_CLASS = {"CH": 1, "CM": 3, "CS": 2, "CFS": 2}


def tiny(name: str):
    setting = SETTINGS[name]
    per_class = PER_CLASS.get(setting.assignment, 6)
    sizes = {"train_per_class": per_class, "test_per_class": 1}
    loader = partial(synthetic, ASSIGNMENTS[setting.assignment], setting.data_set, **sizes)
    study = study_of(name, "laptop", loader)
    return study.changed({"steps": 2, "expected_batch_size": 4.0, "accountant": "rdp"})


def trained(name: str):
    study = tiny(name)
    entrant = next(row for row in methods(study.config.plan.variant) if row.label == "ino-sgd")
    return train_task(Task(study, entrant, seed=0))


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_engines_accept_the_model_of_every_row(name, engine_tries_models):
    assert trained(name).final.step == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_two_steps_of_every_row(name):
    result = trained(name)
    assert result.final.step == 2
    assert result.terms.spent_share <= 1
    assert result.entrant["variant"] == SETTINGS[name].variant
    assert set(result.epsilons) == {group.name for group in ASSIGNMENTS[SETTINGS[name].assignment].groups}
    assert all(0 <= quality.score <= 1 for quality in result.final.owners.values())
    assert np.isfinite(result.final.loss)


@pytest.mark.parametrize("scaling", [FITTED_SCALING, PUBLIC_RANGES])
def test_a_scaling_that_no_budget_accounts_for_is_known_as_such(scaling):
    """The card, and the warnings of a training, ask the data."""
    data = synthetic(ASSIGNMENTS["CF"], "fish-vehicles-embeddings", train_per_class=4, test_per_class=1)
    study = study_of("CF-EN", "laptop", lambda: dataclasses.replace(data, scaling=scaling))
    assert study.split(0).fitted == (scaling == FITTED_SCALING)


def test_every_assignment_and_every_model_of_the_paper_has_a_row():
    assert {setting.assignment for setting in SETTINGS.values()} == set(ASSIGNMENTS)
    assert {setting.model for setting in SETTINGS.values()} == set(MODELS)


def test_rows_say_which_numbers_the_paper_states():
    for setting in SETTINGS.values():
        assert setting.stated <= {field.name for field in dataclasses.fields(setting.paper)}


def test_studies_use_the_scale_asked_for(tmp_path):
    for scale in SCALES:
        study = study_named("MN-PC", scale, tmp_path)
        assert study.config == getattr(SETTINGS["MN-PC"], scale).config("sample")
    with pytest.raises(InvalidArgumentError, match="scale='tiny': choose one of laptop, paper"):
        study_named("MN-PC", "tiny", tmp_path)
    with pytest.raises(InvalidArgumentError, match="name='MN-XX': choose one of CA-MLP"):
        study_named("MN-XX", "laptop", tmp_path)


def test_random_classes_move_between_seeds_and_models_start_alike():
    study = tiny("CR-EN")
    first, second = study.split(0), study.split(1)
    assert first.groups.names == second.groups.names
    assert not np.array_equal(first.train_groups, second.train_groups)
    one, same = study.model(first, 3), study.model(first, 3)
    for mine, other in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(mine, other)
