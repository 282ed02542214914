"""``inosgd evidence``: train what the repository's claims rest on, and write the page of evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inosgd.cli.console import messages, results
from inosgd.cli.options import with_groups
from inosgd.cli.words import words
from inosgd.cli.workers import WorkerOptions
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.location import data_folder
from inosgd.paper.evidence import EVIDENCE, Evidence, collect
from inosgd.paper.evidence_report import render

NAMES = [evidence.name for evidence in EVIDENCE]


@with_groups
def evidence_command(
    studies: Annotated[str | None, typer.Option(help=f"Some of: {', '.join(NAMES)}; all if not given.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    cache: Annotated[Path, typer.Option(help="Where finished trainings are kept.")] = Path("runs/evidence"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("evidence/RESULTS.md"),
    *,
    workers: WorkerOptions,
) -> None:
    """Train every study of the evidence (hours; it continues where it stopped), and write verdicts and tables."""
    chosen, folder = _chosen(studies), data_folder(data)
    with workers.connected(continues=True) as connected, messages().status("training") as status:
        found = [
            collected
            for evidence in chosen
            for collected in collect(
                evidence, folder, cache, workers=connected, notice=lambda text: status.update(text)
            )
        ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(found), encoding="utf-8")
    results().print(f"Written: {out}")


def _chosen(names: str | None) -> list[Evidence]:
    if names is None:
        return list(EVIDENCE)
    wanted = words(names)
    for name in wanted:
        if name not in NAMES:
            raise InvalidArgumentError(f"studies: {name!r} is not one of {', '.join(NAMES)}")
    return [evidence for evidence in EVIDENCE if evidence.name in wanted]
