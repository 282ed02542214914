"""``inosgd compare``: the same model, the same budgets, several methods."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from inosgd import _validate
from inosgd.analysis.answers import Answer
from inosgd.analysis.differences import FEWEST_PAIRS
from inosgd.analysis.score import score_named
from inosgd.cli.console import compact, messages, plain_table, progress_bar, results, rounded_up
from inosgd.cli.options import ReportOptions, with_groups
from inosgd.cli.report import report_at_end
from inosgd.cli.reports import print_answers
from inosgd.cli.studies import StudyArgument, StudyOptions
from inosgd.cli.words import words
from inosgd.cli.workers import WorkerOptions
from inosgd.compare import views
from inosgd.compare.comparison import NOT_FOR_PUBLICATION, compare, missing_tasks, open_store
from inosgd.compare.entrant import Entrant, entrants
from inosgd.compare.groups import group_epsilons
from inosgd.compare.results import ResultStore
from inosgd.errors import InvalidArgumentError
from inosgd.method import METHODS, method_named
from inosgd.parallel.workers import Workers
from inosgd.plan_config import VARIANTS
from inosgd.report.comparisons import material_of
from inosgd.report.measuring import measure_and_keep
from inosgd.shown import BUDGET, SPENT, learning_rate_shown
from inosgd.study.account import note_look
from inosgd.study.study import Study

Variants = Annotated[
    str | None, typer.Option(help=f"How idp-sgd and ino-sgd plan, separated by commas: {', '.join(VARIANTS)}.")
]
Seeds = Annotated[int, typer.Option(help="How many paired seeds.")]
Condition = Annotated[
    bool,
    typer.Option("--condition", help="Also measure weights, and whether all losses can fall (Thm. 3.1)."),
]


@with_groups
def compare_command(
    study: StudyArgument = "digits",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    variants: Variants = None,
    seeds: Seeds = 5,
    condition: Condition = False,
    *,
    options: StudyOptions,
    workers: WorkerOptions,
    output: ReportOptions,
) -> None:
    """Train one model under the same individual budgets with several methods, and show the score of every owner.

    For the eyes of the holder of the data: nothing of a comparison is private. It continues where it stopped.
    """
    chosen = options.find(study)
    note_look(chosen, "compare")
    names = words(methods)
    if not names:
        raise InvalidArgumentError(f"methods={methods!r}: name at least one of {', '.join(METHODS)}")
    entered = entrants([method_named(name) for name in names], chosen_variants(chosen, variants))
    show(carry_out(chosen, entered, seeds, workers, output, condition=condition), as_json=output.as_json)


def chosen_variants(study: Study, text: str | None) -> list[str]:
    """The variants that are asked for; by default the study's own, if it treats owners individually."""
    if text is None:
        own = study.config.plan.variant
        return [own if own in ("sample", "scale", "both") else "sample"]
    found = words(text)
    for variant in found or [text]:
        _validate.one_of(VARIANTS, variants=variant)
    return found


def carry_out(
    study: Study,
    entered: Sequence[Entrant],
    seeds: int,
    workers: WorkerOptions,
    output: ReportOptions,
    *,
    condition: bool,
    question: str = "",
) -> dict[str, Any]:
    """Train what is not trained yet; everything that there is to say about it, as plain values."""
    _validate.whole(1, seeds=seeds)
    messages().print(f"[yellow]{NOT_FOR_PUBLICATION}[/]")
    with messages().status("reading"):
        study.split(0).judged_by  # noqa: B018 - missing or corrupt data end here, before anything is written
        store = open_store(study, output.out)
    with workers.connected(continues=True) as connected:
        _train(study, entered, range(seeds), store, connected)
        if condition:
            with messages().status("measuring weights, and whether all losses can fall"):
                measure_and_keep(study, entered, 0, store.path.parent)
        found = {**comparison_report(study, entered, range(seeds), store), "question": question}
        (store.path.parent / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        written = report_at_end(store.path.parent) if output.report else None
    return {**found, "folder": str(store.path.parent), "report": None if written is None else str(written)}


def _train(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], store: ResultStore, workers: Workers
) -> None:
    missing = len(missing_tasks(study, entered, seeds, store))
    with progress_bar() as progress:
        task = progress.add_task(f"{study.name}: planning and training", total=missing)
        for result in compare(study, entered, seeds, store, workers=workers):
            label = f"{study.name}: {result.entrant['label']}, seed {result.seed}"
            progress.update(task, advance=1, description=label)


def comparison_report(
    study: Study, entered: Sequence[Entrant], seeds: Sequence[int], store: ResultStore
) -> dict[str, Any]:
    """What came of the entrants that were asked for, as plain values."""
    rows = {row.label: store.of(row, seeds) for row in entered}
    material = material_of(store.common, [result for found in rows.values() for result in found], store.path.parent)
    return {
        "study": study.name,
        "description": study.description,
        "config": study.config.to_json(),
        "unit": material.unit,
        "scored_by": material.score.name,
        "seeds": list(seeds),
        "steps": max(result.steps for found in rows.values() for result in found),
        "verdict": material.verdict,
        "not_for_publication": NOT_FOR_PUBLICATION,
        "unaccounted": list(material.unaccounted),
        "answers": [answer.to_json() for answer in material.answers],
        "findings": [finding.to_json() for finding in material.findings],
        "suggestions": [each.to_json() for each in material.suggestions],
        "summary": views.summarize(rows),
        "group": {label: group_epsilons(found[0], store.common) for label, found in rows.items() if found},
        "differences": views.differences(rows),
        "curves": views.curves(rows),
        "classes": views.class_curves(rows),
        "change_against_budget": views.change_against_budget(rows),
        "pareto": views.pareto(rows),
        "run_time": views.run_time(rows),
        "condition": dict(material.condition),
    }


def show(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a comparison, for machines or for people."""
    if as_json:
        typer.echo(json.dumps(found))
        return
    shown, plan = results(), found["config"]["plan"]
    shown.print(f"[bold]{escape(found['study'])}: {escape(found['description'])}[/]")
    asked = f"{found['question']}; " if found["question"] else ""
    shown.print(escape(found["verdict"]))
    print_answers([Answer.from_json(each) for each in found["answers"]])
    for finding in found["findings"]:
        shown.print(f"[bold yellow]{escape(finding['text'])}[/]")
    rate = learning_rate_shown(found["config"]["learning_rate"], found["config"]["learning_rate_unit"])
    shown.print(
        f"{asked}{found['steps']} steps, learning rate {rate}, {_seeds(found)}, accountant "
        f"{plan['accountant']}; {found['scored_by']} on held-out examples{_beside(found)}\n"
    )
    shown.print(_method_table(found))
    for line in _last_iterate_lines(found):
        shown.print(line)
    shown.print(
        f"\n[bold]Results by owner[/], the ε of each single {escape(found['unit'])}, and that of 10 and of all "
        "together\n"
    )
    shown.print(_owner_table(found))
    for line in _condition_lines(found["condition"]):
        shown.print(line)
    for line in found["unaccounted"]:
        shown.print(f"\n[yellow]{escape(line)}[/]")
    shown.print(f"\nResults: {escape(found['folder'])}", soft_wrap=True)
    if found["report"] is not None:
        shown.print(f"Report: {escape(found['report'])}", soft_wrap=True)


def _method_table(found: Mapping[str, Any]) -> Table:
    columns = {"overall": "overall", "worst": "worst owner", "most_private": "strictest"}
    tested = len(found["seeds"]) >= FEWEST_PAIRS and views.BASELINE in found["summary"]
    table = plain_table(
        "method", "plan", right=(*columns.values(), *([f"p (worst, against {views.BASELINE})"] if tested else []))
    )
    for label, row in found["summary"].items():
        difference = found["differences"].get(f"{label} - {views.BASELINE}", {}).get("end", {})
        cells = [_scored(found, row[measure]) for measure in columns]
        table.add_row(escape(label), row["variant"], *cells, *([_p(difference.get("worst"))] if tested else []))
    return table


def _owner_table(found: Mapping[str, Any]) -> Table:
    sizes = ("10", "all")
    table = plain_table("method", "owner", right=(found["scored_by"], "loss", SPENT, BUDGET, "ε of 10", "ε of all"))
    for label, row in found["summary"].items():
        groups = found["group"][label]
        for index, (name, owner) in enumerate(row["owners"].items()):
            spent = "" if owner["spent"] is None else rounded_up(owner["spent"], within=owner["epsilon"])
            together = [compact(groups[name][size]) if size in groups.get(name, {}) else "" for size in sizes]
            cells = [_scored(found, owner), _number(found, owner["loss"]), spent, f"{owner['epsilon']:g}", *together]
            table.add_row("" if index else escape(label), escape(name), *cells)
    return table


def _last_iterate_lines(found: Mapping[str, Any]) -> list[str]:
    """The last iterates beside the averages that are compared; none if those are the last iterates."""
    rows = [(label, row["last_iterate"]) for label, row in found["summary"].items() if row["last_iterate"] is not None]
    told = [f"{escape(label)} {_scored(found, row['overall'])}, {_scored(found, row['worst'])}" for label, row in rows]
    return [f"\nAverages of iterates. The last iterates, overall and worst owner: {'; '.join(told)}"] if told else []


def _condition_lines(conditions: Mapping[str, Any]) -> list[str]:
    """One sentence per row: the ratio of signals, how long the condition was unmet, and the initial drop."""
    lines = []
    for label, found in conditions.items():
        unmet = sum(point["left_side"] <= 0 for point in found["points"]) / len(found["points"])
        drop = found["initial_drop"]
        dropped = "no initial drop" if drop is None else f"initial drop from step {drop['start']} to {drop['turn']}"
        lines.append(
            f"{label}: {found['other']} has {found['points'][0]['signal_ratio']:.1f} times the signal of "
            f"{found['owner']}; at {unmet:.0%} of the points the loss of {found['owner']} may rise; {dropped}."
        )
    return ["", *lines] if lines else []


def _seeds(found: Mapping[str, Any]) -> str:
    return "1 seed" if len(found["seeds"]) == 1 else f"{len(found['seeds'])} paired seeds"


def _beside(found: Mapping[str, Any]) -> str:
    """What stands behind a mean: nothing where seeds are too few for a standard deviation."""
    if len(found["seeds"]) >= FEWEST_PAIRS:
        return ", mean ± standard deviation"
    return f"; fewer than {FEWEST_PAIRS} seeds say nothing about how much seeds differ"


def _scored(found: Mapping[str, Any], value: Mapping[str, float]) -> str:
    score = score_named(found["scored_by"])
    spread = f" {score.shown_spread(value['sd'])}" if len(found["seeds"]) >= FEWEST_PAIRS else ""
    return f"{score.shown(value['mean'])}{spread}"


def _number(found: Mapping[str, Any], value: Mapping[str, float]) -> str:
    return f"{value['mean']:.2f}" + (f" ± {value['sd']:.2f}" if len(found["seeds"]) >= FEWEST_PAIRS else "")


def _p(difference: Mapping[str, Any] | None) -> str:
    if difference is None or difference["p"] is None or not math.isfinite(difference["p"]):
        return ""
    return f"{difference['p']:.2g}"
