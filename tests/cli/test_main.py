"""The program as a whole: its commands are listed without being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inosgd.cli.commands import COMMANDS, Listed


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_sentence_of_its_own_help(name):
    own = COMMANDS[name].load(name).help.split("\n\n")[0]
    assert COMMANDS[name].help == " ".join(own.split())


def test_the_list_names_every_command(inosgd):
    shown = inosgd("--help").out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    assert "placeholder" not in shown


def test_a_command_shows_its_own_help_under_its_own_name(inosgd):
    assert " report [OPTIONS] {runs}..." in inosgd("report", "--help").out
    assert " audit lira [OPTIONS] {STUDY}" in inosgd("audit", "lira", "--help").out


def test_a_mistyped_command_is_met_with_a_suggestion(inosgd):
    outcome = inosgd("trian")
    assert outcome.code == 2
    assert "Did you mean 'train'?" in outcome.err


def test_no_command_is_imported_before_it_is_run():
    homes = {f"inosgd.cli.{listed.home.partition(':')[0]}" for listed in COMMANDS.values()}
    code = """
import sys, inosgd.cli.main
print(*sys.modules)
sys.modules["inosgd.cli.commands"].COMMANDS["new"].load("new")
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert not before & homes
    assert "inosgd.cli.new" in after  # the control: what is loaded would be seen


def test_a_home_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError):
        Listed("new:nothing", "").load("new")
