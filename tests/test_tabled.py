"""Values look like tables of public numbers, in a cell and in print; names are no markup; many owners are cut short."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from inosgd import SeededSource, TrainingState, fit
from inosgd.integrations.notebooks import shown_progress
from inosgd.ledger.ledger import Ledger
from inosgd.owners import Budget, Owners, OwnerTable
from inosgd.study.built_in import STUDIES
from inosgd.tabled import MOST_ROWS
from tests import tiny


@pytest.mark.parametrize("value", [tiny.PLAN, tiny.PLAN.table, Ledger.for_plan(tiny.PLAN)])
def test_every_owner_is_named(value):
    for name in tiny.PLAN.table.names:
        assert name in repr(value)
        assert f"<td>{name}</td>" in value._repr_html_()


def test_a_budget_is_a_table_in_a_cell_and_an_expression_in_print():
    budget = Budget(epsilon=0.5, delta=1e-5)
    assert repr(budget) == "Budget(epsilon=0.5, delta=1e-05)"
    assert "<td>epsilon</td><td>0.5</td>" in budget._repr_html_()


def test_study_data_say_how_many_examples_there_are_and_none_of_them():
    shown = repr(STUDIES["digits"].split(0))
    assert "1,437 training examples, 360 held out" in shown
    assert "tensor" not in shown


def test_a_name_is_no_markup():
    owners = Owners.from_labels(["<script>"], {"<script>": 1.0}, delta=1e-5)
    assert "<script>" not in owners._repr_html_()


def test_of_many_owners_the_first_are_shown():
    count = 100_000
    names = tuple(f"owner {row}" for row in range(count))
    table = OwnerTable(names, np.ones(count), np.full(count, 1e-9), np.ones(count, dtype=np.int64))
    assert len(repr(table).splitlines()) == MOST_ROWS + 3
    assert "... and 99,980 more" in repr(table)
    assert "... and 99,980 more" in table._repr_html_()


class Shell:
    """What IPython has in a notebook, as far as it is asked for."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.kernel = object()


@pytest.fixture
def shell(monkeypatch):
    """A made-up notebook: what is shown in its cells."""
    made = Shell()

    class Handle:
        def update(self, bundle, raw):
            made.shown.append(bundle["text/plain"])

    def display(value, raw=False, display_id=False):
        made.shown.append(value["text/plain"] if raw else value)
        return Handle()

    module, inner = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython = lambda: made
    inner.display, inner.HTML = display, str
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return made


def test_show_is_a_table_in_a_cell_and_text_elsewhere(shell, monkeypatch, capsys):
    tiny.PLAN.show()
    assert "<td>strict</td>" in shell.shown[0]
    del shell.kernel  # IPython in a terminal shows no HTML
    tiny.PLAN.show(rows=1)
    printed = capsys.readouterr().out
    assert "strict" in printed
    assert "... and 1 more" in printed
    monkeypatch.delitem(sys.modules, "IPython")
    tiny.PLAN.show()
    assert "liberal" in capsys.readouterr().out


def test_progress_is_one_line_that_changes(shell):
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(0))
    fit(trainer, state, callbacks=[shown_progress(trainer)])
    assert shell.shown[0] == "waiting for the first step"
    assert shell.shown[-1].startswith("step 12 of 12, done in")
