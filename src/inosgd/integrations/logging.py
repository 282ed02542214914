"""Logging of a training by public numbers alone: a callback for `inosgd.fit` and `inosgd.runs.resuming.train_durably`.

| logged every N steps  | why it is public                                                              |
| --------------------- | ----------------------------------------------------------------------------- |
| `step`                | how many steps are taken is in the plan                                       |
| `epsilon`, by owner   | computed from the plan's terms, never from examples                           |
| `noise_scale`         | in the plan                                                                   |
| `expected_batch_size` | in the plan; the size of the batch that was drawn is sensitive                |
| `learning_rate`       | what the optimizer has; see `public_numbers`                                  |

Nothing else is logged. Batch sizes, losses, norms and `inosgd.training.StepDiagnostics` are computed from the batch
without noise: a curve of the training loss on a shared dashboard is a release that no ledger has.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from inosgd.errors import InvalidArgumentError
from inosgd.training import Callback, TrainingState, every

Emit = Callable[[Mapping[str, Any]], None]
"""What takes the numbers of a step, such as a few lines for a dashboard."""


def public_numbers(state: TrainingState) -> dict[str, Any]:
    """The public numbers of a training after its latest step.

    Guarantee:
        A function of the plan, of the number of steps and of the optimizer's learning rate: no example has a say in
        it, so that it costs no privacy. This holds for learning rates that are fixed, or scheduled by the number of
        steps. A schedule by training losses would not be private, logged or not.

    Raises:
        InvalidArgumentError: If no step was taken yet: there are no terms to log.
    """
    if state.under is None:
        raise InvalidArgumentError("state: no step was taken yet; log after the first one")
    terms, ledger = state.under.terms, state.ledger
    rates = [float(group["lr"]) for group in state.optimizer.param_groups if "lr" in group]
    return {
        "step": state.step,
        "epsilon": dict(zip(ledger.table.names, map(float, ledger.spent(state.step)), strict=True)),
        "noise_scale": terms.noise_scale,
        "expected_batch_size": terms.expected_batch_size,
        "learning_rate": rates[0] if len(rates) == 1 else rates,
    }


def log_public(to: str | os.PathLike[str] | TextIO | Emit, *, steps: int = 100) -> Callback:
    """A callback that emits `public_numbers` after each ``steps``-th step.

    On many processes give it to the first alone. A run that is resumed logs the steps that it repeats a second time,
    with the same numbers.

    Args:
        to: A path, to which JSON lines are appended; an open text file, which gets the same; or a function of the
            numbers.
        steps: How often. What was spent is computed each time, which takes longer than a small step.
    """
    if callable(to):
        emit = to
    elif isinstance(to, str | os.PathLike):
        emit = _appended_to(Path(to))
    elif hasattr(to, "write"):
        emit = _written_to(to)
    else:
        raise InvalidArgumentError(f"to={to!r}: give a path, an open text file, or a function of the numbers")
    return every(steps, lambda state: emit(public_numbers(state)))


def as_line(numbers: Mapping[str, Any]) -> str:
    """The numbers as one line of JSON; infinite epsilons as text, which JSON numbers cannot hold.

    >>> as_line({"step": 1, "epsilon": {"a": math.inf}}).strip()
    '{"step": 1, "epsilon": {"a": "inf"}}'
    """
    epsilons = {name: each if math.isfinite(each) else "inf" for name, each in numbers["epsilon"].items()}
    return json.dumps({**numbers, "epsilon": epsilons}, allow_nan=False) + "\n"


def _appended_to(path: Path) -> Emit:
    def emit(numbers: Mapping[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(as_line(numbers))

    return emit


def _written_to(file: TextIO) -> Emit:
    def emit(numbers: Mapping[str, Any]) -> None:
        file.write(as_line(numbers))
        file.flush()

    return emit
