"""``inosgd check``: what would stop or weaken a training, before it starts."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.options import with_groups
from inosgd.cli.reports import reading_shown_by
from inosgd.cli.studies import MethodOptions, StudyArgument
from inosgd.method import AUTO
from inosgd.study.auto import in_words
from inosgd.study.readiness import weaknesses
from inosgd.study.running import Prepared, prepare


@with_groups
def check_command(
    study: StudyArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Plain values for machines.")] = False,
    *,
    options: MethodOptions,
) -> None:
    """Say what would stop or weaken a training, in seconds and without training.

    Reads all data, plans, builds the model and tries it on a few examples. What would stop a training is an error, with
    all problems of a table at once. What would weaken it is listed. Nothing is written, and no budget is spent.
    """
    with messages().status("reading, planning and building") as status:
        prepared = prepare(
            options.find(study, reading_shown_by(status), method=options.method, variant=options.variant)
        )
    if as_json:
        typer.echo(json.dumps(_described(prepared)))
    else:
        _print(prepared)


def _described(prepared: Prepared) -> dict[str, Any]:
    plan, data = prepared.trainer.plan, prepared.data
    return {
        "study": prepared.study.name,
        "examples": int(plan.table.sizes.sum()),
        "held_out": 0 if data.held_out is None else len(data.held_out),
        "owners": len(plan.table),
        "steps": plan.steps,
        "variant": plan.variant,
        "warnings": prepared.warnings,
        "findings": [finding.to_json() for finding in weaknesses(prepared)],
    }


def _print(prepared: Prepared) -> None:
    described, out = _described(prepared), results()
    weaker = len(prepared.warnings) + len(described["findings"])
    verdict = f"{weaker} {'thing weakens' if weaker == 1 else 'things weaken'} it" if weaker else "nothing weakens it"
    out.print(f"[bold]Nothing would stop this training; {verdict}.[/]\n")
    held_out = "held out" if prepared.trainer.units is None else "held-out examples"
    table = plain_table("study", right=(prepared.trainer.plan.table.units, held_out, "owners", "steps"))
    keys = ("examples", "held_out", "owners", "steps")
    table.add_row(escape(prepared.study.name), *(f"{described[key]:,}" for key in keys))
    out.print(table)
    if prepared.study.config.method.name == AUTO.name:
        out.print(f"{escape(in_words(prepared.study.config))}.\n", soft_wrap=True)
    for warning in prepared.warnings:
        out.print(f"[bold]{escape(warning)}[/]", soft_wrap=True)
    for finding in described["findings"]:
        out.print(f"- {escape(finding['text'])}", soft_wrap=True)
