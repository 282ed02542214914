"""``inosgd ledger``: what every owner has spent, and whether the record can be believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.options import AsJson
from inosgd.ledger.ledger import Ledger
from inosgd.owners import plural
from inosgd.runs.folder import RunFolder
from inosgd.runs.verification import verify_run
from inosgd.shown import BUDGET, LEFT, SPENT, USED, rounded_up, spending_shown


def ledger_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    verify: Annotated[bool, typer.Option("--verify", help="Recompute everything with dp-accounting.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what every owner has spent and has left.

    With --verify the chain of records is recomputed, dp-accounting computes the spending again, and every file of the
    run is compared with what the ledger knows of it; exit code 1 if anything is wrong.
    """
    folder = RunFolder.open(run)
    if not verify:
        _show(_described(folder.read_ledger()), as_json)
        return
    with messages().status("verifying with dp-accounting"):
        report = verify_run(folder)
    described: dict[str, Any] = {"steps": report.steps}
    if report.good:
        described = _described(folder.read_ledger())
        for name, epsilon in report.reference.items():
            described["owners"][name]["reference"] = epsilon
    described["verified"] = report.good
    described["findings"] = [{"record": each.record, "message": each.message} for each in report.findings]
    described["notes"] = [*report.notes, *_differences(described.get("owners", {}))]
    _show(described, as_json)
    if not report.good:
        raise typer.Exit(1)


def _described(ledger: Ledger) -> dict[str, Any]:
    spent, remaining = ledger.spent(), ledger.remaining()
    return {
        "steps": ledger.steps,
        "published": ledger.published,
        "stopped": ledger.stopped,
        "accountant": ledger.accountant,
        "unit": ledger.table.unit,
        "counted": None if ledger.history.count is None else int(ledger.history.count.sampling_rates.sum()),
        "owners": {
            name: {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "examples": size,
                "spent": float(spent[row]),
                "remaining": float(remaining[row]),
            }
            for row, (name, budget, size) in enumerate(ledger.table)
        },
    }


def _differences(owners: dict[str, dict[str, Any]]) -> list[str]:
    """Why dp-accounting may show more than is shown as spent, where it does."""
    above = max((owner["reference"] - owner["spent"] for owner in owners.values() if "reference" in owner), default=0.0)
    if not above > 0:
        return []
    return [
        f"dp-accounting finds up to {rounded_up(above, 2)} more than is shown as spent: both are upper bounds, its "
        "grid and orders are coarser, and the smaller bound holds"
    ]


def _show(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(described))
        return
    shown = results()
    if "owners" in described:
        published = described["published"]
        shown.print(
            f"[bold]{described['steps']} steps[/], accountant {described['accountant']}, "
            f"{f'published after step {published}' if published else 'nothing published'}\n"
        )
        if described["counted"]:
            shown.print(f"The classes of {described['counted']} owners were counted before the first step.\n")
        shown.print(_table(described["owners"], described["unit"]))
        shown.print(f"\nε: what is allowed and was spent for each single {escape(described['unit'])}.")
        if described["stopped"]:
            shown.print(f"\n[bold]stopped:[/] {escape(described['stopped'])}")
    for note in described.get("notes", []):
        shown.print(f"\nnote: {escape(note)}")
    if "verified" not in described:
        return
    if described["verified"]:
        shown.print(
            "\n[bold green]verified[/]: no record or file edited, lost or moved; dp-accounting finds all owners within "
            "budget."
        )
    for finding in described["findings"]:
        named = finding["record"] is None or finding["message"].startswith(f"record {finding['record']} ")
        where = "" if named else f"record {finding['record']}: "
        shown.print(f"\n[bold red]wrong:[/] {where}{escape(finding['message'])}")
    if described["findings"]:
        shown.print("\nUse neither the figures nor the model of this run, unless a copy of its folder verifies.")


def _table(owners: dict[str, dict[str, Any]], unit: str) -> Table:
    referred = any("reference" in owner for owner in owners.values())
    headings = (plural(unit), BUDGET, "δ", SPENT, LEFT, USED, *(["by dp-accounting"] if referred else []))
    table = plain_table("owner", right=headings)
    for name, owner in owners.items():
        known = (owner[key] for key in ("epsilon", "delta", "spent", "remaining"))
        cells = [str(owner["examples"]), *spending_shown(*known)]
        if referred:
            cells.append(rounded_up(owner["reference"], within=owner["epsilon"]) if "reference" in owner else "-")
        table.add_row(escape(name), *cells)
    return table
