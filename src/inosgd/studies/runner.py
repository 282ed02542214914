"""The runner: independent trainings in parallel processes, handed back as they finish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import torch


@dataclass(frozen=True)
class Failure:
    """What a task that raised left behind: who it was, and the error."""

    task: str
    error: str


def run_all(
    function: Callable[[Any], Any], tasks: Sequence[Any], *, names: Sequence[str], jobs: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Call ``function`` on every task, ``jobs`` at a time, each in a process with one thread.

    Yields the index of the task and its result, in the order in which tasks finish; a task that raises yields a
    `Failure` and does not stop the others. One thread per process: small networks lose more to waiting for threads
    than they gain, and results do not depend on how many processes there are.
    """
    count = jobs or os.cpu_count() or 1
    parallel = joblib.Parallel(n_jobs=count, return_as="generator_unordered", pre_dispatch="2*n_jobs", batch_size=1)
    calls = (joblib.delayed(_guarded)(function, task, index, names[index]) for index, task in enumerate(tasks))
    yield from parallel(calls)


def _guarded(function: Callable[[Any], Any], task: Any, index: int, name: str) -> tuple[int, Any]:
    torch.set_num_threads(1)
    try:
        return index, function(task)
    except Exception as error:
        return index, Failure(name, f"{type(error).__name__}: {error}")
