"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import math
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from inosgd.shown import rounded_up

__all__ = [
    "compact",
    "late_progress",
    "messages",
    "plain_table",
    "progress_bar",
    "results",
    "rounded_up",
    "steps_shown",
]


PATIENCE = 2.0
"""Seconds without a sign of progress."""

_SHARES = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())


def results() -> Console:
    """Standard output."""
    return Console(highlight=False)


def messages() -> Console:
    """Standard error; of several processes that were launched together, the first one's."""
    return Console(stderr=True, highlight=False, quiet="RANK" in os.environ and _rank() > 0)


def _rank() -> int:
    from inosgd.distributed import launched  # torch: only those wait for it who were launched together

    return launched()[0]


def progress_bar(*, hidden: bool = False) -> Progress:
    """How far work has come, on standard error; it disappears at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=messages(), transient=True, disable=hidden)


@contextmanager
def steps_shown(taken: int, planned: int, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """How far a training has come: what it gives is a callback of the training."""
    with progress_bar(hidden=hidden) as progress:
        task = progress.add_task("training", total=planned, completed=taken)
        yield lambda state, *_: progress.update(task, completed=state.step)


@contextmanager
def late_progress(what: str) -> Iterator[Callable[[float], None]]:
    """Shows which share of the work is done, once it has taken longer than `PATIENCE`: call it with the share."""
    started, progress = time.monotonic(), Progress(*_SHARES, console=messages(), transient=True)
    task = progress.add_task(what, total=1.0)

    def show(done: float) -> None:
        if time.monotonic() - started > PATIENCE:
            progress.start()
        progress.update(task, completed=done)

    try:
        yield show
    finally:
        progress.stop()


NARROW = 6
"""So many characters of a heading stand in a line where a table is too wide; more only if a word has more."""


class _Narrowing(Table):
    """A table that cuts no number: where it is too wide, headings and then names take several lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if Measurement.get(console, options.update(width=1000), self).maximum > options.max_width:
            for column in self.columns:
                words = str(column.header).split()
                column.header = textwrap.fill(" ".join(words), max(NARROW, *map(len, words)), break_on_hyphens=False)
        yield from super().__rich_console__(console, options)


def plain_table(*left: str, right: tuple[str, ...]) -> Table:
    """A table that fits a narrow terminal: words in the ``left`` columns, numbers in the ``right`` ones."""
    table = _Narrowing(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold", min_width=len(heading))
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def compact(epsilon: float) -> str:
    """An epsilon in at most five characters, rounded up; beyond a thousand only its size matters.

    >>> compact(14.23), compact(17234.0), compact(3.1e6)
    ('14.3', '18k', '>999k')
    """
    if epsilon < 1000:
        return rounded_up(epsilon, 3)
    return f"{math.ceil(epsilon / 1000)}k" if epsilon <= 999_000 else ">999k"
