"""Options of the commands that carry out many trainings, and what they say when they are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from inosgd.cli.console import messages
from inosgd.parallel.workers import BACKENDS, RETRIES, Workers, connected

Jobs = Annotated[
    int | None, typer.Option(help="Trainings at a time; one per core, or as many as the cluster has, if not given.")
]
Backend = Annotated[
    str,
    typer.Option(
        help=f"Where trainings run: {', '.join(BACKENDS)}. One that fails is tried again {RETRIES} times, then named."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of the cluster; RAY_ADDRESS or DASK_SCHEDULER_ADDRESS if not given, else one is started here."),
]


@contextmanager
def chosen_workers(backend: str, jobs: int | None, address: str | None, *, continues: bool) -> Iterator[Workers]:
    """The workers that the options name; ``continues`` if the same command goes on after an interruption."""
    try:
        with connected(backend, jobs=jobs, address=address) as workers:
            yield workers
    except KeyboardInterrupt:
        if not continues:
            raise
        messages().print("interrupted; finished trainings are kept, and the same command goes on from there")
        raise typer.Exit(130) from None
