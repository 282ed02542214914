"""``inosgd budgets``: owners change their budgets while a model is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.options import AllowLargeDeltas, AsJson
from inosgd.cli.studies import study_of_run
from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.ledger.ledger import Ledger
from inosgd.owners import Budget, OwnerTable
from inosgd.plan_config import PlanConfig
from inosgd.runs.folder import RunFolder
from inosgd.runs.progression import Changes, Proposal, carry_out, propose
from inosgd.shown import rounded_up
from inosgd.study.account import rooms_of_run
from inosgd.study.data import joined_data
from inosgd.study.joining import joined_file
from inosgd.study.running import forget_model
from inosgd.study.study import Study


def budgets_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    changed: Annotated[list[str] | None, typer.Option("--set", help="OWNER=EPSILON, as often as needed.")] = None,
    added: Annotated[list[str] | None, typer.Option("--add", help="OWNER=EPSILON of an owner who joins.")] = None,
    withdraw: Annotated[list[str] | None, typer.Option("--withdraw", help="An owner whose data leave.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data of the owners who join, like the study's own.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of owners who join; by default the study's.")] = None,
    steps: Annotated[int | None, typer.Option(help="All steps from now on, those taken included.")] = None,
    allow_large_deltas: AllowLargeDeltas = False,
    allow_factory: Annotated[
        str | None, typer.Option(help="The package.module:factory that the study names; it is not imported here.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change budgets during a run: show whether training continues, rolls back or stops, and with --yes do it.

    Raised budgets get a new plan for the remaining steps, with what was spent counted. A lowered one rolls back to the
    last checkpoint that all owners still allow, or stops if the model was published after it. Then go on with
    `inosgd resume`.
    """
    folder = RunFolder.open(run)
    study = study_of_run(folder, allow_factory=allow_factory)
    ledger = folder.read_ledger()
    changes, joining = _changes(study, ledger, changed or [], added or [], withdraw or [], data, delta)
    with messages().status("planning"):
        config, rooms = _config(folder, steps, allow_large_deltas), rooms_of_run(study, folder)
        proposal = propose(folder, changes, config, rooms=rooms)
    if as_json:
        typer.echo(json.dumps(_report(proposal, done=yes)))
    else:
        _print(ledger, proposal)
    if not yes:
        if not as_json:
            results().print("\nNothing has been done. Add --yes to do it.")
        return
    with folder.lock() as locked:
        brought = {} if data is None else joined_file(locked, data, joining)
        if proposal.action == "roll back":
            forget_model(locked)
        carry_out(locked, proposal, brought)
    if not as_json:
        next_step = "" if proposal.action == "stop" else f" Go on with: inosgd resume {escape(str(run))}"
        results().print(f"\nDone.{next_step}", soft_wrap=True)


def _changes(
    study: Study,
    ledger: Ledger,
    changed: list[str],
    added: list[str],
    withdraw: list[str],
    data: Path | None,
    delta: float | None,
) -> tuple[Changes, dict[str, Budget]]:
    """What is asked for, and the budgets of those who join."""
    if not (changed or added or withdraw):
        raise InvalidArgumentError("set: nothing is asked for; give --set OWNER=EPSILON, --add or --withdraw")
    known = {name: budget for name, budget, _ in ledger.wanted}
    asked = _pairs("set", changed, known)
    budgets = {name: Budget(epsilon=epsilon, delta=known[name].delta) for name, epsilon in asked.items()}
    for name in withdraw:
        _check_known("withdraw", name, known)
    joining = _joining(study, known, added, delta)
    if bool(joining) != (data is not None):
        raise InvalidArgumentError(
            "data: owners who join bring data; give --add OWNER=EPSILON and --data FILE together"
        )
    brought = None if data is None else _brought(study, data, joining)
    shared = {} if brought is None else {name: budget for name, budget, _ in brought if name not in joining}
    sizes = {} if brought is None else {name: size for name, _, size in brought}
    return Changes({**budgets, **joining, **shared}, sizes, tuple(withdraw)), joining


def _joining(study: Study, known: dict[str, Budget], added: list[str], delta: float | None) -> dict[str, Budget]:
    own = None if study.file is None else study.file.schema.budgets.delta
    given = own if delta is None else delta
    for name, _ in (_pair("add", text) for text in added):
        if name in known:
            raise InvalidArgumentError(f"add={name!r}: it is an owner of this run already; change it with --set")
        if given is None:
            raise InvalidArgumentError(f"add={name!r}: the study has no common delta; give one with --delta")
    return {
        name: Budget(epsilon=epsilon, delta=given or 0.0) for name, epsilon in (_pair("add", text) for text in added)
    }


def _brought(study: Study, data: Path, joining: dict[str, Budget]) -> OwnerTable:
    """How many units each owner who joins trains on."""
    if study.file is None:
        raise InvalidArgumentError(
            f"data={str(data)!r}: {study.name} does not come from files, so no owner can join it"
        )
    table = joined_data(study.file, study.split(0), data, joining).owners.table
    empty = [name for name, _, size in table if size == 0]
    if empty:
        raise InvalidArgumentError(f"{data}: it holds no {table.unit} of {empty[0]!r}; add some, or leave --add out")
    return table


def _pairs(option: str, texts: list[str], known: dict[str, Budget]) -> dict[str, float]:
    pairs = [_pair(option, text) for text in texts]
    for name, _ in pairs:
        _check_known(option, name, known)
    return dict(pairs)


def _pair(option: str, text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        epsilon = float(value)
    except ValueError:
        epsilon = float("nan")
    if not (name and 0 < epsilon < float("inf")):
        raise InvalidArgumentError(f"{option}={text!r}: write OWNER=EPSILON with an epsilon greater than 0")
    return name, epsilon


def _check_known(option: str, name: str, known: dict[str, Budget]) -> None:
    if name not in known:
        raise InvalidArgumentError(f"{option}={name!r}: there is no such owner; {closest(name, list(known))}")


def _config(run: RunFolder, steps: int | None, allow_large_deltas: bool) -> PlanConfig | None:
    """What the run's plan was asked for, except for what is asked for anew."""
    config = run.plan().config
    if config is None:
        return None
    asked = config.steps if steps is None else steps
    return replace(config, steps=asked, allow_large_deltas=allow_large_deltas or config.allow_large_deltas)


def _report(proposal: Proposal, *, done: bool) -> dict[str, Any]:
    return {
        "action": proposal.action,
        "reason": proposal.reason,
        "done": done,
        "step": proposal.step,
        "recorded": proposal.recorded,
        "published": proposal.published,
        "unit": proposal.table.unit,
        "steps": None if proposal.plan is None else proposal.plan.steps,
        "resting": list(proposal.resting),
        "owners": {
            name: {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "examples": size,
                "spent": float(proposal.spent[row]),
                "kept": float(proposal.kept[row]),
                "planned": None if proposal.plan is None else float(proposal.plan.spent[row]),
            }
            for row, (name, budget, size) in enumerate(proposal.table)
        },
    }


def _print(ledger: Ledger, proposal: Proposal) -> None:
    shown = results()
    shown.print(f"[bold]{_headline(proposal)}[/]")
    shown.print(escape(proposal.reason) + "\n")
    shown.print(_table(ledger, proposal))
    shown.print("\nspent: until now; kept: of that, once this is done; planned: at the end of the new plan.")
    for name in proposal.resting:
        shown.print(f"{escape(name)} has nothing left to spend and is not sampled any more.")


def _headline(proposal: Proposal) -> str:
    if proposal.action == "stop":
        return f"Training would stop at step {proposal.step}"
    total = "" if proposal.plan is None else f" of {proposal.plan.steps}"
    if proposal.action == "roll back":
        lost = proposal.recorded - proposal.step
        return f"Training would roll back to step {proposal.step}{total}; {lost} steps are given up"
    return f"Training would continue from step {proposal.step}{total}"


def _table(ledger: Ledger, proposal: Proposal) -> Table:
    before = {name: budget.epsilon for name, budget, _ in ledger.table}
    table = plain_table("owner", right=(proposal.table.units, "ε now", "ε then", "spent", "kept", "planned"))
    for row, (name, budget, size) in enumerate(proposal.table):
        planned = "-" if proposal.plan is None else rounded_up(proposal.plan.spent[row], within=budget.epsilon)
        table.add_row(
            escape(name),
            str(size),
            f"{before[name]:g}" if name in before else "joins",
            f"{budget.epsilon:g}",
            rounded_up(proposal.spent[row]),
            rounded_up(proposal.kept[row], within=budget.epsilon),
            planned,
        )
    return table
