"""``inosgd report``: what came of runs, as one page and as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from inosgd.cli.console import messages, results
from inosgd.cli.words import words, words_if_given
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.report import read_runs, write_figures, write_report

PAGE = "report.html"


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of compare, reproduce or train, with the same owners.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; report.html in the run folder if not given.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="A folder for the charts as files; without --out, no page is written.")
    ] = None,
    formats: Annotated[str, typer.Option(help="Formats of the figures, separated by commas: svg, png, pdf.")] = "svg",
    charts: Annotated[str | None, typer.Option(help="Which figures, by name, separated by commas.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="A row that all charts show; repeat it. By default the usual ones.")
    ] = None,
) -> None:
    """Make one page of one or several runs: who gained, who paid, how close each budget came.

    The page holds everything that it shows and loads nothing. It names owners and their budgets.
    """
    material = read_runs(runs, row)
    if figures is not None:
        written = write_figures(material, figures, words(formats), words_if_given(charts))
        results().print(f"Figures: {len(written)} in {escape(str(figures))}", soft_wrap=True)
    if out is not None or figures is None:
        path = write_report(material, out or _usual_place(runs))
        results().print(f"Report: {escape(str(path))}", soft_wrap=True)


def report_at_end(folder: Path) -> Path | None:
    """Write the report of a run that has just ended; a report that fails is told about and takes nothing with it."""
    try:
        return write_report(read_runs([folder]), folder / PAGE)
    except (InosgdError, OSError) as error:
        messages().print(f"[yellow]no report:[/] {escape(str(error))}", soft_wrap=True)
        return None


def _usual_place(runs: list[Path]) -> Path:
    if len(runs) > 1:
        raise InvalidArgumentError("--out: with several runs say where the page goes, such as -o report.html")
    return runs[0] / PAGE
