"""``inosgd account``: budgets across trainings, in a book that several trainings share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from inosgd.accounts.book import Accounts
from inosgd.accounts.chain import Head
from inosgd.accounts.database import connect
from inosgd.accounts.draws import settle_from_run
from inosgd.accounts.fingerprints import fingerprints, key_at
from inosgd.accounts.receipts import check_script, receipt_of
from inosgd.accounts.standings import OPEN, PAUSED
from inosgd.accounts.verification import verify_book
from inosgd.accounts.views import described_collection, described_entry, described_owner, owner_history
from inosgd.cli.console import messages, plain_table, results
from inosgd.cli.folders import run_folder
from inosgd.cli.options import AsJson
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.files import write_private
from inosgd.owners import Budget
from inosgd.serve.links import links, make_link, revoke
from inosgd.serve.settings import PORT
from inosgd.shown import BUDGET, SPENT, USED, rounded_down, rounded_up

app = typer.Typer(
    help="Add up all trainings on the same units in an account book, owner by owner.", no_args_is_help=True
)

MOST_OWNERS = 40

Url = Annotated[str, typer.Argument(metavar="URL", help="sqlite:///accounts.db or postgresql://host/database.")]
Name = Annotated[str | None, typer.Option("--collection", help="The collection; needed where there are several.")]
Owner = Annotated[str | None, typer.Option(help="One owner alone.")]


@app.command("create")
def create_command(
    url: Url,
    study: Annotated[str | None, typer.Option(help="Open accounts for the owners of this study.")] = None,
    collection: Annotated[str | None, typer.Option(help="What the collection is called; by default as STUDY.")] = None,
    order: Annotated[
        int | None, typer.Option(help="The Rényi order of all accounts; by default one by budget.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The file of the key of fingerprints, outside the book; made if it is missing.")
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="Fingerprint these ids of units, one a line, not the rows.")] = None,
    overlaps: Annotated[
        list[str] | None, typer.Option(help="A collection that is known to have units in common; may be repeated.")
    ] = None,
) -> None:
    """Make a book, or open accounts in one that is there, with the budgets of a study."""
    with _made(url) as book:
        if study is None:
            results().print(f"Book {book.id} is ready. Open accounts with --study STUDY.", soft_wrap=True)
            return
        from inosgd.cli.studies import find_study  # with torch, which nothing else here needs
        from inosgd.study.account import key_of, rows_of

        found = find_study(study)
        with messages().status("reading"):
            data = found.split(0)
            place = key or key_of(found)
            if ids is not None and place is None:
                raise InvalidArgumentError(f"ids={str(ids)!r}: fingerprints need a key; name its file with --key")
            units: Iterable[bytes | str] = rows_of(data) if ids is None else ids.read_text("utf-8").split("\n")
            prints = None if place is None else fingerprints(key_at(place), filter(None, units))
        opened = book.open_collection(
            collection or found.name,
            data.owners.table,
            orders=order,
            fingerprints=prints,
            acknowledged=overlaps or (),
        )
        results().print(
            f"Collection {escape(opened.name)}: opened accounts for {opened.owners} owners, with {len(opened)} "
            f"different budgets. Trainings draw on them if their study says account = {escape(json.dumps(url))}.",
        )


@app.command("budget")
def budget_command(
    url: Url,
    owner: Annotated[str, typer.Argument(help="Whose budget.")],
    epsilon: Annotated[float, typer.Argument(help="The budget from now on.")],
    delta: Annotated[float | None, typer.Option(help="By default as before.")] = None,
    collection: Name = None,
) -> None:
    """Raise or lower the budget of an owner. What was spent stays; nothing more is charged than it allows now."""
    with Accounts.open(url) as book:
        before = book.standing(collection, owner)
        if before.state == PAUSED:
            raise InvalidArgumentError(f"owner={owner!r}: it has paused, and resumes by its link (`inosgd serve`)")
        budget = Budget(epsilon=epsilon, delta=before.budget.delta if delta is None else delta)
        book.set_budgets(collection, {owner: budget}, seen=before.entry, by="command line")
        results().print(f"{escape(owner)}: ε {before.budget.epsilon:g} -> {epsilon:g}")


@app.command("show")
def show_command(url: Url, collection: Name = None, owner: Owner = None, as_json: AsJson = False) -> None:
    """Show what every owner has spent, has reserved and has left."""
    with Accounts.open(url) as book:
        if owner is not None:
            described = {"owners": {owner: described_owner(book, collection, owner)}}
        else:
            described = described_collection(book, collection, most=None if as_json else MOST_OWNERS)
    if as_json:
        typer.echo(json.dumps(described))
        return
    _print_collection(described)


@app.command("history")
def history_command(url: Url, collection: Name = None, owner: Owner = None, as_json: AsJson = False) -> None:
    """Show everything that ever happened, in its order, and the head of the chain; or what one owner was charged."""
    with Accounts.open(url) as book:
        number, head = None if collection is None else book.collection(collection).number, book.head
        if owner is None:
            entries = [described_entry(entry) for entry in book.entries(number)]
        else:
            entries = owner_history(book, collection, owner)
    if as_json:
        typer.echo(json.dumps({"entries": entries, "head": "{}:{}".format(*head)}))
        return
    table = plain_table("entry", "when", "what", "of", right=() if owner is None else (BUDGET, "room spent"))
    for entry in _last_of_blocks(entries):
        about = entry.get("reservation", "")[:8] or entry.get("name") or entry.get("purpose") or _changed(entry)
        taken = f", {entry['releases']} releases" if isinstance(entry.get("releases"), int) else ""
        what = f"{entry['kind']}: {entry['state']}" if entry.get("state", OPEN) != OPEN else entry["kind"]
        cells = [str(entry["number"]), entry["time"][:16].replace("T", " "), what, f"{about}{taken}"]
        if owner is not None:
            cells += [f"{entry['epsilon']:g}" if "epsilon" in entry else "", rounded_up(entry["spent"])]
        table.add_row(*map(escape, cells))
    results().print(table)
    if len(_last_of_blocks(entries)) < len(entries):
        results().print("\nOf commitments in a row the last is shown, which counts those before it; --json shows all.")
    results().print("\nHead, to be published: {}:{}".format(*head), soft_wrap=True)


@app.command("link")
def link_command(
    url: Url,
    owner: Annotated[str | None, typer.Option(help="Whose link.")] = None,
    model_owner: Annotated[bool, typer.Option("--model-owner", help="A link that sees all owners.")] = False,
    at: Annotated[str, typer.Option(help="The address of the page, as people use it.")] = f"http://127.0.0.1:{PORT}",
    collection: Name = None,
) -> None:
    """Make a personal link to the page of `inosgd serve`. It is shown once; the book keeps a digest of its secret."""
    if (owner is None) != model_owner:
        raise InvalidArgumentError("owner: give --owner NAME, or --model-owner")
    with Accounts.open(url) as book:
        token = make_link(book, collection, owner)
    typer.echo(f"{at.rstrip('/')}/enter#{token}")


@app.command("links")
def links_command(url: Url, as_json: AsJson = False) -> None:
    """Show the links that were made, whose they are, and when they were last used; no secret is known."""
    with Accounts.open(url) as book:
        found = links(book)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return
    table = plain_table("link", "of", "made", "last used", "revoked", right=())
    for each in found:
        times = [(when or "-")[:16].replace("T", " ") for when in (each.made, each.used, each.revoked)]
        table.add_row(each.visitor.link, escape(each.visitor.owner or "the model owner"), *times)
    results().print(table)


@app.command("revoke")
def revoke_command(
    url: Url, link: Annotated[str, typer.Argument(help="The link, by its first eight letters.")]
) -> None:
    """Revoke a link: it opens nothing any more, and who came by it is logged out."""
    with Accounts.open(url) as book:
        revoke(book, link)
    results().print(f"Link {escape(link)} opens nothing any more.")


@app.command("settle")
def settle_command(
    url: Url,
    reservation: Annotated[str | None, typer.Option(help="One alone; by default all whose process has ended.")] = None,
    forfeit: Annotated[
        bool, typer.Option("--forfeit", help="Without looking at the run: for one that is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Settle reservations whose process is gone: what is committed counts as spent, the rest is given back.

    Exit code 1 if one could not be settled.
    """
    if forfeit and reservation is None:
        raise InvalidArgumentError("--forfeit: name the reservation with --reservation")
    settled: list[dict[str, Any]] = []
    with Accounts.open(url) as book:
        chosen = book.reservations(only_open=True) if reservation is None else [book.reservation(reservation)]
        for state in chosen:
            try:
                end = settle_from_run(book, state, forfeit=forfeit)
                settled.append({"reservation": end.id, "state": end.state, "releases": end.committed})
            except InosgdError as error:
                settled.append({"reservation": state.id, "state": state.state, "error": str(error)})
    if as_json:
        typer.echo(json.dumps(settled))
    elif not settled:
        results().print("No reservation is open.")
    for each in [] if as_json else settled:
        said = each.get("error") or f"{each['state']}, {each['releases']} releases"
        results().print(f"{each['reservation']}: {escape(said)}", soft_wrap=True)
    if any("error" in each for each in settled):
        raise typer.Exit(1)


@app.command("export")
def export_command(
    url: Url,
    out: Annotated[Path, typer.Option(help="A new folder.")],
    owner: Owner = None,
    collection: Name = None,
) -> None:
    """Write the chain and its head; with --owner, the owner's receipt and the script that checks it instead."""
    with Accounts.open(url) as book, run_folder(out, "") as (working, final):
        head = "{}:{}".format(*book.head)
        write_private(working / "head.txt", f"{head}\n".encode())
        if owner is None:
            lines = [json.dumps({**entry.header, "text": entry.body, "hash": entry.hash}) for entry in book.entries()]
            write_private(working / "chain.jsonl", "".join(f"{line}\n" for line in lines).encode())
        else:
            receipt = json.dumps(receipt_of(book, collection, owner))
            write_private(working / "receipt.json", receipt.encode())
            write_private(working / "check_receipt.py", check_script().encode())
    shown = results()
    shown.print(f"Head, to be published: {head}", soft_wrap=True)
    if owner is not None:
        shown.print(f"Check it with: python {final}/check_receipt.py {final}/receipt.json {head}", soft_wrap=True)


@app.command("verify")
def verify_command(
    url: Url,
    head: Annotated[str | None, typer.Option(help="A published head, NUMBER:HASH, that the book must have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute every price again with dp-accounting, and every sum and hash; exit code 1 if anything is wrong."""
    with Accounts.open(url) as book, messages().status("verifying with dp-accounting"):
        report = verify_book(book, None if head is None else _head(head))
    if as_json:
        typer.echo(json.dumps({"verified": report.good, "entries": report.entries, "findings": report.findings}))
    else:
        shown = results()
        for finding in report.findings:
            shown.print(f"[bold red]wrong:[/] {escape(finding)}", soft_wrap=True)
        if report.good:
            known = "it has the published head" if head else "without a published head, an old copy is not noticed"
            shown.print(
                f"[bold green]verified[/]: {report.entries} entries, {report.prices} prices by dp-accounting; {known}.",
                soft_wrap=True,
            )
    if not report.good:
        raise typer.Exit(1)


def _made(url: str) -> Accounts:
    """The book at ``url``, a new one if there is none."""
    try:
        database = connect(url, create=True)
    except InvalidArgumentError:
        return Accounts.open(url)
    return Accounts(database)


def _head(text: str) -> Head:
    number, _, digest = text.strip().partition(":")
    if not (number.isdecimal() and len(digest) == 64):
        raise InvalidArgumentError(f"head={text!r}: give NUMBER:HASH, as `inosgd account history` shows it")
    return Head(int(number), digest)


def _changed(entry: dict[str, Any]) -> str:
    """How many owners a change of budgets is about, and who made it."""
    if "owners" not in entry or "by" not in entry:
        return ""
    return f"{entry['owners']} {'owner' if entry['owners'] == 1 else 'owners'}, by {entry['by']}"


def _last_of_blocks(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries without commitments that the next entry takes further."""
    about = [(entry["kind"], entry.get("reservation")) for entry in entries]
    pairs = zip(entries, about, [*about[1:], None], strict=True)
    return [entry for entry, this, following in pairs if this[0] != "committed" or this != following]


def _print_collection(described: dict[str, Any]) -> None:
    shown = results()
    table = plain_table("owner", right=(BUDGET, "δ", SPENT, USED, "reserved", "left", "room", "order"))
    for name, owner in described["owners"].items():
        table.add_row(
            escape(name),
            f"{owner['epsilon']:g}",
            f"{owner['delta']:g}",
            rounded_up(owner["spent_epsilon"], within=owner["epsilon"]),
            *_shares(owner),
            rounded_down(owner["room"]),
            str(owner["order"]),
        )
    shown.print(table)
    more = described.get("owner_count", 0) - len(described["owners"])
    if more > 0:
        shown.print(f"and {more} more owners, who have more left")
    for state in described.get("reserved", []):
        run = f" by {state['run']}" if state["run"] else ""
        shown.print(f"reserved: {state['id']}{escape(run)}, {state['committed']} of {sum(state['releases'])} releases")
    for purpose, count in described.get("looks", {}).items():
        shown.print(f"looked at without a charge: {escape(purpose)}, {count} times")
    shown.print(
        "\nused, reserved, left: shares of the room, which is the Rényi divergence that the budget allows at the "
        "owner's order. These shares add up over trainings; epsilons do not."
    )


def _shares(owner: dict[str, Any]) -> tuple[str, str, str]:
    """What is used and reserved of the room, rounded up, and what is left, rounded down."""
    if not owner["room"] > 0:
        return "-", "-", "0 %"
    used, reserved, left = (100 * owner[key] / owner["room"] for key in ("spent", "reserved", "left"))
    within = 100.0 if owner["spent"] <= owner["room"] else None
    return f"{rounded_up(used, 3, within=within)} %", f"{rounded_up(reserved, 3)} %", f"{rounded_down(left, 3)} %"
