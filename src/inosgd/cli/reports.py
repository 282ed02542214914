"""What trainings report, on screen and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from inosgd.analysis.answers import Answer, untold
from inosgd.cli.console import plain_table, results
from inosgd.runs.folder import RunFolder
from inosgd.shown import BUDGET, SPENT, spending_shown
from inosgd.study.running import Outcome, Prepared
from inosgd.study.sources import Progress, unused_columns
from inosgd.study.yardstick import NOT_PRIVATE
from inosgd.units import shared_units

FILES_BETWEEN_SIGNS = 100

MOST_OWNERS = 40
"""With more owners than this, a table for people shows the strictest ones; JSON has them all."""


def reading_shown_by(status: Status) -> Progress:
    """How far the reading of many files has come, in the words of ``status``."""

    def shown(paths: Sequence[Path], description: str) -> Iterator[Path]:
        for done, path in enumerate(paths):
            if done % FILES_BETWEEN_SIGNS == 0:
                status.update(f"{description}: {done} of {len(paths)}")
            yield path

    return shown


def show_outcome(
    run: RunFolder,
    prepared: Prepared,
    outcome: Outcome,
    page: Path | None,
    *,
    as_json: bool = False,
    yardstick: float | None = None,
) -> None:
    """Tell what came of a training, and where its report is."""
    if as_json:
        found = training_report(run, prepared, outcome, yardstick)
        typer.echo(json.dumps({**found, "report": None if page is None else str(page)}))
        return
    print_report(run, prepared, outcome, page, yardstick)


def training_report(
    run: RunFolder, prepared: Prepared, outcome: Outcome, yardstick: float | None = None
) -> dict[str, Any]:
    """Plain values: what every owner allows, has spent and got, and where everything is."""
    evaluation = outcome.evaluation
    scores = {} if evaluation is None else {name: each.score for name, each in evaluation.owners.items()}
    return {
        "run": str(run.path),
        "model": str(outcome.model),
        "steps": outcome.steps,
        "unit": outcome.table.unit,
        "shared_units": shared_units(outcome.table),
        "owners": {
            name: {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "examples": size,
                "spent": float(outcome.spent[row]),
                "held_out_score": scores.get(name),
            }
            for row, (name, budget, size) in enumerate(outcome.table)
        },
        "held_out": None if evaluation is None else evaluation.to_json(),
        "unaccounted_scaling": prepared.data.fitted,
        "unused_columns": _unused(prepared),
        "randomness": "secure" if prepared.seed is None else "seeded",
        "warnings": prepared.warnings,
        "answers": [answer.to_json() for answer in outcome.answers(yardstick)],
        "findings": [finding.to_json() for finding in outcome.findings],
        "suggestions": [each.to_json() for each in outcome.suggested(yardstick)],
        "yardstick_not_private": yardstick,
    }


def _unused(prepared: Prepared) -> list[str]:
    file = prepared.study.file
    return [] if file is None else unused_columns(file)


def print_answers(answered: Sequence[Answer]) -> None:
    """What is asked first, a line for each; in yellow what is not as it should be."""
    for each in answered:
        colour = "bold yellow" if each.good is False else "bold"
        results().print(f"[{colour}]{escape(each.question)}[/] {escape(each.text)}")


def print_report(
    run: RunFolder, prepared: Prepared, outcome: Outcome, page: Path | None = None, yardstick: float | None = None
) -> None:
    """The same for people, answers and findings first."""
    shown, evaluation, unit = results(), outcome.evaluation, outcome.table.unit
    print_answers(outcome.answers(yardstick))
    for finding in untold(outcome.findings, outcome.suggested(yardstick)):
        shown.print(f"[bold yellow]{escape(finding.text)}[/]")
    if yardstick is not None:
        shown.print(f"[bold yellow]{escape(NOT_PRIVATE)}[/]")
    shown.print(f"\n[bold]Results by owner[/] after {outcome.steps} steps\n")
    shown.print(_owner_table(outcome))
    hidden = len(outcome.table) - MOST_OWNERS
    if hidden > 0:
        shown.print(f"and {hidden} more owners, in --json")
    if evaluation is not None and prepared.data.held_out is not None:
        shown.print(
            f"\nOn {len(prepared.data.held_out)} held-out examples: {evaluation.scored_by} "
            f"{evaluation.scoring.shown(evaluation.overall)}; for an owner, on those of its kind. Held-out examples "
            "are not protected."
        )
        if evaluation.last_iterate is not None:
            last, shown_as = evaluation.last_iterate, evaluation.scoring.shown
            shown.print(
                f"The model is an average of iterates ({prepared.study.config.averaging}), as its study says. The last "
                f"iterate: {evaluation.scored_by} {shown_as(last.overall)}, worst owner {shown_as(last.worst)}."
            )
    shown.print(f"spent: the ε of each single {escape(unit)}, rounded up; never above the budget.\n")
    if shared := shared_units(outcome.table):
        shown.print(
            f"{shared} of {int(outcome.table.sizes.sum())} {escape(outcome.table.units)} have several owners, and are "
            "held to the smallest budget among them.\n"
        )
    if unused := _unused(prepared):
        shown.print(f"Columns that are neither used nor listed in data.ignore: {escape(', '.join(unused))}\n")
    for warning in prepared.warnings:
        shown.print(f"[bold yellow]{escape(warning)}[/]\n")
    here = escape(str(_near(run.path)))
    shown.print(f"Model:  {escape(str(_near(outcome.model)))}  (model-card.md says what it promises)", soft_wrap=True)
    if page is not None:
        shown.print(f"Report: {escape(str(_near(page)))}  (opens in a browser, needs no network)", soft_wrap=True)
    shown.print(f"Ledger: inosgd ledger {here} --verify", soft_wrap=True)
    shown.print(f"Before the model, or a figure computed from it, is published: inosgd publish {here}", soft_wrap=True)


def _owner_table(outcome: Outcome) -> Table:
    evaluation = outcome.evaluation
    score = "score" if evaluation is None else evaluation.scored_by
    table = plain_table("owner", right=(outcome.table.units, BUDGET, "δ", SPENT, score, "held out"))
    rows = sorted(range(len(outcome.table)), key=lambda row: int(outcome.table.privacy_ranks[row]))
    chosen = range(len(outcome.table)) if len(outcome.table) <= MOST_OWNERS else rows[:MOST_OWNERS]
    for row in chosen:
        name, budget = outcome.table.names[row], outcome.table.budget(row)
        quality = None if evaluation is None else evaluation.owners.get(name)
        shown = spending_shown(budget.epsilon, budget.delta, float(outcome.spent[row]))
        judged = ("-", "-")
        if evaluation is not None and quality is not None:
            judged = (evaluation.scoring.shown(quality.score), f"{quality.examples:,}")
        sizes = str(outcome.table.sizes[row])
        table.add_row(escape(name), sizes, shown.budget, shown.delta, shown.spent, *judged)
    return table


def _near(path: Path) -> Path:
    """The path as seen from here, where it is below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
