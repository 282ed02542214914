"""Time the commands as users run them: `python checks/commands.py --label now --out now.json`.

Each is a process of its own, with everything that it imports. CPU seconds are those of the process and its children.
They say more than wall seconds where other work runs beside it. `--code` measures another copy of the package, and
`--table` writes several measurements side by side, as `COMMANDS.md` has them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 300

REPLAN = """
import numpy as np, time
from inosgd import OwnerTable, PlanConfig, make_plan
from inosgd.plan import Phase
rng = np.random.default_rng(0)
budgets = rng.uniform(0.5, 8, 2000)
def table(epsilons):
    return OwnerTable(tuple(map(str, range(2000))), epsilons, np.full(2000, 1e-5), np.full(2000, 20))
config = PlanConfig(steps=1000, variant="VARIANT", expected_batch_size=512, clipping_threshold=1.0)
plan = make_plan(table(budgets), config)
past = [Phase(400, plan.phases[0].terms)]
changed = np.where(rng.random(2000) < 0.3, budgets * rng.uniform(1.0, 2.0, 2000), budgets)
start = time.process_time(), time.perf_counter()
make_plan(table(changed), config, past=past)
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""

RARE = """
import numpy as np, time
from inosgd import OwnerTable, PlanConfig, make_plan
rng = np.random.default_rng(0)
count = 1_000_000
epsilons = rng.choice(np.linspace(0.25, 5.25, 1000), count)
table = OwnerTable(tuple(map(str, range(count))), epsilons, np.full(count, 1e-5), np.full(count, 1))
ask = {"expected_batch_size": 1024, "clipping_threshold": 1.0, "allow_large_deltas": True}
config = PlanConfig(steps=1000, variant="VARIANT", **ask)
start = time.process_time(), time.perf_counter()
make_plan(table, config)
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""

DURABLE = """
import tempfile, time
from pathlib import Path
import torch
from inosgd import INO_SGD_FAIR, Budget, Owners, PlanConfig, SecureSource, Trainer, TrainingState, make_plan, supervised
from inosgd import fit
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, train_durably
import torch.nn.functional as F
torch.manual_seed(0)
inputs, targets = torch.randn(2000, 20), torch.randint(0, 2, (2000,))
budgets = {"a": Budget(epsilon=1.0, delta=1e-5), "b": Budget(epsilon=4.0, delta=1e-5)}
owners = Owners.from_labels(["a"] * 800 + ["b"] * 1200, budgets)
plan = make_plan(owners.table, PlanConfig(steps=400, variant="fair", expected_batch_size=64, clipping_threshold=1.0))
trainer = Trainer(plan, owners, (inputs, targets), supervised(F.cross_entropy), INO_SGD_FAIR)
def parts():
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
def plain():
    state = TrainingState.start(trainer, *parts(), SecureSource())
    start = time.process_time(), time.perf_counter()
    fit(trainer, state)
    return time.process_time() - start[0], time.perf_counter() - start[1]
def durable():
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", {"kind": "a check"}, plan)
        with run.lock() as locked:
            state = begin(locked, trainer, *parts(), SecureSource())
            start = time.process_time(), time.perf_counter()
            train_durably(locked, trainer, state, every=100)
            taken = time.process_time() - start[0], time.perf_counter() - start[1]
            state.ledger.close()
            return taken
plain(), durable()
turns = [(plain(), durable()) for _ in range(5)]
middle = [sorted(one[kind] for one in column)[2] for column in zip(*turns) for kind in (0, 1)]
print(middle[2] / middle[0], middle[3] / middle[1])
"""


def owners_file(path: Path, count: int, largest: int) -> None:
    """Budgets from 0.25 to 5.25 of owners with up to ``largest`` examples."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["owner", "epsilon", "size"])
        out.writerows([f"p{row}", f"{rng.uniform(0.25, 5.25):.6f}", rng.randint(1, largest)] for row in range(count))


TEN = ("plan", "--epsilon", ",".join(f"{0.5 * step:g}" for step in range(1, 11)), "--sizes", ",".join(["5000"] * 10))
MANY = ("plan", "--batch", "1024", "--allow-large-deltas", "--json", "--owners")
CASES: dict[str, tuple[tuple[str, ...] | str, float]] = {
    "`inosgd --help`": (("--help",), 0.5),
    "`plan`, 10 owners": ((*TEN, "--batch", "1024"), 2),
    "`plan --owners FILE --json`, 50,000 budgets": ((*MANY, "people.csv"), 10),
    "the same, owners of up to 200 examples": ((*MANY, "owners.csv"), 10),
    "`train` of what `new` writes": (("train", "study.toml", "--out", "run"), 6),
    "`check`": (("check", "study.toml"), 6),
    "`ledger`": (("ledger", "run"), 2),
    "`predict`": (("predict", "run/model", "study-data.csv", "--out", "predictions.csv"), 3),
    "`report`": (("report", "run", "--out", "page.html"), 4),
    "`compare`": (("compare", "study.toml", "--out", "compared"), 12),
    "replanning 2,000 budgets, `fair`": (REPLAN.replace("VARIANT", "fair"), 5),
    "replanning 2,000 budgets, `scale`": (REPLAN.replace("VARIANT", "scale"), 5),
    "replanning 2,000 budgets, `sample`": (REPLAN.replace("VARIANT", "sample"), 5),
    "a million owners at 0.001, `scale`": (RARE.replace("VARIANT", "scale"), 6),
    "a million owners at 0.001, `fair`": (RARE.replace("VARIANT", "fair"), 6),
    "a million owners at 0.001, `sample`": (RARE.replace("VARIANT", "sample"), 6),
    "a durable step over one that is not": (DURABLE, 1.3),
}
"""The arguments of a command, or a program that prints CPU and wall seconds or ratios; and what is aimed at."""


def main() -> int:
    """Measure, or write the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--code", type=Path, default=ROOT / "src", help="where the package is")
    options.add_argument("--label", default="now", help="what the column is called")
    options.add_argument("--only", nargs="+", default=[""], help="cases that contain one of these texts")
    options.add_argument("--out", type=Path, help="a JSON file, which is added to")
    options.add_argument("--table", type=Path, nargs="+", help="write a table of these files instead")
    asked = options.parse_args()
    if asked.table:
        print(table([json.loads(path.read_text()) for path in asked.table]))
        return 0
    found = (
        json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {"label": asked.label, "times": {}}
    )
    with tempfile.TemporaryDirectory() as name:
        folder, code = Path(name), asked.code.absolute()
        owners_file(folder / "people.csv", 50_000, 1)
        owners_file(folder / "owners.csv", 50_000, 200)
        measured(("new", "study.toml"), folder, code)
        for case, (what, _) in CASES.items():
            if any(text in case for text in asked.only) or case.startswith("`train`"):
                found["times"][case] = measured(what, folder, code)
                print(f"{case}: {shown(found['times'][case])}", file=sys.stderr)
                if asked.out:
                    asked.out.write_text(json.dumps(found, indent=1))
    return 0


def measured(what: tuple[str, ...] | str, folder: Path, code: Path) -> list[float] | None:
    """CPU and wall seconds; None if it took too long."""
    command = ["-c", what] if isinstance(what, str) else ["-m", "inosgd", *what]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    before, start = os.times(), time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603 - the commands are written above
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return None
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{done.stderr}")
    if isinstance(what, str):
        return [float(text) for text in done.stdout.split()]
    return [after[2] + after[3] - before[2] - before[3], wall]


def shown(times: Sequence[float] | None) -> str:
    """CPU and wall seconds."""
    return f"over {LONGEST} s" if times is None else f"{times[0]:.2f} / {times[1]:.2f}"


def table(columns: Sequence[dict[str, object]]) -> str:
    """All measurements side by side."""
    heads = ("", *(str(column["label"]) for column in columns), "goal")
    lines = [heads, ("---",) * len(heads)]
    for case, (_, goal) in CASES.items():
        cells = [column["times"].get(case, "") if isinstance(column["times"], dict) else "" for column in columns]
        lines.append((case, *("" if cell == "" else shown(cell) for cell in cells), f"{goal:g}"))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
