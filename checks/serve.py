"""The owners' page under load: `python checks/serve.py --owners 100 --out checks/SERVE.md`.

    beside    owners click at once on a real server, in another process, while a training that draws on the same book,
              for other owners, runs in a third: how long requests and steps take, and whether a change or a step is lost
    obeying   the same while the training is on the records of these owners, and has to follow their changes

Each owner logs in, looks, lowers, pauses, resumes, lowers again, asks for a raise and fetches its receipt. Every change
that was confirmed must be in the chain, every owner must stand where it was told, the book and the run must verify.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres import missing, server
from tests.serve.clicking import ACTIONS, click
from tests.study.writers import STUDY, table_text

from inosgd.accounts.book import Accounts
from inosgd.accounts.verification import verify_book
from inosgd.ledger.records import read_chain
from inosgd.owners import OwnerTable
from inosgd.runs.folder import RunFolder
from inosgd.runs.verification import verify_run
from inosgd.serve.links import make_link

OWNERS_LINES = "hospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0\n"


def main() -> int:
    """Both forms on both databases; the number of things that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--steps", type=int, default=300)
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
    text = STUDY.replace("steps = 12", f"steps = {steps}")
    alone = _time_per_step(url, folder, text, "alone", lambda: None)[0]
    names = tuple(f"owner {number}" for number in range(owners))
    with Accounts.open(url) as book:
        book.open_collection("others", _table(names))
    clicked: list[object] = []
    busy, failures = _time_per_step(url, folder, text, "beside", lambda: clicked.append(_click(url, names, "others")))
    return _row(clicked[0], alone, busy), failures + _lost(url, "others", names, clicked[0])


def obeying(url: str, folder: Path, owners: int, steps: int) -> tuple[list[object], list[str]]:
    """The training is on the records of those who click."""
    names = tuple(f"owner {number}" for number in range(owners))
    budgets = "".join(f'"{name}" = 1.0\n' for name in names)
    text = STUDY.replace("steps = 12", f"steps = {steps}").replace(OWNERS_LINES, budgets)
    data = _renamed(table_text(rows=20 * owners), names)
    alone = _time_per_step(url, folder, text, "alone", lambda: None, data)[0]
    with Accounts.open(url) as book:  # what the first has spent must not be missing now
        book.open_collection("again", _table(names, 20))
    clicked: list[object] = []
    busy, failures = _time_per_step(
        url, folder, text, "obeying", lambda: clicked.append(_click(url, names, "again")), data, "again"
    )
    changes = [body for body in _records(folder / "obeying") if body["kind"] == "change"]
    if not changes:
        failures.append("the training has not heeded any change")
    row = _row(clicked[0], alone, busy)
    row[-1] = f"{row[-1]}; {len(changes)} plans made anew"
    return row, failures + _lost(url, "again", names, clicked[0])


def _time_per_step(url, folder, study, name, meanwhile, data=None, collection="cases") -> tuple[float, list[str]]:
    """Train in another process, and do something once it has taken some steps: seconds per step, and what is wrong."""
    account = f'[account]\nurl = "{url}"\ncollection = "{collection}"\nshare = 0.5\n\n[data]\n'
    (folder / "study.toml").write_text(study.replace("[data]\n", account, 1))
    (folder / "cases.csv").write_text(table_text() if data is None else data)
    if name == "alone":
        _run(folder, "account", "create", url, "--study", "study.toml", "--collection", "cases")
    process = subprocess.Popen(
        [sys.executable, "-m", "inosgd", "train", "study.toml", "--out", name, "--no-report", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while _steps(folder / name) < 10 and process.poll() is None:
        time.sleep(0.05)
    began, first = time.monotonic(), _steps(folder / name)
    meanwhile()
    out, err = process.communicate(timeout=900)
    seconds = (time.monotonic() - began) / max(_steps(folder / name) - first, 1)
    if process.returncode:
        return seconds, [f"{name}: exit code {process.returncode}: {err[-500:]}"]
    json.loads(out)
    report = verify_run(RunFolder.open(folder / name))
    return seconds, [finding.message for finding in report.findings]


def _click(url: str, names: tuple[str, ...], collection: str):
    with Accounts.open(url) as book:
        tokens = {name: make_link(book, collection, name) for name in names}
    process = subprocess.Popen(
        [sys.executable, "-m", "inosgd", "serve", url, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        origin = re.search(r"http://[\d.:]+", process.stdout.readline())[0]
        return click(origin, tokens)
    finally:
        process.terminate()
        process.wait(30)


def _lost(url: str, collection: str, names: tuple[str, ...], clicked) -> list[str]:
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


def _row(clicked, alone: float, busy: float) -> list[object]:
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
        f"`python checks/serve.py --owners {arguments.owners} --steps {arguments.steps} --out checks/SERVE.md`, on two cores",
        "that server, training and all owners share. *beside*: the training draws on the same book, for other owners.",
        "*obeying*: it trains on the records of those who click, and makes a new plan for what they have changed by its",
        "next step. Each owner logs in, makes four changes and a request, and fetches its receipt, in 18 requests.",
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


def _records(run: Path) -> list[dict]:
    return read_chain(RunFolder.open(run).ledger_path).bodies


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inosgd", *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    raise SystemExit(main())
