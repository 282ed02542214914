"""The owners' page under load: `python checks/serve.py --owners 100 --out checks/SERVE.md`.

    beside    owners click at once on a real server, in another process, while a training that draws on the same book,
              for other owners, runs in a third: how long requests and steps take, and whether a change is lost
    obeying   the same while the training is on the records of these owners, and has to follow their changes

Each owner logs in, looks, lowers, pauses, resumes, lowers again, asks for a raise and fetches its receipt. Every change
that was confirmed must be in the chain, every owner must stand where it was told, the book and the run must verify.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres import missing, server
from tests.serve.clicking import ACTIONS, Clicked, click
from tests.study.writers import STUDY, table_text

from inosgd.accounts.book import Accounts
from inosgd.accounts.verification import verify_book
from inosgd.ledger.records import read_chain
from inosgd.owners import OwnerTable
from inosgd.runs.folder import RunFolder
from inosgd.runs.verification import verify_run
from inosgd.serve.links import make_link

OWNERS_LINES = "hospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n"


ALONE = 300
"""So many steps are timed without anyone who clicks."""


def main() -> int:
    """Both forms on both databases; the number of things that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder, _databases(arguments.databases, Path(folder)) as urls:
        for database in arguments.databases:
            for form in (beside, obeying):
                place = Path(folder) / f"{database}-{form.__name__}"
                place.mkdir()
                row, failures = form(urls[database](), place, arguments.owners, arguments.steps)
                rows.append((database, form.__name__, *row, len(failures)))
                wrong += failures
                print(rows[-1], *failures[:5], sep="\n", flush=True)
    text = _page(arguments, rows)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    return len(wrong)


def beside(url: str, folder: Path, owners: int, steps: int) -> tuple[list[object], list[str]]:
    """The training is on the records of three owners, and others click."""
    names = tuple(f"owner {number}" for number in range(owners))
    text = STUDY.replace("steps = 12", f"steps = {steps}")
    alone = _time_per_step(url, folder, _with_steps(text, ALONE), "alone", lambda: None)[0]
    with Accounts.open(url) as book:
        book.open_collection("others", _table(names))
    with _served(url) as origin:
        clicked: list[Clicked] = []
        tokens = _tokens(url, names, "others")
        busy, wrong = _time_per_step(url, folder, text, "beside", lambda: clicked.append(click(origin, tokens)))
    return _row(clicked[0], alone, busy), wrong + _lost(url, "others", names, clicked[0])


def obeying(url: str, folder: Path, owners: int, steps: int) -> tuple[list[object], list[str]]:
    """The training is on the records of those who click."""
    names = tuple(f"owner {number}" for number in range(owners))
    budgets = "".join(f'"{name}" = 1.0\n' for name in names)
    text = STUDY.replace("steps = 12", f"steps = {steps}").replace(OWNERS_LINES, budgets)
    (folder / "cases.csv").write_text(_renamed(table_text(rows=20 * owners), names))
    alone = _time_per_step(url, folder, _with_steps(text, ALONE), "alone", lambda: None)[0]
    with Accounts.open(url) as book:
        book.open_collection("again", _table(names, 20))
    with _served(url) as origin:
        clicked: list[Clicked] = []
        tokens = _tokens(url, names, "again")
        meanwhile = partial(_append_clicked, clicked, origin, tokens)
        busy, wrong = _time_per_step(url, folder, text, "obeying", meanwhile, "again")
    changes = [body for body in read_chain(folder / "obeying" / "ledger.jsonl").bodies if body["kind"] == "change"]
    if not changes:
        wrong.append("the training has not heeded any change")
    row = _row(clicked[0], alone, busy)
    row[-1] = f"{row[-1]}, {len(changes)} new plans included"
    return row, wrong + _lost(url, "again", names, clicked[0])


def _with_steps(study: str, steps: int) -> str:
    return re.sub(r"steps = \d+", f"steps = {steps}", study)


def _append_clicked(clicked: list[Clicked], origin: str, tokens: dict[str, str]) -> None:
    clicked.append(click(origin, tokens))


def _time_per_step(
    url: str, folder: Path, study: str, name: str, meanwhile: Callable[[], None], collection: str = "cases"
) -> tuple[float, list[str]]:
    """Train in another process, and do something once it has taken some steps: seconds per step, and what is wrong."""
    account = f'[account]\nurl = "{url}"\ncollection = "{collection}"\nshare = 0.5\n\n[data]\n'
    (folder / "study.toml").write_text(study.replace("[data]\n", account, 1))
    if not (folder / "cases.csv").exists():
        (folder / "cases.csv").write_text(table_text())
    if name == "alone":
        _inosgd(folder, "account", "create", url, "--study", "study.toml", "--collection", "cases").communicate()
    process = _inosgd(folder, "train", "study.toml", "--out", name, "--no-report", "--json")
    run, planned = folder / name, int(re.search(r"steps = (\d+)", study)[1])
    while _steps(run) < 10 and process.poll() is None:
        time.sleep(0.1)
    began, first = time.monotonic(), _steps(run)
    clicking = threading.Thread(target=meanwhile)
    clicking.start()
    while process.poll() is None and (clicking.is_alive() or name == "alone") and _steps(run) < planned:
        time.sleep(0.5)
    seconds = (time.monotonic() - began) / max(_steps(run) - first, 1)
    clicking.join()
    _, error = process.communicate(timeout=900)
    if process.returncode:
        return seconds, [f"{name}: exit code {process.returncode}: {error[-500:]}"]
    return seconds, [finding.message for finding in verify_run(RunFolder.open(run)).findings]


def _tokens(url: str, names: tuple[str, ...], collection: str) -> dict[str, str]:
    with Accounts.open(url) as book:
        return {name: make_link(book, collection, name) for name in names}


@contextmanager
def _served(url: str) -> Iterator[str]:
    """The origin of a page that another process serves."""
    process = _inosgd(Path.cwd(), "serve", url, "--port", "0")
    try:
        yield re.search(r"http://[\d.:]+", process.stdout.readline())[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _inosgd(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "inosgd", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603


def _lost(url: str, collection: str, names: tuple[str, ...], clicked: Clicked) -> list[str]:
    """What the book does not say that owners were told."""
    failures = list(clicked.failures)
    with Accounts.open(url) as book:
        found = book.collection(collection)
        entries, confirmed = len(book.entries(found.number, "budgets")), sum(clicked.confirmed.values())
        if not entries == confirmed == len(names) * (len(ACTIONS) - 1):
            failures.append(f"{entries} changes in the chain, {confirmed} confirmed, of {len(names)} owners")
        failures += [name for name in names if book.standing(collection, name).budget.epsilon != 0.8]
        failures += verify_book(book).findings
        failures += [f"reservation {state.id} is open" for state in book.reservations(only_open=True)]
    return failures


def _row(clicked: Clicked, alone: float, busy: float) -> list[object]:
    seconds = sorted(clicked.seconds)
    return [
        len(clicked.confirmed),
        len(seconds),
        f"{clicked.took:.1f}",
        f"{statistics.median(seconds):.2f}",
        f"{seconds[int(0.95 * len(seconds))]:.2f}",
        f"{seconds[-1]:.2f}",
        f"{1000 * alone:.0f} / {1000 * busy:.0f}",
    ]


def _page(arguments: argparse.Namespace, rows: list[tuple[object, ...]]) -> str:
    heads = ("database", "form", "owners", "requests", "s in all", "median s", "95 % s", "longest s")
    heads = (*heads, "ms per step, alone / meanwhile", "wrong")
    lines = [
        "# The owners' page under load",
        "",
        f"`python checks/serve.py --owners {arguments.owners} --steps {arguments.steps} --out checks/SERVE.md`, on two",
        "cores that server, training and all owners share. *beside*: the training draws on the same book, for other",
        "owners. *obeying*: it trains on the records of those who click, and plans anew for what they have changed by",
        "its next step. Each owner logs in, makes four changes and a request, and fetches its receipt, in 18 requests.",
        "*Wrong* counts failed requests, changes that were confirmed and are not in the chain, owners who do not stand",
        "where they were told, findings of the verification of book and run, and reservations that were left behind.",
        "",
        "| " + " | ".join(heads) + " |",
        "| --- | --- |" + " ---: |" * (len(heads) - 2),
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


@contextmanager
def _databases(wanted: list[str], folder: Path) -> Iterator[dict[str, object]]:
    numbers = iter(range(1000))

    def sqlite() -> str:
        return f"sqlite:///{folder}/{next(numbers)}.db"

    if "postgresql" not in wanted:
        yield {"sqlite": lambda: _made(sqlite())}
        return
    why = missing()
    if why is not None:
        raise SystemExit(why)
    with server() as running:
        yield {"sqlite": lambda: _made(sqlite()), "postgresql": lambda: _made(running.new_database())}


def _made(url: str) -> str:
    Accounts.create(url).close()
    return url


def _table(names: tuple[str, ...], size: int = 10) -> OwnerTable:
    count = len(names)
    return OwnerTable(names, np.full(count, 1.0), np.full(count, 1e-5), np.full(count, size))


def _renamed(text: str, names: tuple[str, ...]) -> str:
    head, *lines = text.strip().split("\n")
    renamed = [f"{line.rpartition(',')[0]},{names[row % len(names)]}" for row, line in enumerate(lines)]
    return "\n".join([head, *renamed]) + "\n"


def _steps(run: Path) -> int:
    try:
        return RunFolder.open(run).read_ledger().steps
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
