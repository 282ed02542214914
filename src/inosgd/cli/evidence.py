"""``inosgd evidence``: train what the repository's claims rest on, and write the page of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from inosgd.cli.console import messages, results
from inosgd.cli.options import with_groups
from inosgd.cli.words import words
from inosgd.cli.workers import WorkerOptions
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.location import data_folder
from inosgd.paper.evidence import EVIDENCE, collect
from inosgd.paper.evidence_report import render
from inosgd.paper.frontier import FRONTIER, measure, read_measured, write_measured
from inosgd.paper.frontier_report import render as render_frontier

NAMES = list(dict.fromkeys([evidence.name for evidence in EVIDENCE] + [entry.name for entry in FRONTIER]))
PAGES = ("claims", "frontier")


@with_groups
def evidence_command(
    studies: Annotated[str | None, typer.Option(help=f"Some of: {', '.join(NAMES)}; all if not given.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    cache: Annotated[Path, typer.Option(help="Where finished trainings are kept.")] = Path("runs/evidence"),
    out: Annotated[Path, typer.Option(help="The folder that the pages are written into.")] = Path("evidence"),
    pages: Annotated[str, typer.Option(help=f"Which pages: {', '.join(PAGES)}.")] = ",".join(PAGES),
    *,
    workers: WorkerOptions,
) -> None:
    """Train every study of the evidence (hours; it continues where it stopped), and write verdicts and tables.

    The frontier keeps the numbers of each study in OUT/frontier: those of studies that are not chosen stay on the page.
    """
    chosen, folder = _chosen("--studies", studies, NAMES), data_folder(data)
    wanted = _chosen("--pages", pages, PAGES)
    written = {}
    with workers.connected(continues=True) as connected, messages().status("training") as status:
        if "claims" in wanted:
            found = [
                collected
                for evidence in EVIDENCE
                if evidence.name in chosen
                for collected in collect(evidence, folder, cache, workers=connected, notice=status.update)
            ]
            written["RESULTS.md"] = render(found)
        if "frontier" in wanted:
            for entry in (each for each in FRONTIER if each.name in chosen):
                measured = measure(entry, folder, cache, workers=connected, notice=status.update)
                write_measured(measured, out / "frontier")
            written["FRONTIER.md"] = render_frontier(read_measured(out / "frontier"))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (out / name).write_text(text, encoding="utf-8")
        results().print(f"Written: {out / name}")


def _chosen(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    wanted = list(known) if text is None else words(text)
    for name in wanted:
        if name not in known:
            raise InvalidArgumentError(f"{option}: {name!r} is not one of {', '.join(known)}")
    return wanted
