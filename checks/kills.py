"""Kill a training at random instants and look at what is left: `python checks/kills.py --kills 200`.

A training of 60 steps with a checkpoint after every 7th runs in a process of its own, which is killed (SIGKILL) after
a random time, and resumed, until it ends; then the next training starts, until there were enough kills. Half of the
trainings have a seeded source and half a secure one. After some kills the power fails too: if the last record of the
ledger was not followed by its release, it is torn at a random byte.

An observer writes down the parameters after every step in every process: more than anybody outside ever sees. Checked:

    same final bits       the parameters at the end are those of the same training without a kill
    nothing twice         every step has one record in the ledger, and all outcomes of it that the observer saw are
                          the same bits: seeing it again tells nothing
    nothing unrecorded    no outcome was seen of a step that the ledger did not have at that moment
    the ledger verifies   chain, order, dp-accounting, every file of the run
    no kill looks wrong   after every kill, each file is what the ledger says, but for keys that were about to be erased
    no keys are left      no checkpoint of a finished training holds the key of a secure stream
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from inosgd import (
    INO_SGD,
    Budget,
    Owners,
    Plan,
    PlanConfig,
    SecureSource,
    SeededSource,
    Trainer,
    TrainingState,
    make_plan,
)
from inosgd.gradients import supervised
from inosgd.ledger.records import read_chain
from inosgd.runs.files import compare
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.runs.verification import verify_run

STEPS, EVERY, LONGEST = 60, 7, 0.5
BUDGETS = {
    "clinic": Budget(epsilon=1.0, delta=1e-5),
    "hospital": Budget(epsilon=3.0, delta=1e-5),
    "registry": Budget(epsilon=8.0, delta=1e-5),
}


def problem() -> tuple[Owners, tuple[torch.Tensor, torch.Tensor]]:
    """Three hundred noisy 8 x 8 pictures of ten shapes, in three hands."""
    rng = np.random.default_rng(0)
    shapes, labels = rng.normal(size=(10, 64)), rng.integers(0, 10, 300)
    pictures = shapes[labels] + rng.normal(size=(300, 64))
    owners = Owners.from_labels(np.array(list(BUDGETS))[rng.integers(0, 3, 300)], BUDGETS)
    return owners, (torch.from_numpy(pictures).float(), torch.from_numpy(labels))


def parts(plan: Plan) -> tuple[Trainer, nn.Module, torch.optim.Optimizer]:
    """The training as every process builds it anew."""
    owners, examples = problem()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 10))
    trainer = Trainer(plan, owners, examples, supervised(F.cross_entropy), INO_SGD)
    return trainer, model, torch.optim.Adam(model.parameters(), lr=0.01)


def digest(model: nn.Module) -> str:
    """The SHA-256 of all parameters."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return hashlib.sha256(flat.tobytes()).hexdigest()


def train(path: Path, observed: Path, seed: int) -> None:
    """One life of the training: begin or resume, and go on to the end."""
    with observed.open("ab", buffering=0) as notes:

        def observe(state: TrainingState, _: object) -> None:
            recorded = state.ledger.steps >= state.step
            notes.write(json.dumps([state.step - 1, digest(state.model), recorded]).encode() + b"\n")

        run = RunFolder.open(path)
        with run.lock() as locked:
            trainer, model, optimizer = parts(run.plan())
            state = resume(locked, trainer, model, optimizer, SeededSource(seed)).state
            train_durably(locked, trainer, state, every=EVERY, callbacks=[observe])
            (path.parent / f"{path.name}.final").write_text(digest(model))


@dataclass
class Tally:
    """What was seen in all trainings."""

    trainings: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    where: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    replayed: int = 0
    failures: list[str] = field(default_factory=list)


def run_once(folder: Path, plan: Plan, secure: bool, seed: int, chance: random.Random, tally: Tally, most: int) -> None:
    """One training, killed until it ends, and compared with one that was not."""
    path, twin, observed = folder / "run", folder / "twin", folder / "observed"
    run = RunFolder.create(path, {}, plan)
    if secure:
        with run.lock() as locked:
            begin(locked, *parts(plan), SecureSource()).ledger.close()
        shutil.copytree(path, twin)  # the same keys, hence the same bits
    else:
        RunFolder.create(twin, {}, plan)
    life(twin, folder / "unused", seed)
    lives = 0
    while not (folder / "run.final").exists():
        patience = LONGEST * chance.random() if tally.kills < most else 600.0
        lives += 1
        if life(path, observed, seed, patience):
            tally.kills += 1
            tally.where[place(path)] += 1
            tally.torn += tear(path, observed, chance)
            tally.failures += [
                f"training {sum(tally.trainings.values()) + 1}: after a kill, {finding.message}"
                for finding in compare(path, STEPS).findings
                if "keys that should be erased by now" not in finding.message
            ]
    tally.trainings["secure" if secure else "seeded"] += 1
    tally.replayed += examine(folder, run, tally, f"training {sum(tally.trainings.values())}, {lives} lives")


def life(path: Path, observed: Path, seed: int, patience: float = 600.0) -> bool:
    """Train in a process of its own and kill it after ``patience`` seconds; whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(path, observed, seed)
            status = 0
        except BaseException as error:  # a forked child must never return
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(status)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise SystemExit(f"a resumed training failed: see above ({path})")
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def place(path: Path) -> str:
    """Roughly what the process was doing when it was killed."""
    if any(path.glob("checkpoints/.*")) or any(path.glob("checkpoints/*/.*")):
        return "while a checkpoint was written"
    chain = read_chain(path / "ledger.jsonl")
    steps = sum(body["kind"] == "step" for body in chain.bodies)
    if steps == 0:
        return "before the first step"
    return "after the last step" if steps == STEPS else "between two checkpoints"


def tear(path: Path, observed: Path, chance: random.Random) -> int:
    """Cut the last record at a random byte, if it is of a step whose outcome nobody saw."""
    ledger = path / "ledger.jsonl"
    last = read_chain(ledger).bodies[-1]
    seen = {step for step, _, _ in notes(observed)}
    if last["kind"] != "step" or last["step"] in seen or chance.random() < 0.3:
        return 0
    content = ledger.read_bytes()
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    os.truncate(ledger, chance.randrange(start + 1, len(content)))
    return 1


def notes(observed: Path) -> list[tuple[int, str, bool]]:
    """What the observer wrote; a line that was cut short is left out."""
    lines = observed.read_bytes().split(b"\n")[:-1] if observed.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def examine(folder: Path, run: RunFolder, tally: Tally, name: str) -> int:
    """Look at a finished training; how many outcomes were computed more than once."""
    seen = notes(folder / "observed")
    outcomes: dict[int, set[str]] = {}
    for step, outcome, _ in seen:
        outcomes.setdefault(step, set()).add(outcome)
    recorded = Counter(body["step"] for body in read_chain(run.ledger_path).bodies if body["kind"] == "step")
    report = verify_run(run)
    keys = [state.get("key") for checkpoint in run.checkpoints() for state in checkpoint.streams.values()]
    verdicts = {
        "other final bits": (folder / "run.final").read_text() == (folder / "twin.final").read_text(),
        "a step twice": set(recorded.values()) == {1} and all(len(bits) == 1 for bits in outcomes.values()),
        "a step unrecorded": all(known for _, _, known in seen) and set(outcomes) <= set(recorded),
        f"ledger {report.findings}": report.good and report.steps == STEPS,
        "a key left": all(key is None for key in keys),
    }
    tally.failures += [f"{name}: {what}" for what, good in verdicts.items() if not good]
    return len(seen) - len(outcomes)


def main() -> None:
    """Kill until there were enough, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the instants at which processes are killed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chance, tally, began = random.Random(arguments.seed), Tally(), time.monotonic()
    owners, _ = problem()
    plan = make_plan(
        owners.table, PlanConfig(steps=STEPS, variant="sample", expected_batch_size=40, clipping_threshold=1.0)
    )
    parts(plan)  # what torch imports on first use, children then need not
    number = 0
    while tally.kills < arguments.kills:
        with tempfile.TemporaryDirectory() as place_to_work:
            run_once(Path(place_to_work), plan, number % 2 == 1, number, chance, tally, arguments.kills)
        number += 1
    print(table(tally, time.monotonic() - began))
    if tally.failures:
        raise SystemExit("\n".join(tally.failures))


def table(tally: Tally, seconds: float) -> str:
    """The tally in Markdown."""
    rows = {
        "kills (SIGKILL at a random instant)": tally.kills,
        **{f"- {where}": count for where, count in sorted(tally.where.items())},
        "kills after which the last record was torn as well": tally.torn,
        "trainings, seeded source": tally.trainings["seeded"],
        "trainings, secure source": tally.trainings["secure"],
        "steps computed again after a resume": tally.replayed,
        "trainings that failed a check": len({failure.split(":")[0] for failure in tally.failures}),
    }
    lines = [f"| {name} | {count} |" for name, count in rows.items()]
    return "\n".join(["| what | count |", "| --- | ---: |", *lines, f"\n{seconds:.0f} seconds."])


if __name__ == "__main__":
    main()
