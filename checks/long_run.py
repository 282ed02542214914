"""A training of 20,000 steps: `python checks/long_run.py --steps 20000`.

The digits study, trained as a model that is published would be: in a run folder, with a secure source, a ledger
that is forced to disk at every step and a checkpoint after every thousandth. Every thousand steps the process's
resident memory, open files and threads are noted, and the time since the last note.

Checked, from the first note on (before it libraries are still loading and buffers growing):

    memory is flat        every note is within 5% of the first
    handles are constant  open files and threads are as many in every note
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from inosgd import INO_SGD, SecureSource, TrainingState
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, train_durably
from inosgd.study.building import build
from inosgd.study.built_in import STUDIES
from inosgd.study.config import plan_for
from inosgd.training import every

NOTES = 20
LARGEST_CHANGE = 0.05


@dataclass(frozen=True)
class Note:
    """What the process held after a step, and how long a step took since the last note."""

    step: int
    megabytes: float
    files: int
    threads: int
    milliseconds: float


def observe(step: int, since: float, steps: int) -> Note:
    """What the process holds now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in status)
    resident = int(fields["VmRSS"].split()[0]) / 1024
    files = len(os.listdir("/proc/self/fd"))
    return Note(step, resident, files, int(fields["Threads"]), (time.perf_counter() - since) / steps * 1e3)


def train(folder: Path, steps: int) -> list[Note]:
    """The training, and what was noted on the way."""
    torch.set_num_threads(1)
    study = STUDIES["digits"].changed({"steps": steps, "method": INO_SGD.name})
    data = study.split(0)
    plan = plan_for(study.config, data.owners.table)
    run = RunFolder.create(folder / "run", {"of": "a long training"}, plan)
    built = build(study, data, plan)
    trainer, model, optimizer = built.trainer, built.model, built.optimizer
    interval, notes, last = max(steps // NOTES, 1), [], [time.perf_counter()]

    def note(state: TrainingState) -> None:
        notes.append(observe(state.step, last[0], interval))
        last[0] = time.perf_counter()
        print(notes[-1], file=sys.stderr, flush=True)

    with run.lock() as locked:
        state = begin(locked, trainer, model, optimizer, SecureSource())
        train_durably(locked, trainer, state, every=interval, callbacks=[every(interval, note)])
        state.ledger.close()
    return notes


def table(notes: list[Note]) -> str:
    """The notes as Markdown, and what they say."""
    first = notes[0]
    change = max(abs(each.megabytes / first.megabytes - 1) for each in notes)
    constant = all((each.files, each.threads) == (first.files, first.threads) for each in notes)
    lines = ["| step | memory (MB) | open files | threads | ms per step |", "| ---: | ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {each.step:,} | {each.megabytes:.1f} | {each.files} | {each.threads} | {each.milliseconds:.2f} |"
        for each in notes
    ]
    flat = "flat" if change <= LARGEST_CHANGE else "NOT flat"
    lines += ["", f"Memory is {flat}: largest change {change:.2%}. Handles are {'' if constant else 'NOT '}constant."]
    return "\n".join(lines)


def main() -> None:
    """Train, print the table, and exit with 1 if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        shown = table(train(Path(folder), steps))
    print(shown)
    sys.exit("NOT" in shown)


if __name__ == "__main__":
    main()
