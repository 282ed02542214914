"""Options of the commands that carry out many trainings, and what they say when they are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from inosgd.cli.console import messages
from inosgd.cli.options import WORKERS_PANEL
from inosgd.parallel.workers import BACKENDS, RETRIES, Workers, connected


@dataclass(frozen=True)
class WorkerOptions:
    """Where trainings run, and how many at a time."""

    jobs: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=WORKERS_PANEL,
            help="Trainings at a time; one per core, or as many as the cluster has, if not given.",
        ),
    ] = None
    backend: Annotated[
        str,
        typer.Option(
            rich_help_panel=WORKERS_PANEL,
            help=f"Where trainings run: {', '.join(BACKENDS)}. One that fails is repeated up to {RETRIES} times.",
        ),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WORKERS_PANEL,
            help="The cluster; RAY_ADDRESS or DASK_SCHEDULER_ADDRESS if not given, else one is started here.",
        ),
    ] = None

    @contextmanager
    def connected(self, *, continues: bool) -> Iterator[Workers]:
        """The workers; ``continues`` if the same command goes on after an interruption."""
        try:
            with connected(self.backend, jobs=self.jobs, address=self.address) as workers:
                yield workers
        except KeyboardInterrupt:
            if not continues:
                raise
            messages().print("interrupted; finished trainings are kept, and the same command goes on from there")
            raise typer.Exit(130) from None
