"""Progress of a training in a notebook's cell or a terminal, without further packages.

    fit(trainer, state, callbacks=[shown_progress(trainer)])

It shows the number of steps and the time that is left: both are public. Nothing of a batch is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from inosgd.tabled import in_notebook
from inosgd.training import Callback, StepDiagnostics, Trainer, TrainingState

BETWEEN = 0.2
"""Seconds between two looks: a training is not slowed down by being watched."""


def shown_progress(trainer: Trainer) -> Callback:
    """A callback that shows how many steps are taken and about how long the others will take.

    In a notebook one line of the cell changes; elsewhere one line of standard error.
    """
    planned, show = trainer.plan.steps, _in_cell() if in_notebook() else _on_line
    began: list[tuple[float, int]] = []
    last = [0.0]

    def callback(state: TrainingState, _: StepDiagnostics) -> None:
        now = time.monotonic()
        began.extend([] if began else [(now, state.step)])
        if now - last[0] >= BETWEEN or state.step == planned:
            last[0] = now
            show(progress_line(state.step, planned, now - began[0][0], state.step - began[0][1]), state.step == planned)

    return callback


def progress_line(step: int, planned: int, seconds: float, taken: int) -> str:
    """How far a training has come.

    >>> progress_line(25, 100, 5.0, 25)
    'step 25 of 100, about 15 s left'
    >>> progress_line(100, 100, 20.0, 100)
    'step 100 of 100, done in 20 s'
    """
    if step >= planned:
        return f"step {step} of {planned}, done in {seconds:.0f} s"
    left = f", about {seconds / taken * (planned - step):.0f} s left" if taken else ""
    return f"step {step} of {planned}{left}"


def _on_line(line: str, ended: bool) -> None:
    print(f"\r{line:<50}", end="\n" if ended else "", file=sys.stderr, flush=True)


def _in_cell() -> Callable[[str, bool], None]:
    from IPython.display import display

    handle = display({"text/plain": "waiting for the first step"}, raw=True, display_id=True)
    return lambda line, _: handle.update({"text/plain": line}, raw=True)
