"""``inosgd compare``: the same model, the same budgets, several methods."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from inosgd import _validate
from inosgd.analysis.findings import findings, shared_findings
from inosgd.analysis.score import Score, score_named
from inosgd.analysis.summary import MeanSd
from inosgd.cli.console import compact, messages, plain_table, results, rounded_up
from inosgd.cli.folders import run_folder
from inosgd.cli.report import report_at_end
from inosgd.cli.words import words
from inosgd.cli.workers import Address, Backend, Jobs, chosen_workers
from inosgd.compare.comparison import Summary, compare, summarize, verdict
from inosgd.compare.entrant import Entrant, entrants
from inosgd.compare.run import Run
from inosgd.errors import InvalidArgumentError
from inosgd.method import METHODS, method_named
from inosgd.parallel.workers import Workers
from inosgd.planning import VARIANTS
from inosgd.report.measuring import measure_and_keep
from inosgd.study.built_in import STUDIES
from inosgd.study.study import Study


def compare_command(
    study: Annotated[str, typer.Option(help=f"One of: {', '.join(STUDIES)}.")] = "digits",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    variant: Annotated[str, typer.Option(help=f"How idp-sgd and ino-sgd plan: {', '.join(VARIANTS)}.")] = "sample",
    seeds: Annotated[int, typer.Option(help="How many paired seeds.")] = 5,
    steps: Annotated[int | None, typer.Option(help="Steps of each training, instead of the study's.")] = None,
    accountant: Annotated[str | None, typer.Option(help="pld or rdp.")] = None,
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    out: Annotated[Path | None, typer.Option(help="The run folder, which must not exist yet.")] = None,
    report: Annotated[bool, typer.Option(help="Write report.html into the run folder.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train one model under the same individual budgets with several methods, and show what every owner gets."""
    chosen = _study(study, steps, accountant)
    _validate.whole(1, seeds=seeds)
    if variant not in VARIANTS:
        raise InvalidArgumentError(f"variant={variant!r}: choose one of {', '.join(VARIANTS)}")
    names = words(methods)
    if not names:
        raise InvalidArgumentError(f"methods={methods!r}: name at least one of {', '.join(METHODS)}")
    torch.set_num_threads(1)  # networks this small lose more to waiting for threads than they gain
    entered = entrants([method_named(name) for name in names], variant)
    with run_folder(out, f"compare-{chosen.name}") as (working, final):
        with chosen_workers(backend, jobs, address, continues=False) as workers:
            runs = _run_all(chosen, entered, range(seeds), working, workers)
        summaries = summarize(runs)
        summary = _report(chosen, entered, runs, summaries, final)
        (working / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        if report:
            with messages().status("measuring the condition of Thm. 3.1 and the weights"):
                measure_and_keep(chosen, entered, 0, working)
    page = report_at_end(final) if report else None
    if as_json:
        typer.echo(json.dumps(summary))
        return
    _print(chosen, entered, summaries, seeds, final)
    if page is not None:
        results().print(f"Report: {page}", soft_wrap=True)


def _study(name: str, steps: int | None, accountant: str | None) -> Study:
    if name not in STUDIES:
        raise InvalidArgumentError(f"study={name!r}: choose one of {', '.join(STUDIES)}")
    study = STUDIES[name]
    changes = {key: value for key, value in (("steps", steps), ("accountant", accountant)) if value is not None}
    return dataclasses.replace(study, settings=dataclasses.replace(study.settings, **changes))  # type: ignore[arg-type]


def _run_all(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], folder: Path, workers: Workers
) -> list[Run]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as progress:
        task = progress.add_task("planning and training", total=len(entered) * len(seeds))
        runs = []
        for run in compare(study, entered, seeds, folder, workers):
            runs.append(run)
            progress.update(task, advance=1, description=f"{run.entrant.label}, seed {run.seed}")
    rows = [entrant.label for entrant in entered]
    return sorted(runs, key=lambda run: (run.seed, rows.index(run.entrant.label)))


def _report(
    study: Study, entered: Sequence[Entrant], runs: Sequence[Run], summaries: dict[str, Summary], folder: Path
) -> dict[str, object]:
    return {
        "study": study.name,
        "description": study.description,
        "settings": study.settings.to_json(),
        "seeds": sorted({run.seed for run in runs}),
        "methods": {
            entrant.label: {"variant": entrant.method.variant, **summaries[entrant.label].to_json()}
            for entrant in entered
        },
        "findings": {entrant.label: _findings(study, runs, entrant.label) for entrant in entered},
        "verdict": verdict(summaries),
        "folder": str(folder),
    }


def _findings(study: Study, runs: Sequence[Run], label: str) -> list[dict[str, object]]:
    parameters = sum(each.numel() for each in study.model(0).parameters() if each.requires_grad)
    found = [findings(run.curve, (), run.plan, parameters) for run in runs if run.entrant.label == label]
    return [each.to_json() for each in shared_findings(found, label)]


def _print(study: Study, entered: Sequence[Entrant], summaries: dict[str, Summary], seeds: int, folder: Path) -> None:
    settings, shown = study.settings, results()
    shown.print(f"[bold]{study.description}[/]")
    shown.print(
        f"{settings.steps} steps, expected batch {settings.expected_batch_size:g}, {seeds} paired seeds, accountant "
        f"{settings.accountant}; {_score(summaries).name} on held-out data, mean ± standard deviation\n"
    )
    shown.print(_method_table(entered, summaries))
    shown.print(
        "\n[bold]What every owner gets[/], the ε of single records, and that of 10 and of all of them together\n"
    )
    shown.print(_owner_table(summaries))
    shown.print(f"\n{verdict(summaries)}")
    shown.print(f"Run folder: {folder}")


def _method_table(entered: Sequence[Entrant], summaries: dict[str, Summary]) -> Table:
    table = plain_table("method", "plan", right=("overall", "worst owner"))
    for entrant in entered:
        summary = summaries[entrant.label]
        cells = [_scored(_score(summaries), value) for value in (summary.overall, summary.worst)]
        table.add_row(entrant.label, entrant.method.variant, *cells)
    return table


def _owner_table(summaries: dict[str, Summary]) -> Table:
    groups = ("10", "all")
    table = plain_table("method", "owner", right=(_score(summaries).name, "loss", "ε spent", "of", *groups))
    for method, summary in summaries.items():
        for name, owner in summary.owners.items():
            together = [compact(owner.group[size]) if size in owner.group else "" for size in groups]
            cells = [
                _scored(_score(summaries), owner.score),
                _number(owner.loss),
                rounded_up(owner.spent, 3),
                f"{owner.allowed:g}",
                *together,
            ]
            table.add_row(method if name == next(iter(summary.owners)) else "", name, *cells)
    return table


def _score(summaries: dict[str, Summary]) -> Score:
    return score_named(next(iter(summaries.values())).scored_by)


def _scored(score: Score, value: MeanSd) -> str:
    return f"{score.shown(value.mean)} {score.shown_spread(value.sd)}"


def _number(value: MeanSd) -> str:
    return f"{value.mean:.2f} ± {value.sd:.2f}"
