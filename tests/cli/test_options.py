"""Options: groups are written once, and no command has more than a dozen of its own."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from inosgd.cli.commands import COMMANDS
from inosgd.cli.options import PANELS, with_groups
from inosgd.study.built_in import STUDIES
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study
from tests.study.writers import write_study

MOST = 12


def own_options(command):
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    return [each.name for each in options if each.rich_help_panel not in PANELS]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_more_than_a_dozen_options_of_its_own(name):
    command = COMMANDS[name].load(name)
    for each in getattr(command, "commands", {"": command}).values():
        assert len(own_options(each)) <= MOST, own_options(each)


def test_a_thirteenth_option_would_be_seen():
    """The control: options count unless they are in a panel of shared ones."""
    names = [f"option_{number}" for number in range(MOST + 1)]
    text = f"def crowded({', '.join(f'{name}: str = chr(65)' for name in names)}): ..."
    made: dict[str, object] = {}
    exec(text, made)
    app = typer.Typer(add_completion=False)
    app.command()(made["crowded"])
    assert own_options(typer.main.get_command(app)) == names


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option(help="Of it.")] = 3
    tall: Annotated[bool, typer.Option("--tall")] = False


def test_a_group_stands_for_its_options():
    seen = []

    @with_groups
    def draw(what: str, colour: str = "red", *, size: Size) -> None:
        """Draw it."""
        seen.append((what, colour, size))

    app = typer.Typer()
    app.command()(draw)
    assert CliRunner().invoke(app, ["a cat"]).exit_code == 0
    assert CliRunner().invoke(app, ["a dog", "--width", "5", "--tall", "--colour", "blue"]).exit_code == 0
    assert seen == [("a cat", "red", Size()), ("a dog", "blue", Size(5, True))]


def test_shared_options_are_shown_in_panels(inosgd):
    shown = inosgd("compare", "--help").out
    assert all(panel in shown for panel in ("Study", "Workers", "Output"))


def test_steps_that_are_asked_for_replace_training_until_a_noise_scale(tmp_path):
    path = write_study(tmp_path, ("steps = 12\n", "noise_scale = 40.0\n"))
    study = study_from(read_study(path))
    assert study.config.until_noise == 40.0
    changed = study.changed({"steps": 7}).config
    assert (changed.plan.steps, changed.until_noise) == (7, None)


def test_infinite_values_are_told_in_plain_json():
    study = STUDIES["digits"].changed({"fairness.max_ratio": math.inf})
    told = json.loads(study.origin, parse_constant=pytest.fail)["changes"]
    assert STUDIES["digits"].changed(told) == study
    assert STUDIES["digits"].changed(told).config == study.config


def test_other_keys_than_those_of_the_plan_are_changed_too():
    config = STUDIES["digits"].changed({"learning_rate": 0.25, "fairness.max_ratio": 3.0}).config
    assert (config.learning_rate, config.plan.fairness.max_ratio) == (0.25, 3.0)
