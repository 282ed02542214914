"""``inosgd watch``: a running training, live in the terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.analysis.score import score_named
from inosgd.cli.console import plain_table, results
from inosgd.ledger.ledger import Ledger
from inosgd.runs.folder import RunFolder
from inosgd.runs.lock import is_at_work
from inosgd.shown import BUDGET, SPENT, USED, spending_shown

MOST_OWNERS = 20
REST = 10
"""After a look that took a second, so many seconds pass before the next: watching must not slow the training."""


def watch_command(
    run: Annotated[Path, typer.Argument(help="The run folder of inosgd train.")],
    once: Annotated[bool, typer.Option("--once", help="Show where it stands and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 2.0,
) -> None:
    """Watch a training: held-out loss and budget of every owner, and the time left. It ends with the training."""
    _validate.finite_positive(every=every)
    folder, pace = RunFolder.open(run), Pace()
    if once:
        results().print(_frame(look(folder, pace)))
        return
    with Live(console=results(), auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            seen = look(folder, pace)
            live.update(_frame(seen), refresh=True)
            if seen.ended:
                break
            time.sleep(max(every, REST * (time.monotonic() - began)))
    if not live.console.is_terminal:
        live.console.line()  # what follows in a file or pipe begins on a line of its own


@dataclass
class Pace:
    """How fast steps have come since watching began."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def seconds_per_step(self, run: RunFolder, steps: int) -> float | None:
        """From the steps that were watched; at the first look from the times at which files were written."""
        self.seen.append((time.monotonic(), steps))
        (then, before), (now, after) = self.seen[0], self.seen[-1]
        if after > before:
            return (now - then) / (after - before)
        if not steps:
            return None
        whole = run.ledger_path.stat().st_mtime - run.description_path.stat().st_mtime
        return max(whole, 0.0) / steps


@dataclass(frozen=True, eq=False)
class Seen:
    """A run as it stands."""

    name: str
    ledger: Ledger
    steps: int
    planned: int
    spent: FloatArray
    metrics: list[dict[str, Any]]
    seconds_per_step: float | None
    state: str

    @property
    def ended(self) -> bool:
        """Whether nothing more will come by itself."""
        return self.state != "training"


def look(run: RunFolder, pace: Pace) -> Seen:
    """Read the run; nothing is written and no lock is taken."""
    ledger = run.read_ledger()
    planned = run.plan().steps
    return Seen(
        name=run.path.name,
        ledger=ledger,
        steps=ledger.steps,
        planned=planned,
        spent=ledger.spent(),
        metrics=[line for line in run.metrics() if line.get("owners")][-2:],
        seconds_per_step=pace.seconds_per_step(run, ledger.steps),
        state=_state(run, ledger, planned),
    )


def _state(run: RunFolder, ledger: Ledger, planned: int) -> str:
    if ledger.stopped is not None:
        return f"stopped: {ledger.stopped}"
    if ledger.steps >= planned:
        return "finished"
    return "training" if is_at_work(run.path) else "interrupted: go on with inosgd resume"


def _frame(seen: Seen) -> RenderableType:
    heading = Text.from_markup(f"[bold]{escape(seen.name)}[/]  {escape(seen.state)}")
    line = Table.grid(padding=(0, 2))
    progress = ProgressBar(total=seen.planned, completed=seen.steps, width=40)
    line.add_row(progress, f"step {seen.steps} of {seen.planned}{_time_left(seen)}")
    shown = sorted(range(len(seen.ledger.table)), key=lambda row: int(seen.ledger.table.privacy_ranks[row]))
    hidden = len(shown) - MOST_OWNERS
    note = [Text(f"the {MOST_OWNERS} strictest of {len(shown)} owners")] if hidden > 0 else []
    return Group(heading, line, Text(), _table(seen, shown[:MOST_OWNERS]), *note, *_about(seen))


def _about(seen: Seen) -> list[Text]:
    if not seen.metrics:
        return [
            Text(
                "no held-out results yet; they come with checkpoints, or as often as [evaluation] every says",
                style="dim",
            )
        ]
    last = seen.metrics[-1]
    shown = score_named(last["scored_by"]).shown(last["overall"])
    return [Text(f"held-out examples after step {last['step']}: {last['scored_by']} {shown}", style="dim")]


def _table(seen: Seen, rows: list[int]) -> Table:
    table = plain_table("owner", right=("held-out loss", "score", SPENT, BUDGET, USED))
    for row in rows:
        name, budget = seen.ledger.table.names[row], seen.ledger.table.budget(row)
        shown = spending_shown(budget.epsilon, budget.delta, float(seen.spent[row]))
        table.add_row(escape(name), *_quality(seen, name), shown.spent, shown.budget, shown.used)
    return table


def _quality(seen: Seen, name: str) -> tuple[str, str]:
    """The owner's last held-out loss with the way it has gone since the one before, and its score."""
    values = [line["owners"][name] for line in seen.metrics if name in line["owners"]]
    if not values:
        return "", ""
    loss = values[-1]["loss"]
    way = " " if len(values) < 2 else "↓" if loss < values[-2]["loss"] else "↑"
    return f"{loss:.3f} {way}", score_named(seen.metrics[-1]["scored_by"]).shown(values[-1]["score"])


def _time_left(seen: Seen) -> str:
    if seen.ended or not seen.seconds_per_step:
        return ""
    seconds = round(seen.seconds_per_step * (seen.planned - seen.steps))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f", about {f'{hours} h {minutes} min' if hours else f'{minutes} min {seconds % 60} s'} left"
