"""``inosgd bench``: what planning and private steps cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from inosgd.bench import distributed as bench_of_processes
from inosgd.bench import plan as bench_of_plans
from inosgd.bench import step as bench_of_steps
from inosgd.bench.methods import METHODS
from inosgd.bench.models import ALL, MODELS
from inosgd.cli.console import messages
from inosgd.cli.options import AsJson
from inosgd.cli.words import words_if_given

app = typer.Typer(help="Measure what planning and private steps cost.", no_args_is_help=True)

Models = Annotated[str | None, typer.Option(help=f"Some of: {', '.join(ALL)}; the first {len(MODELS)} if not given.")]
Markdown = Annotated[Path | None, typer.Option("--out", help="Write the table to this file, replacing it.")]


@app.command("plan")
def plan_bench(as_json: AsJson = False, out: Markdown = None) -> None:
    """Seconds of CPU to plan for 10 owners, 50,000 distinct budgets and a million owners."""
    timings = []
    with messages().status("planning") as status:
        for case in bench_of_plans.CASES:
            status.update(f"planning {case.variant} for {case.name} by {case.accountant}")
            timings += bench_of_plans.bench_plan([case])
    _show(bench_of_plans.to_json(timings), bench_of_plans.format_markdown(timings), as_json, out)


@app.command("step")
def step_bench(
    models: Models = None,
    methods: Annotated[str | None, typer.Option(help=f"Some of: {', '.join(METHODS)}; all if not given.")] = None,
    repeats: Annotated[int, typer.Option(help="Interleaved rounds of every model.")] = 7,
    as_json: AsJson = False,
    out: Markdown = None,
) -> None:
    """The cost of a private step, as ratios to the plain step of the same model in the same run."""
    with messages().status("measuring steps; this takes minutes"):
        chosen = words_if_given(models)
        result = bench_of_steps.bench_step(
            chosen,
            words_if_given(methods),
            repeats,
            ino_over_idp=chosen is None or "cifar" in chosen,
            notice=lambda text: messages().print(escape(text), soft_wrap=True),
        )
    _show(result, bench_of_steps.format_markdown(result), as_json, out)


@app.command("distributed")
def distributed_bench(
    steps: Annotated[int, typer.Option(help="Steps of every network on every number of processes.")] = 7,
    as_json: AsJson = False,
    out: Markdown = None,
) -> None:
    """A step on 1, 2 and 4 processes, its share of communication, and a projection to many machines."""
    with messages().status("measuring steps on several processes; this takes a minute or two"):
        result = bench_of_processes.bench_distributed(steps=steps)
    _show(result, bench_of_processes.format_markdown(result), as_json, out)


def _show(value: Any, markdown: str, as_json: bool, out: Path | None) -> None:
    if out is not None:
        out.write_text(markdown + "\n", encoding="utf-8")
    typer.echo(json.dumps(value) if as_json else markdown)
