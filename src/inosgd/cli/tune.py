"""``inosgd tune``: choose settings of a study, on public data for nothing, or on private data at a known price."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.markup import escape

from inosgd.accounting.selection import DRAWS, trials_named
from inosgd.analysis.score import score_named
from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.folders import run_folder
from inosgd.cli.options import OutputOptions, converted, pairs, with_groups
from inosgd.cli.studies import StudyArgument, StudyOptions
from inosgd.cli.words import words
from inosgd.cli.workers import WorkerOptions
from inosgd.errors import InvalidArgumentError
from inosgd.files import write_private
from inosgd.models.saved import save_model
from inosgd.parallel.workers import Workers
from inosgd.randomness import SecureSource
from inosgd.shown import rounded_up
from inosgd.study.study import Study
from inosgd.tuning.candidates import KEYS, Space
from inosgd.tuning.pricing import Priced, price_tuning
from inosgd.tuning.private import Chosen, described, price_list, tune_on_private_data
from inosgd.tuning.public import WHY_FREE, Scored, tune_on_public_data
from inosgd.tuning.trials import RANKINGS, trial_data

MOST_OWNERS = 40
"""With more owners than this, the price is shown for the strictest ones; tuning.json has them all."""


@with_groups
def tune_command(
    study: StudyArgument,
    public: Annotated[bool, typer.Option("--public", help="Every example of STUDY is public: free.")] = False,
    private: Annotated[
        bool, typer.Option("--private", help="The examples are private: owners pay a price that is shown first.")
    ] = False,
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUES",
            help=f"Values to choose from, separated by commas; repeat it for several keys of {', '.join(KEYS)}.",
        ),
    ] = None,
    by: Annotated[str, typer.Option(help=f"What decides, on held-out examples: {', '.join(RANKINGS)}.")] = "overall",
    trials: Annotated[float, typer.Option(help="With --private: how many trainings on average.")] = 8.0,
    draw: Annotated[
        str, typer.Option(help=f"With --private: how their number is drawn: {', '.join(DRAWS)}.")
    ] = "poisson",
    seeds: Annotated[int, typer.Option(help="With --public: trainings of each candidate.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="With --private: accept the price.")] = False,
    *,
    options: StudyOptions,
    workers: WorkerOptions,
    output: OutputOptions,
) -> None:
    """Choose learning rate, clipping threshold, tail and plan of a study by trying them.

    Each model that is trained on private examples and influences the choice costs privacy, whatever it is judged by.
    So say which it is: --public if all examples of the study are (then settings are the result, and nothing is spent),
    or --private (then the best model is the result, and all that was tried to find it fits into the owners' budgets).
    """
    _check_way(study, public=public, private=private)
    space = Space(_values(tried))
    chosen_study = options.find(study)
    torch.set_num_threads(1)
    if public:
        with run_folder(output.out, "") if output.out is not None else nullcontext((None, None)) as (working, _):
            with workers.connected(continues=False) as connected:
                ranked = _publicly(chosen_study, space, by, seeds, connected)
            found = _keep_public(chosen_study, ranked, by, working)
        _show_public(ranked, found, as_json=output.as_json)
        return
    drawn = trials_named(draw, trials)
    with messages().status("reading, and planning trials that fit into every budget"):
        priced = price_tuning(chosen_study, space, drawn)
    _agree(priced, by, yes=yes)
    with run_folder(output.out, f"tune-{chosen_study.name}") as (working, final):
        with workers.connected(continues=False) as connected, messages().status("training"):
            chosen = tune_on_private_data(priced, SecureSource(), by=by, workers=connected)
        report = _keep(priced, chosen, by, working, final)
    _show_private(report, as_json=output.as_json)


# Both ways ---------------------------------------------------------------------------------------------------------


def _check_way(study: str, *, public: bool, private: bool) -> None:
    if public == private:
        raise InvalidArgumentError(
            f"say whose examples {study} holds: --public if every one of them is public, so that tuning costs "
            "no owner anything; --private if not, and their owners pay for the tuning out of their budgets. Judging by "
            "public held-out examples does not make trainings on private ones free"
        )


def _values(tried: Sequence[str] | None) -> dict[str, tuple[Any, ...]]:
    return {
        key: tuple(converted("try", key, word, KEYS[key]) for word in words(text))
        for key, text in pairs("try", tried, KEYS).items()
    }


# On public data ----------------------------------------------------------------------------------------------------


def _publicly(study: Study, space: Space, by: str, seeds: int, workers: Workers) -> list[Scored]:
    ranked: list[Scored] = []
    with messages().status("training") as status:
        for ranked in tune_on_public_data(study, space, by=by, seeds=seeds, workers=workers):
            status.update(f"best so far: {ranked[0].mean:.3f} by {ranked[0].candidate.label}")
    return ranked


def _keep_public(study: Study, ranked: list[Scored], by: str, working: Path | None) -> dict[str, Any]:
    """The best settings and the whole ranking; written where a folder was named."""
    best = ranked[0].candidate.training_text(study.file)
    rows = [{"candidate": each.candidate.label, "mean": each.mean, "scores": list(each.scores)} for each in ranked]
    score = trial_data(study).task.score
    found = {"by": by, "scored_by": score, "ranking": rows, "training": best, "spent": 0.0, "why_free": WHY_FREE}
    if working is not None:
        write_private(working / "training.toml", best.encode())
        write_private(working / "tuning.json", (json.dumps(found, indent=1) + "\n").encode())
    return found


def _show_public(ranked: list[Scored], found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    score = score_named(found["scored_by"])
    table = plain_table("settings", right=(found["by"], "trainings"))
    for each in ranked:
        table.add_row(escape(each.candidate.label), score.shown(each.mean), str(len(each.scores)))
    shown = results()
    shown.print(table)
    shown.print(f"\nBy {score.name} on held-out examples. The best settings, to be put into a study file:\n")
    typer.echo(found["training"])
    shown.print(WHY_FREE)


# On private data ---------------------------------------------------------------------------------------------------


def _agree(priced: Priced, by: str, *, yes: bool) -> None:
    """Show the price for every owner, and go on only with consent."""
    shown = messages()
    drawn = priced.trials.to_json()
    shown.print(
        f"\n[bold]What tuning costs[/]: the best of a secret random number of trainings ({drawn['family']}, "
        f"{drawn['mean']:g} on average) over {len(priced.candidates)} candidates\n"
    )
    table = plain_table("owner", right=("allows ε", "one trial", "the tuning", "δ"))
    many = len(priced.table) > MOST_OWNERS
    rows = np.argsort(priced.table.privacy_ranks)[:MOST_OWNERS] if many else np.arange(len(priced.table))
    for row in rows.tolist():
        name, budget = priced.table.names[row], priced.table.budget(row)
        one, whole = float(priced.one_trial[row]), float(priced.tuning[row])
        cells = (rounded_up(one), rounded_up(whole, within=budget.epsilon), f"{budget.delta:g}")
        table.add_row(escape(name), f"{budget.epsilon:g}", *cells)
    shown.print(table)
    if len(priced.table) > MOST_OWNERS:
        shown.print(f"and {len(priced.table) - MOST_OWNERS} more owners")
    shown.print(
        f"\nEvery trial is planned for so much less that the tuning fits. Held-out examples decide ({by}) and are not "
        "protected. Only the best model may be shown: how many trainings there were, and how long they took, must "
        "not be published. Training again with the chosen settings would cost as much as any training.\n"
    )
    if not yes and not (sys.stdin.isatty() and typer.confirm("Spend this?", err=True)):
        raise InvalidArgumentError("nothing was trained and nothing spent: agree to the price with --yes")


def _keep(priced: Priced, chosen: Chosen | None, by: str, working: Path, final: Path) -> dict[str, Any]:
    """Write the model, its plan and ledger and the account of the tuning; nothing of other trials exists any more."""
    report: dict[str, Any] = {"by": by, **price_list(priced), "chosen": None, "model": None, "folder": str(final)}
    if chosen is not None:
        model, description = described(priced, chosen)
        save_model(working / "model", model, description)
        write_private(working / "training.toml", chosen.candidate.training_text(priced.study.file).encode())
        write_private(working / "trial-plan.json", chosen.plan.to_json().encode())
        write_private(working / "trial-ledger.jsonl", chosen.trial.ledger.encode())
        evaluation = chosen.trial.evaluation
        report |= {"chosen": chosen.candidate.label, "model": str(final / "model"), "held_out": evaluation.to_json()}
    write_private(working / "tuning.json", (json.dumps(report, indent=1) + "\n").encode())
    return report


def _show_private(report: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report))
        return
    shown = results()
    if report["chosen"] is None:
        shown.print("The draw was that there is no trial, so there is no model. The price stands.")
    else:
        judged = report["held_out"]
        score = score_named(judged["scored_by"])
        overall = f"{score.name} {score.shown(judged['overall'])} on held-out examples"
        shown.print(
            f"Chosen: [bold]{escape(report['chosen'])}[/], {overall}\n"
            f"Model:  {escape(report['model'])}  (model-card.md says what it promises)",
            soft_wrap=True,
        )
    shown.print(f"Account of the tuning: {escape(report['folder'])}/tuning.json", soft_wrap=True)
