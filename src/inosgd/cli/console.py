"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def results() -> Console:
    """Standard output."""
    return Console(highlight=False)


def messages() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def plain_table(*left: str, right: tuple[str, ...]) -> Table:
    """A table that fits a narrow terminal: words in the ``left`` columns, numbers in the ``right`` ones."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
