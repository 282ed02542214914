"""Tables of the command line in narrow terminals."""

from __future__ import annotations

import io

from rich.console import Console

from inosgd.cli.console import plain_table

HEADINGS = ("examples", "budget ε", "δ", "spent ε", "left ε", "used", "by dp-accounting")
NUMBERS = ("132", "2", "1e-05", "2", "0.0003897", "100 %", "2")


def drawn(width: int, owner: str) -> str:
    table = plain_table("owner", right=HEADINGS)
    table.add_row(owner, *NUMBERS)
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_a_table_that_fits_has_headings_of_one_line():
    first = drawn(120, "hospital_b").splitlines()[0]
    assert all(heading in first for heading in HEADINGS)


def test_a_narrow_terminal_cuts_no_number_and_no_heading():
    """Headings take two lines first, and then long names."""
    for owner in ("hospital_b", "the hospital at the end of the long road to the north"):
        shown = drawn(80, owner)
        assert "…" not in shown
        assert all(number in shown for number in NUMBERS)
        assert max(map(len, shown.splitlines())) <= 80
        assert "budget ε" not in shown
        assert "dp-accounting" in shown
