"""A new user's hour on a real table: `python checks/first_hour.py randhie.csv --out checks/FIRST_HOUR.md`.

The table is the RAND Health Insurance Experiment, 20,190 person-years of 5,908 people at six sites, as
`statsmodels/datasets/randhie/src/randhie.csv` has it. It is written as a hospital's program would export it:
semicolons, decimal commas, ids, dates, free text, truths as yes and no, missing values. Then the commands of a first
hour are run as a user would run them, also those that fail, and what they print is the log. The wheel is tried by
`checks/install.py`.
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
from pathlib import Path

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
    asked = options.parse_args()
    log, wrong = [_introduction()], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
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
        left = sorted(path.name for path in folder.iterdir())
        log.append(f"In the folder afterwards: {', '.join(left)}.\n")
    asked.out.write_text("\n".join(log))
    return wrong


def _introduction() -> str:
    return (
        "# A new user's hour\n\nWritten by `checks/first_hour.py` from the RAND Health Insurance Experiment "
        f"(statsmodels), on two busy\ncores. Each block is a command and what it printed, cut to {LONGEST} lines.\n"
    )


def ran(command: tuple[str, ...], folder: Path) -> tuple[str, int]:
    """The block of the log for a command, and its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "110", "NO_COLOR": "1"}
    start = time.perf_counter()
    program = [sys.executable, "-m", "inosgd", *command]
    done = subprocess.run(  # noqa: S603 - the commands are written above
        program, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    taken = time.perf_counter() - start
    printed = (done.stdout + done.stderr).replace(str(folder), "FOLDER").rstrip().splitlines()
    more = [f"... {len(printed) - LONGEST} more lines"] if len(printed) > LONGEST else []
    shown = "\n".join([re.sub(r"\s+$", "", line) for line in printed[:LONGEST]] + more)
    return (
        f"```text\n$ inosgd {' '.join(command)}     # {taken:.0f} s, exit code {done.returncode}\n{shown}\n```\n",
        done.returncode,
    )


if __name__ == "__main__":
    raise SystemExit(main())
