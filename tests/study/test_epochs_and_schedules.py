"""Epochs in the place of steps, and schedules by name, in study files."""

from __future__ import annotations

import json

import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.plan_config import steps_of_epochs
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study
from inosgd.study.running import begin_training, create_run, finish, prepare, prepare_again, resume_training
from tests.study.writers import write_study


def study(folder, *changes):
    return study_from(read_study(write_study(folder, *changes)))


SEEDED = ("learning_rate = 2.0", "learning_rate = 2.0\nseed = 3")


def test_epochs_become_steps_by_the_number_of_units(tmp_path):
    prepared = prepare(study(tmp_path, ("steps = 12", "epochs = 2.5")))
    plan = prepared.trainer.plan
    units = int(plan.table.sizes.sum())
    assert plan.steps == steps_of_epochs(2.5, units, 16)
    assert 2.5 <= plan.epochs <= 2.5 + 16 / units
    assert prepared.study.config.plan.steps == plan.steps


def test_steps_on_the_command_line_are_taken_in_their_place(tmp_path):
    changed = study(tmp_path, ("steps = 12", "epochs = 2.5")).changed({"steps": 3})
    assert prepare(changed).trainer.plan.steps == 3


def test_a_configuration_without_either_is_the_json_that_it_was(tmp_path):
    usual = study(tmp_path).config.to_json()
    assert not {"epochs", "schedule", "warmup"} & set(usual)
    other = study(tmp_path, ("steps = 12", 'epochs = 2.5\nschedule = "cosine"')).config.to_json()
    assert other["epochs"] == 2.5
    assert other["schedule"] == "cosine"
    json.dumps(other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 12", "steps = 12\nepochs = 2"), "give either steps or epochs"),
        (("steps = 12\nexpected_batch_size = 16", "epochs = 2\nnoise_scale = 1.0"), "epochs are counted by it"),
        (("steps = 12", "steps = 12\nwarmup = 12"), "give fewer than the 12 steps"),
        (("steps = 12", 'steps = 12\nschedule = "plateau"'), "training.schedule"),
        (("steps = 12", "epochs = 0"), "training.epochs"),
        (("steps = 12", "epochs = nan"), "training.epochs"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, change, words):
    with pytest.raises(InvalidArgumentError, match=words):
        read_study(write_study(tmp_path, change))


def test_an_interrupted_run_goes_on_with_its_schedule(tmp_path):
    changes = (SEEDED, ("steps = 12", 'steps = 12\nschedule = "linear"\nwarmup = 2'))
    models = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
        made = study(tmp_path / name, *changes)
        prepared = prepare(made)
        run = create_run(tmp_path / name / "run", prepared)
        with run.lock() as locked:
            state = begin_training(locked, prepared)
            if name == "halves":
                stop_after(5, locked, prepared, state)
                prepared = prepare_again(run, made)
                state = resume_training(locked, prepared).state
                assert state.step == 4
                assert state.optimizer.param_groups[0]["lr"] == pytest.approx(2.0 * 0.8)
            finish(locked, prepared, state, every=4)
        models.append((run.path / "model" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


class StoppedError(Exception):
    pass


def stop_after(step, locked, prepared, state):
    def stop(now, _):
        if now.step == step:
            raise StoppedError

    with pytest.raises(StoppedError):
        finish(locked, prepared, state, every=4, after_step=stop)
