"""``inosgd reproduce``: the paper's studies by name, with paired seeds, continued where they stopped."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from inosgd import _validate
from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.report import report_at_end
from inosgd.cli.words import words_if_given
from inosgd.cli.workers import Address, Backend, Jobs, chosen_workers
from inosgd.compare import views
from inosgd.compare.conditions import condition_along
from inosgd.compare.entrant import Entrant
from inosgd.compare.reproduction import configuration, missing_tasks, reproduce, with_learning_rate
from inosgd.compare.results import ResultStore
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.location import data_folder
from inosgd.paper.experiments import EXPERIMENTS, chosen_methods, experiment_named, with_fairness
from inosgd.paper.registry import SCALES, SETTINGS, study_named
from inosgd.parallel.workers import Workers
from inosgd.planning import VARIANTS, Fairness
from inosgd.report.measuring import keep, weights_of
from inosgd.study.study import Study

Entered = dict[str, list[Entrant]]
"""The rows of every variant."""


def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(SETTINGS)}.")],
    experiment: Annotated[str, typer.Option(help=f"What to find out: {', '.join(EXPERIMENTS)}.")] = "methods",
    methods: Annotated[str | None, typer.Option(help="Rows of the experiment `methods`, separated by commas.")] = None,
    variants: Annotated[str | None, typer.Option(help="Plans, separated by commas; the paper's if not given.")] = None,
    seeds: Annotated[int, typer.Option(help="How many paired seeds.")] = 5,
    scale: Annotated[str, typer.Option(help=f"One of: {', '.join(SCALES)}.")] = "laptop",
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the study's.")] = None,
    exponent: Annotated[
        float, typer.Option(help="Of fair plans: 0 most signal, inf equal signals.")
    ] = Fairness().exponent,
    max_ratio: Annotated[
        float, typer.Option(help="Of fair plans: the cap on signal per record, or inf.")
    ] = Fairness().max_ratio,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    condition: Annotated[
        bool, typer.Option("--condition", help="Also measure the condition of Thm. 3.1, and weights.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; continued if it exists.")] = None,
    page: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html beside the results.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train a study of the paper by every method and plan asked for, and show what each owner gets."""
    _validate.whole(1, seeds=seeds)
    study = with_learning_rate(study_named(name, scale, data_folder(data)), learning_rate)
    fairness = Fairness(exponent=exponent, max_ratio=max_ratio)
    entered = _entered(study, experiment, words_if_given(methods), words_if_given(variants), fairness)
    study.split(0)  # missing or corrupt data end here, before anything is written
    store = _store(study, scale, out)
    everything = [row for rows in entered.values() for row in rows]
    with chosen_workers(backend, jobs, address, continues=True) as workers:
        _train(study, everything, range(seeds), store, workers)
    report = _report(study, scale, experiment, entered, range(seeds), store)
    if condition:
        report["condition"] = _conditions(study, entered)
        _keep_along(study, entered, report["condition"], store.path.parent)
    written = report_at_end(store.path.parent) if page else None
    if as_json:
        typer.echo(json.dumps(report))
        return
    _print(study, experiment, report)
    results().print(f"\nResults: {store.path}")
    if written is not None:
        results().print(f"Report: {written}", soft_wrap=True)


def _conditions(study: Study, entered: Entered) -> dict[str, Any]:
    """The condition along the first seed of every row."""
    with messages().status("measuring the condition of Thm. 3.1"):
        return {
            variant: {row.label: condition_along(study, row, 0) for row in rows} for variant, rows in entered.items()
        }


def _keep_along(study: Study, entered: Entered, conditions: Mapping[str, Any], folder: Path) -> None:
    """The condition and the weights of the study's usual plan, or of the only one, for the report."""
    usual = study.variant if study.variant in entered else next(iter(entered))
    keep(folder, "condition", conditions[usual])
    keep(folder, "weights", weights_of(study, entered[usual], 0))


def _entered(
    study: Study, experiment: str, methods: Sequence[str] | None, variants: Sequence[str] | None, fairness: Fairness
) -> Entered:
    chosen = experiment_named(experiment)
    if methods is not None and experiment != "methods":
        raise InvalidArgumentError(f"methods={','.join(methods)!r}: only the experiment `methods` takes a choice")
    planned = [study.variant] if not variants else list(variants)
    for variant in planned:
        if variant not in VARIANTS:
            raise InvalidArgumentError(f"variants: {variant!r} is not one of {', '.join(VARIANTS)}")
    rows = {
        variant: chosen_methods(variant, methods) if experiment == "methods" else chosen.rows(variant)
        for variant in planned
    }
    return {variant: [with_fairness(row, fairness) for row in entrants] for variant, entrants in rows.items()}


def _store(study: Study, scale: str, out: Path | None) -> ResultStore:
    """Results of the same settings share a folder, so that asking for more seeds or methods adds to them."""
    common = configuration(study, scale)
    digest = hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:8]
    folder = out if out is not None else Path("runs") / "reproduce" / f"{study.name}-{scale}-{digest}"
    return ResultStore(folder, common)


def _train(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], store: ResultStore, workers: Workers
) -> None:
    missing = len(missing_tasks(study, entered, seeds, store))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as progress:
        task = progress.add_task(f"{study.name}: planning and training", total=missing)
        for result in reproduce(study, entered, seeds, store, workers=workers):
            label = f"{study.name}: {result.entrant['label']}, seed {result.seed}"
            progress.update(task, advance=1, description=label)


def _report(
    study: Study, scale: str, experiment: str, entered: Entered, seeds: Sequence[int], store: ResultStore
) -> dict[str, Any]:
    rows = {variant: {row.label: store.of(row, seeds) for row in entrants} for variant, entrants in entered.items()}
    return {
        "study": study.name,
        "description": study.description,
        "scale": scale,
        "experiment": experiment,
        "settings": study.settings.to_json(),
        "balanced": study.balanced,
        "scaling": store.scaling,
        "seeds": list(seeds),
        "summary": {variant: views.summarize(each) for variant, each in rows.items()},
        "differences": {variant: views.differences(each) for variant, each in rows.items()},
        "curves": {variant: views.curves(each) for variant, each in rows.items()},
        "classes": {variant: views.class_curves(each) for variant, each in rows.items()},
        "change_against_budget": {variant: views.change_against_budget(each) for variant, each in rows.items()},
        "pareto": {variant: views.pareto(each) for variant, each in rows.items()},
        "run_time": {variant: views.run_time(each) for variant, each in rows.items()},
    }


def _print(study: Study, experiment: str, report: Mapping[str, Any]) -> None:
    shown, settings = results(), study.settings
    shown.print(f"[bold]{study.name}: {study.description}[/]")
    asked = EXPERIMENTS[experiment]
    shown.print(
        f"{asked.question} ({asked.figure}); {settings.steps} steps, expected batch "
        f"{settings.expected_batch_size:g}, learning rate {settings.learning_rate:g}, {len(report['seeds'])} paired "
        f"seeds; percent right on held-out data{', balanced over classes' if study.balanced else ''}\n"
    )
    shown.print(_table(report))
    for line in _sentences(report):
        shown.print(line)
    for line in _condition_lines(report.get("condition", {})):
        shown.print(line)
    if "not accounted" in report["scaling"]:
        shown.print(f"\n[yellow]Outside the guarantee:[/] the scaling of features is {report['scaling']}.")


def _table(report: Mapping[str, Any]) -> Table:
    table = plain_table("plan", "method", right=("overall", "worst owner", "strictest", "imbalance", "p (worst)"))
    for variant, summary in report["summary"].items():
        found = report["differences"][variant]
        for index, (label, row) in enumerate(summary.items()):
            difference = found.get(f"{label} - {views.BASELINE}", {}).get("end", {})
            cells = [_percent(row[measure]) for measure in ("overall", "worst", "most_private", "imbalance")]
            table.add_row("" if index else variant, label, *cells, _p(difference.get("worst")))
    return table


def _sentences(report: Mapping[str, Any]) -> list[str]:
    lines = []
    for variant, found in report["differences"].items():
        for name, stages in found.items():
            if name != f"ino-sgd - {views.BASELINE}":
                continue
            end = stages["end"]
            lines.append(
                f"{variant}: INO-SGD against IDP-SGD {_points(end['overall'])} overall, {_points(end['worst'])} for "
                f"the worst owner, {_points(end['most_private'])} for the strictest."
            )
    return ["", *lines] if lines else []


def _condition_lines(conditions: Mapping[str, Any]) -> list[str]:
    """One sentence per row: the ratio of signals, how long the condition was unmet, and the initial drop."""
    lines = []
    for variant, rows in conditions.items():
        for label, found in rows.items():
            unmet = sum(point["left_side"] <= 0 for point in found["points"]) / len(found["points"])
            drop = found["initial_drop"]
            dropped = "no initial drop" if drop is None else f"initial drop from step {drop['start']} to {drop['turn']}"
            lines.append(
                f"{variant}, {label}: {found['other']} has {found['points'][0]['signal_ratio']:.1f} times the signal "
                f"of {found['owner']}; the condition of Thm. 3.1 is unmet at {unmet:.0%} of the points; {dropped}."
            )
    return ["", *lines] if lines else []


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}"


def _points(difference: Mapping[str, Any]) -> str:
    p = "" if difference["p"] is None else f" (p = {difference['p']:.2g})"
    return f"{100 * difference['mean']:+.1f} points{p}"


def _p(difference: Mapping[str, Any] | None) -> str:
    if difference is None or difference["p"] is None or not math.isfinite(difference["p"]):
        return ""
    return f"{difference['p']:.2g}"
