"""Values look like tables of public numbers, in a cell and in print; names are no markup; many owners are cut short."""

from __future__ import annotations

import numpy as np
import pytest

from inosgd.ledger.ledger import Ledger
from inosgd.owners import Owners, OwnerTable
from inosgd.study.built_in import STUDIES
from inosgd.tabled import MOST_ROWS
from tests import tiny


@pytest.mark.parametrize("value", [tiny.PLAN, tiny.PLAN.table, Ledger.for_plan(tiny.PLAN)])
def test_every_owner_is_named(value):
    for name in tiny.PLAN.table.names:
        assert name in repr(value)
        assert f"<td>{name}</td>" in value._repr_html_()


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
