"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from inosgd.distributed import launched


def results() -> Console:
    """Standard output."""
    return Console(highlight=False)


def messages() -> Console:
    """Standard error; of several processes that were launched together, the first one's."""
    return Console(stderr=True, highlight=False, quiet=launched()[0] > 0)


def plain_table(*left: str, right: tuple[str, ...]) -> Table:
    """A table that fits a narrow terminal: words in the ``left`` columns, numbers in the ``right`` ones."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def rounded_up(epsilon: float, digits: int = 4) -> str:
    """An epsilon with this many digits, rounded to the private side.

    >>> rounded_up(0.99901, 3)
    '1'
    """
    if not math.isfinite(epsilon) or epsilon == 0:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - digits + 1)
    return f"{math.ceil(epsilon / unit - 1e-9) * unit:.{digits}g}"


def compact(epsilon: float) -> str:
    """An epsilon in at most five characters, rounded up; beyond a thousand only its size matters.

    >>> compact(14.23), compact(17234.0), compact(3.1e6)
    ('14.3', '18k', '>999k')
    """
    if epsilon < 1000:
        return rounded_up(epsilon, 3)
    return f"{math.ceil(epsilon / 1000)}k" if epsilon <= 999_000 else ">999k"
