"""The commands, by name: each is imported when it is run, so that none waits for what only others need."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Listed:
    """A command as the list of commands shows it.

    Attributes:
        home: The module of ``inosgd.cli``, and the function or the group of commands in it.
        help: The first sentence of its own help.
    """

    home: str
    help: str

    def load(self, name: str) -> Any:
        """Import the command and everything that it needs."""
        module, _, attribute = self.home.partition(":")
        found = getattr(import_module(f"inosgd.cli.{module}"), attribute)
        holder = typer.Typer()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
        command = typer.main.get_group(holder).commands[name]
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help = _unwrapped(each.help or "")
        return command


def _unwrapped(text: str) -> str:
    """Paragraphs without the line breaks of the source, which would survive in a terminal of another width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


COMMANDS = {
    "new": Listed(
        "new:new_command", "Write a commented study file that runs as it is, with a small table to run it on."
    ),
    "check": Listed(
        "check:check_command", "Say what would stop or weaken a training, in seconds and without training."
    ),
    "train": Listed("train:train_command", "Train a model on your own data under individual budgets."),
    "tune": Listed(
        "tune:tune_command", "Choose learning rate, clipping threshold, tail and plan of a study by trying them."
    ),
    "resume": Listed(
        "resume:resume_command",
        "Go on with a run from its last checkpoint, to the same model as if it had never stopped.",
    ),
    "predict": Listed(
        "predict:predict_command",
        "Apply a trained model to new rows, images or arrays: what the model predicts of each.",
    ),
    "ledger": Listed("ledger:ledger_command", "Show what every owner has spent and has left."),
    "budgets": Listed(
        "budgets:budgets_command",
        "Change budgets during a run: show whether training continues, rolls back or stops, and with --yes do it.",
    ),
    "publish": Listed("publish:publish_command", "Mark a checkpoint as published, before it is given away."),
    "watch": Listed(
        "watch:watch_command",
        "Watch a training: held-out loss and budget of every owner, and the time left. It ends with the training.",
    ),
    "report": Listed(
        "report:report_command",
        "Make one page of one or several runs: who gained, who paid, how close each budget came.",
    ),
    "compare": Listed(
        "compare:compare_command",
        "Train one model under the same individual budgets with several methods, and show the score of every owner.",
    ),
    "account": Listed("account:app", "Add up all trainings on the same units in an account book, owner by owner."),
    "serve": Listed(
        "serve:serve_command",
        "Show an account book in the browser: owners see and change their budgets, the model owner sees all of it.",
    ),
    "plan": Listed("plan:plan_command", "Plan sampling rates, clipping thresholds and noise for individual budgets."),
    "reproduce": Listed(
        "reproduce:reproduce_command",
        "Train a study of the paper by every method and plan asked for, and show the score of each owner.",
    ),
    "evidence": Listed(
        "evidence:evidence_command",
        "Train every study of the evidence (hours; it continues where it stopped), and write verdicts and tables.",
    ),
    "embed": Listed(
        "embed:embed_command",
        "Turn images into features, labels and class names, one .npz file that `inosgd` trains on.",
    ),
    "audit": Listed(
        "audit:app", "Attack a training: lower bounds on what every owner loses, beside what is accounted for."
    ),
    "bench": Listed("bench:app", "Measure what planning and private steps cost."),
}
"""In the order in which they are shown."""


class LoadedWhenRun(TyperGroup):
    """A group whose members are placeholders with a name and a help, until one of them is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments begin with, imported, and the rest of the arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, COMMANDS[name].load(name) if name in COMMANDS else command, rest


def register(app: typer.Typer) -> None:
    """List all commands in ``app``, whose class is `LoadedWhenRun`."""
    for name, listed in COMMANDS.items():
        app.command(name, help=listed.help)(_placeholder)


def _placeholder() -> None:
    raise RuntimeError("a placeholder was run; the app's class must be LoadedWhenRun")
