"""One run, shown by every command and file that shows it: all agree on every number and its rounding."""

from __future__ import annotations

import json
import re

import pytest

from inosgd.report import read_runs
from inosgd.report.sections import numbers
from inosgd.report.tables import all_tables
from inosgd.runs.folder import RunFolder
from inosgd.shown import BUDGET, SPENT, spending_shown
from tests.study.writers import write_study


@pytest.fixture(scope="module")
def run(inosgd_once):
    """A run of a study whose card names owners, and what ``inosgd train`` printed about it."""
    study = write_study(inosgd_once.folder, ("[training]", "[evaluation]\nowners_in_card = true\n\n[training]"))
    outcome = inosgd_once("train", study, "--out", "run", "--no-report")
    assert outcome.code == 0, outcome.err
    return inosgd_once.folder / "run", outcome.out


def row_of(text: str, name: str) -> list[str]:
    """The words of the table row about an owner."""
    return next(line for line in text.splitlines() if re.match(rf"(\| )?{name}\b", line)).replace("|", " ").split()


def test_all_show_the_same_numbers(run, inosgd, monkeypatch):
    folder, trained = run
    monkeypatch.chdir(folder.parent)
    ledger = RunFolder.open(folder).read_ledger()
    card, page = (folder / "model" / "model-card.md").read_text(), read_runs([folder])
    shown = {
        "train": trained,
        "ledger": inosgd("ledger", folder).out,
        "watch": inosgd("watch", folder, "--once").out,
        "card": card[card.index("### Owners") :],
        "cell": repr(ledger),
        "plan": repr(RunFolder.open(folder).plan()),
    }
    assert json.loads(inosgd("ledger", folder, "--json").out)["steps"] == ledger.steps
    table = numbers(page, all_tables(page))
    for row, (name, budget, _) in enumerate(ledger.table):
        wanted = spending_shown(budget.epsilon, budget.delta, float(ledger.spent()[row]))
        for place, text in shown.items():
            assert BUDGET in text, place
            assert SPENT in text, place
            assert {wanted.budget, wanted.spent} <= set(row_of(text, name)), (place, name)
        assert f"<td>{name}</td><td class=number>{wanted.budget}</td><td class=number>{wanted.spent}</td>" in table


def test_another_rounding_would_be_seen(run):
    folder, trained = run
    ledger = RunFolder.open(folder).read_ledger()
    spent = float(ledger.spent()[0])
    assert f"{spent:.6f}" not in row_of(trained, ledger.table.names[0])
