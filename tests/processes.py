"""Processes for tests: some that meet over gloo and run many functions, and one that a test forks off for itself."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 120
PRELOADED = ["tests.test_distributed", "torch._dynamo", __name__]
"""Imported once, before the processes fork off; torch loads ``_dynamo`` with the first optimizer."""


@contextmanager
def forked(function: Callable[..., None], *arguments: Any) -> Iterator[tuple[Connection, multiprocessing.Process]]:
    """A process that runs ``function(pipe, *arguments)``, and the pipe's other end; killed at the end of the block.

    It has all that is imported here, which a new Python would take seconds to import.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=function, args=(there, *arguments), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where there are other threads
        process.start()
    there.close()
    try:
        yield here, process
    finally:
        process.kill()
        process.join()
        here.close()


class Crew:
    """So many processes of one group, each waiting for the next function to run."""

    def __init__(self, size: int, folder: Path, preloaded: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, *preloaded])
        self._pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, folder / "meeting"), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(peers, *arguments)`` returns or raises in each process; None where the process has died."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [_answer(pipe) for pipe in self._pipes]

    def end(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def crew_of(size: int, *preloaded: str) -> Iterator[Crew]:
    """A crew that is gone after the block; the first of a test run imports the ``preloaded`` modules for all."""
    with tempfile.TemporaryDirectory() as folder:
        crew = Crew(size, Path(folder), preloaded)
        try:
            yield crew
        finally:
            crew.end()


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"a process did not answer within {PATIENCE} s")
    try:
        return pipe.recv()
    except EOFError:
        return None


def _serve(pipe: Connection, rank: int, size: int, meeting: Path) -> None:
    import torch

    from inosgd.distributed import connect

    torch.set_num_threads(1)
    os.environ.pop("RANK", None)
    with connect(f"file://{meeting}", rank=rank, size=size, timeout=30) as peers:
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                os._exit(0)
            try:
                answer = function(peers, *arguments)
            except Exception as error:
                answer = Raised(type(error).__name__, str(error), traceback.format_exc())
            pipe.send(answer)


class Raised:
    """An exception of another process, as it can be sent."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        self.kind, self.message, self.trace = kind, message, trace

    def __repr__(self) -> str:
        return f"Raised({self.kind}: {self.message})\n{self.trace}"
