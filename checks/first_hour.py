"""A new user's hour on a real table, from the wheel to an owner who lowers a budget.

`python checks/first_hour.py randhie.csv --wheel dist/inosgd-0.1.0-py3-none-any.whl --out checks/FIRST_HOUR.md`

The table is the RAND Health Insurance Experiment, 20,190 person-years of 5,908 people at six sites, as
`statsmodels/datasets/randhie/src/randhie.csv` has it. It is written as a hospital's program would export it:
semicolons, decimal commas, ids, dates, free text, truths as yes and no, missing values. Then the commands of a first
hour are run as a user would run them, also those that fail, and what they print is the log. At the end the trainings
draw on an account book, and an owner opens its link and lowers its budget while a training runs. Where there is a
browser, `build/screenshots` has the report and the owner's page as they looked.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.report.conftest import browser
from tests.report.test_browser import WIDTHS, drawn, keep_screenshot
from tests.serve.clicking import Clicked, Session
from tests.serve.test_browser import dressed, entered
from tests.serve.visiting import form_of, plain

from inosgd.ledger.records import read_chain

ROOT = Path(__file__).parents[1]

HEADER = (
    "person_id", "enrolled_on", "age", "female", "income", "education", "chronic_diseases", "limitation",
    "health_index", "remarks", "often_ill", "hospital",
)  # fmt: skip
LONGEST = 40
"""Lines of output that the log shows of a command."""


def export(source: Path, target: Path) -> None:
    """The table as it might come out of a hospital, with some rows that a prediction will meet."""
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [_exported(number, row) for number, row in enumerate(rows)]
    _write(target, lines)
    spoiled = [list(line) for line in lines[:3000]]
    spoiled[3][2], spoiled[7][4], spoiled[11][3], spoiled[19][1] = "unknown", "12.345.6", "maybe", "31/12/1975"
    _write(target.with_name("new.csv"), [line[:10] for line in spoiled], HEADER[:10])


def _exported(number: int, row: dict[str, str]) -> list[str]:
    year = 1973 + int(row["year"])
    return [
        f"P{row['zper']}",
        f"{year}-{1 + number % 12:02d}-{1 + number % 28:02d}",
        _decimal(row["xage"], 1),
        "yes" if row["female"] == "1" else "no",
        _decimal(row["income"], 0),
        _decimal(row["educdec"], 1),
        _decimal(row["disea"], 1),
        {"": "NA", "0": "no"}.get(row["physlm"], "yes"),
        _decimal(row["ghindx"], 1) or "NA",
        f"seen {row['mdvis']} times in {year}; insured",
        "yes" if int(row["mdvis"]) >= 4 else "no",
        f"site_{row['site']}",
    ]


def _decimal(text: str, digits: int) -> str:
    return "" if not text else f"{float(text):.{digits}f}".replace(".", ",")


def _write(path: Path, lines: list[list[str]], header: tuple[str, ...] = HEADER) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file, delimiter=";", lineterminator="\n")
        out.writerow(header)
        out.writerows(lines)


ANSWERS = """\
target = "often_ill"              # four visits to a doctor a year, or more
classes = ["no", "yes"]
owner = "hospital"
unit = "person_id"                # a person is in the table once for each year
epsilon = 4.0

[budgets]
site_1 = 1.0                      # two sites are stricter
site_4 = 2.0

[columns]                         # what is publicly known
enrolled_on = "1970-01-01,1985-12-31"
age = "0,100"
income = "0,100000"
education = "0,25"
chronic_diseases = "0,60"
health_index = "0,100"
limitation = "boolean"
female = "boolean"
"""

STEPS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("What must be said about this table?", ("new", "study.toml", "--from", "visits.csv"), 2),
    ("The answers in a file; rows are not looked at.", ("new", "study.toml", "--from", "visits.csv", "--answers",
      "answers.toml"), 0),
    ("Everything that is wrong, at once.", ("check", "study.toml"), 2),
    ("Rows may tell how numbers are written and where values are missing.", ("new", "looked.toml", "--from",
      "visits.csv", "--answers", "answers.toml", "--look-at-rows", "--answer", "missing=indicator"), 0),
    ("", ("check", "looked.toml"), 0),
    ("Which method?", ("compare", "looked.toml", "--methods", "dp-sgd,idp-sgd,auto", "--seeds", "1", "--steps", "60",
      "--out", "compared"), 0),
    ("", ("train", "looked.toml", "--out", "run"), 0),
    ("", ("ledger", "run", "--verify"), 0),
    ("", ("report", "run", "--out", "page.html"), 0),
    ("New rows, of which four cannot be used.", ("predict", "run/model", "new.csv", "--keep", "person_id", "-o",
      "predictions.csv"), 0),
)  # fmt: skip


def main() -> int:
    """Run all commands, write the log, and say whether each ended as it should."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("table", type=Path, help="randhie.csv, of statsmodels/datasets/randhie/src")
    options.add_argument("--out", type=Path, required=True, help="where the log goes")
    options.add_argument("--wheel", type=Path, help="install it into an empty environment and use that one")
    asked = options.parse_args()
    log, wrong = [_introduction()], 0
    with tempfile.TemporaryDirectory() as outer, browser() as (chromium, _):
        folder = Path(outer) / "work"
        folder.mkdir()
        if asked.wheel is not None:
            log.append(installed(asked.wheel, Path(outer) / "environment"))
        export(asked.table, folder / "visits.csv")
        (folder / "answers.toml").write_text(ANSWERS)
        log += ["`answers.toml`:\n", f"```toml\n{ANSWERS}```\n", "The first rows of `visits.csv`:\n"]
        log.append("```text\n" + "".join((folder / "visits.csv").open().readlines()[:4]) + "```\n")
        for title, command, expected in STEPS:
            text, code = ran(command, folder)
            wrong += code != expected
            log.append(f"{title}\n\n{text}" if title else text)
            print(" ".join(command), code, file=sys.stderr)
        log.append("```text\n" + "".join((folder / "predictions.csv").open().readlines()[:6]) + "```\n")
        photographed(chromium, "report", lambda *how: drawn(chromium, folder / "page.html", *how))
        told, more = owners_hour(folder, chromium)
        log, wrong = log + told, wrong + more
        left = sorted(path.name for path in folder.iterdir())
        log.append(f"In the folder afterwards: {', '.join(left)}.\n")
    asked.out.write_text("\n".join(log))
    return wrong


def _introduction() -> str:
    return (
        "# A new user's hour\n\nWritten by `checks/first_hour.py` from the RAND Health Insurance Experiment "
        f"(statsmodels), on two\ncores. Each block is a command and what it printed, cut to {LONGEST} lines.\n"
    )


def photographed(chromium: Any, name: str, show: Callable[..., None]) -> None:
    """Screenshots of what ``show`` opens at a size, on both widths, light and dark; none without a browser."""
    for width, size in WIDTHS.items() if chromium is not None else ():
        for theme in ("light", "dark"):
            show(size, theme == "dark")
            keep_screenshot(chromium, f"first-hour-{name}-{width}-{theme}")


def ran(command: tuple[str, ...], folder: Path) -> tuple[str, int]:
    """The block of the log for a command, and its exit code."""
    start = time.perf_counter()
    process = started(command, folder)
    out, err = process.communicate()
    taken = time.perf_counter() - start
    printed = (out + err).replace(str(folder), "FOLDER").rstrip().splitlines()
    more = [f"... {len(printed) - LONGEST} more lines"] if len(printed) > LONGEST else []
    shown = "\n".join([re.sub(r"\s+$", "", line) for line in printed[:LONGEST]] + more)
    return (
        f"```text\n$ inosgd {' '.join(command)}     # {taken:.0f} s, exit code {process.returncode}\n{shown}\n```\n",
        process.returncode,
    )


def started(command: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """A command of the program that is tried: of the wheel's environment beside ``folder``, or of this one."""
    python, environment = folder.parent / "environment/bin/python", {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    if not python.exists():
        python, environment["PYTHONPATH"] = Path(sys.executable), str(ROOT / "src")
    return subprocess.Popen(  # noqa: S603 - the commands are written here
        [str(python), "-m", "inosgd", *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def installed(wheel: Path, place: Path) -> str:
    """Install the wheel into an empty environment, with the CPU build of torch; what that took."""
    start = time.perf_counter()
    venv.create(place, with_pip=True)
    for packages in (["torch==2.13.0"], [f"{wheel.resolve()}[all]"]):
        command = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*command, *packages], check=True, capture_output=True)  # noqa: S603
    taken = time.perf_counter() - start
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    return f"The wheel, torch for the CPU and all extras in an empty environment: {taken:.0f} s, {size / 1e9:.1f} GB.\n"


BOOK = "sqlite:///accounts.db"
STRICTER = "2.5"


def owners_hour(folder: Path, chromium: Any) -> tuple[list[str], int]:
    """An owner lowers its budget while a training draws on its account: the log, and how many commands failed."""
    study = (folder / "looked.toml").read_text()
    longer = re.sub(r"(?m)^steps = \d+", "steps = 2000", study)
    (folder / "shared.toml").write_text(f'account = "{BOOK}"\n{longer}')
    log, wrong = ["## An owner lowers its budget while a training runs\n"], 0
    for command in (
        ("account", "create", BOOK, "--study", "shared.toml", "--collection", "people"),
        ("account", "show", BOOK),
    ):
        text, code = ran(command, folder)
        log, wrong = [*log, text], wrong + bool(code)
    link = started(("account", "link", BOOK, "--owner", "site_2"), folder).communicate()[0]
    token = re.search(r"#(\S+)", link)[1]
    training = started(("train", "shared.toml", "--out", "shared", "--no-report"), folder)
    serving = started(("serve", BOOK, "--port", "0"), folder)
    try:
        origin = re.search(r"http://[\d.:]+", serving.stdout.readline())[0]
        _wait(folder / "shared" / "ledger.jsonl", training)
        log.append(_lowered(origin, token, folder))
        if chromium is not None:
            entered(chromium, origin, token)
        photographed(chromium, "owner", lambda *how: dressed(chromium, *how))
    finally:
        serving.terminate()
        serving.communicate(timeout=60)
    out, err = training.communicate(timeout=1800)
    log.append(f"The training, from the moment of the change (exit code {training.returncode}):\n")
    log.append("```text\n" + "\n".join(line for line in (err + out).splitlines() if "site_2" in line) + "\n```\n")
    wrong += bool(training.returncode)
    for command in (("ledger", "shared", "--verify"), ("account", "show", BOOK), ("account", "verify", BOOK)):
        text, code = ran(command, folder)
        log, wrong = [*log, text], wrong + bool(code)
    changes = [body for body in read_chain(folder / "shared" / "ledger.jsonl").bodies if body["kind"] == "change"]
    log.append(f"Records of the run's ledger that are changes of budgets: {len(changes)}.\n")
    return log, wrong + (not changes)


def _wait(ledger: Path, training: subprocess.Popen[str]) -> None:
    while training.poll() is None and not (ledger.exists() and len(ledger.read_text().splitlines()) > 50):
        time.sleep(0.2)


def _lowered(origin: str, token: str, folder: Path) -> str:
    """What the owner sees and does in its browser, and its receipt."""
    visit = Session(origin, Clicked())
    visit.send("POST", "/enter", {"token": token}, 303)
    own = plain(visit.send("GET", "/").partition("<main")[2]).partition(">")[2].strip()
    page = visit.send("GET", f"/change?action=lower&epsilon={STRICTER}")
    consequence = plain(page.partition("<main")[2]).partition(">")[2].strip()
    visit.send("POST", "/change", form_of(page, "/change"), 303)
    done = plain(visit.send("GET", visit.location).partition("<main")[2]).partition(">")[2].strip()
    (folder / "receipt.json").write_text(visit.send("GET", "/receipt.json"))
    (folder / "check_receipt.py").write_text(visit.send("GET", "/check_receipt.py"))
    return (
        f"The owner opens its link, and reads:\n\n> {own}\n\nIt asks to lower its budget to {STRICTER}, and "
        f"reads:\n\n> {consequence}\n\nIt confirms, and reads:\n\n> {done}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
