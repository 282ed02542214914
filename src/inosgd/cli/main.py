"""The program: its commands, and how errors reach the user."""

from __future__ import annotations

import signal
import sys

import typer
from rich.markup import escape

import inosgd
from inosgd.cli import (
    audit,
    bench,
    budgets,
    compare,
    embed,
    evidence,
    ledger,
    new,
    plan,
    predict,
    release,
    report,
    reproduce,
    resume,
    train,
    watch,
)
from inosgd.cli.console import messages
from inosgd.errors import InosgdError

app = typer.Typer(
    name="inosgd",
    help="Train PyTorch models under individual privacy budgets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("new")(new.new_command)
app.command("train")(train.train_command)
app.command("resume")(resume.resume_command)
app.command("predict")(predict.predict_command)
app.command("ledger")(ledger.ledger_command)
app.command("budgets")(budgets.budgets_command)
app.command("release")(release.release_command)
app.command("watch")(watch.watch_command)
app.command("report")(report.report_command)
app.command("compare")(compare.compare_command)
app.command("plan")(plan.plan_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("evidence")(evidence.evidence_command)
app.command("embed")(embed.embed_command)
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(inosgd.__version__)
        raise typer.Exit


@app.callback()
def _program(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Train PyTorch models under individual privacy budgets."""


def main() -> None:
    """Run the program: exit code 0 for success, 2 for a request that cannot be met, 130 or 143 when interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that unfinished folders are removed
    try:
        app()
    except InosgdError as error:
        messages().print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        messages().print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        messages().print("interrupted; nothing was kept")
        sys.exit(130)
