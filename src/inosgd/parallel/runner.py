"""The runner: independent tasks carried out by workers, handed back as they finish, tried again when they fail."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from inosgd._extras import needs
from inosgd.errors import InosgdError
from inosgd.parallel.workers import LOCAL, Workers

with needs("data"):
    import joblib

MANAGER_THREAD = "ExecutorManagerThread"
"""loky's name for the thread that hands tasks to processes."""

_turn = threading.RLock()


@dataclass(frozen=True)
class Failure:
    """What a task that failed left behind.

    Attributes:
        task: Who it was.
        error: What it raised, or how its process was lost.
        final: Whether trying again cannot help: what was asked for is wrong.
        attempts: How often it was tried.
    """

    task: str
    error: str
    final: bool = False
    attempts: int = 1


def run_all(
    function: Callable[[Any], Any], tasks: Sequence[Any], *, names: Sequence[str], workers: Workers = LOCAL
) -> Iterator[tuple[int, Any]]:
    """Call ``function`` on every task, several at a time, each in a process with one thread.

    Yields the index of the task and its result, in the order in which tasks finish. One thread per process: small
    networks lose more to waiting for threads than they gain, and results do not depend on how many processes there
    are, nor on where.

    A task that fails is tried again, up to ``workers.retries`` times, after all others; then its `Failure` is yielded,
    and the others are not stopped. An `InosgdError` is not tried again: it would come back. When a process is killed,
    the tasks that were under way (one of which did it, or its machine) are repeated one at a time, and only those that
    lose their process again count it as an attempt. With one local process, tasks are called in this very one.
    """
    attempts = [0] * len(tasks)
    waiting = list(range(len(tasks)))
    while waiting:
        again = []
        for index, outcome in _round(_Calls(function, tasks, names), waiting, workers):
            attempts[index] += 1
            if not isinstance(outcome, Failure):
                yield index, outcome
            elif outcome.final or attempts[index] > workers.retries:
                yield index, Failure(outcome.task, outcome.error, outcome.final, attempts[index])
            else:
                again.append(index)
        waiting = sorted(again)


def failures_error(
    failures: Sequence[Failure], total: int, what: str = "trainings", *, kept: bool = True
) -> InosgdError:
    """The error that names every task that failed, under what it failed with; ``kept`` if the others are."""
    by_error: dict[str, list[str]] = {}
    for each in failures:
        tried = f" (tried {each.attempts} times)" if each.attempts > 1 else ""
        by_error.setdefault(each.error, []).append(each.task + tried)
    named = "; ".join(f"{', '.join(names)}: {error}" for error, names in by_error.items())
    return InosgdError(f"{len(failures)} of {total} {what} failed{', the others are kept' if kept else ''}: {named}")


@dataclass(frozen=True)
class _Calls:
    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    names: Sequence[str]

    def of(self, indices: Sequence[int], begun: list[int]) -> Iterator[Any]:
        """The calls, noted in ``begun`` as they are handed over."""
        for index in indices:
            begun.append(index)
            yield joblib.delayed(_guarded)(self.function, self.tasks[index], index, self.names[index])


def _round(calls: _Calls, indices: Sequence[int], workers: Workers) -> Iterator[tuple[int, Any]]:
    """Every task once; those that were under way when a process was lost, a second time and alone."""
    waiting = list(indices)
    while waiting:
        begun: list[int] = []
        done: set[int] = set()
        try:
            with _closed_at_end(workers.parallel()(calls.of(waiting, begun))) as outcomes:
                for index, outcome in outcomes:
                    done.add(index)
                    yield index, outcome
        except Exception:  # tasks do not raise (`_guarded`): this is about a worker
            under_way = [index for index in begun if index not in done]
            if not under_way:
                raise
            for index in under_way:
                yield _alone(calls, index, workers)
        waiting = [index for index in waiting if index not in begun]


@contextmanager
def _closed_at_end(outcomes: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """A caller that stops taking results wants tasks under way cancelled: joblib need not warn of it."""
    try:
        yield outcomes
    finally:
        with warnings.catch_warnings(), _cancelled_tasks_are_not_missed():
            warnings.simplefilter("ignore")
            outcomes.close()


@contextmanager
def _cancelled_tasks_are_not_missed() -> Iterator[None]:
    """Inside, the thread that hands tasks to processes may look for one that has just been taken back, and end there.

    loky joins that thread before it returns. Any other error of any thread is reported as before.
    """
    before = threading.excepthook

    def report(found: threading.ExceptHookArgs) -> None:
        if not (found.exc_type is KeyError and found.thread is not None and found.thread.name == MANAGER_THREAD):
            before(found)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = before


def _alone(calls: _Calls, index: int, workers: Workers) -> tuple[int, Any]:
    """One task with no other beside it, so that a process that is lost is its own."""
    try:
        outcomes: list[tuple[int, Any]] = list(workers.parallel(apart=True)(calls.of([index], [])))
    except Exception as error:
        return index, Failure(calls.names[index], f"its worker was lost: {type(error).__name__}: {error}")
    return outcomes[0]


def _guarded(function: Callable[[Any], Any], task: Any, index: int, name: str) -> tuple[int, Any]:
    """The task's result or `Failure`; one task of a process at a time, because torch's generator is the process's."""
    with _turn:
        torch.set_num_threads(1)
        try:
            return index, function(task)
        except InosgdError as error:
            return index, Failure(name, f"{type(error).__name__}: {error}", final=True)
        except Exception as error:
            return index, Failure(name, f"{type(error).__name__}: {error}")
