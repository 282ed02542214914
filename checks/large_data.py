"""Data larger than memory: `python checks/large_data.py --folder SCRATCH`.

Writes 100 million records of 1,000 owners to disk, as mapped arrays and as Parquet with row groups of several sizes.
For each of them, in a new process with nothing of the files in the system's cache: opens them, counts the owners'
examples, plans, and takes ten steps of INO-SGD with batches of about 1,000.

Checked:

    memory is bounded     the peak of the process, libraries included, is at most 2 GB
    only what was drawn   mapped arrays read the rows of the batch; Parquet at most one row group for each of them

The table goes to `checks/LARGE_DATA.md` (`--output`). The files take about 2.5 GB for each format; all are deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import nn

from inosgd import INO_SGD, Owners, Plan, PlanConfig, SecureSource, Trainer, TrainingState, make_plan, supervised
from inosgd.data.mapped import MappedExamples
from inosgd.data.parquet import ParquetExamples, ParquetRows
from inosgd.training import train_step

FEATURES = tuple(f"feature_{number}" for number in range(8))
OWNERS, BUDGETS, STEPS, BATCH = 1000, 10, 10, 1000
AT_ONCE = 1 << 20
PARQUET_FILES = 4
LARGEST_PEAK = 2e9
SENTENCES = (
    "`python checks/large_data.py`, one thread, {machine}. {records:,} records of {owners:,} owners with {budgets} "
    "different budgets; eight features in float16 and a class each; INO-SGD with rates by budget, {steps} steps, about "
    "{batch:,} examples each. Every row is a process of its own, and the files were not in the system's cache when it "
    "began. *Libraries* is what it had in memory before it opened anything, and a part of the peak. Opening includes "
    "the counting of the owners' examples, and the first step the preparing of the sampler; *step* is the median."
)


@dataclass(frozen=True)
class Measured:
    """What one process found."""

    format: str
    records: int
    bytes_on_disk: int
    libraries: int
    peak: int
    opening: float
    planning: float
    step: float
    first_step: float
    drawn: float
    rows_read: float


def write_arrays(folder: Path, records: int) -> None:
    """Inputs, targets and owners as ``.npy`` files, piece by piece."""
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "inputs": ((records, len(FEATURES)), np.float16),
        "targets": ((records,), np.uint8),
        "owners": ((records,), np.uint16),
    }
    files = {name: (folder / f"{name}.npy").open("wb") for name in shapes}
    for name, (shape, kind) in shapes.items():
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(files[name], header)
    for piece in generated(records):
        for name, array in piece.items():
            files[name].write(array.tobytes())
    for file in files.values():
        file.close()


def write_parquet(folder: Path, records: int, row_group: int) -> None:
    """The same records in a few Parquet files."""
    writer, written, number = None, 0, 0
    for piece in generated(records):
        columns = {name: piece["inputs"][:, place].copy() for place, name in enumerate(FEATURES)}
        table = pa.table({**columns, "target": piece["targets"], "owner": piece["owners"]})
        if writer is None:
            path = folder / f"records-{number}.parquet"
            writer = pq.ParquetWriter(path, table.schema, compression="NONE", use_dictionary=False)
        writer.write_table(table, row_group_size=row_group)
        written += len(table)
        if written >= (number + 1) * records / PARQUET_FILES:
            writer.close()
            writer, number = None, number + 1
    if writer is not None:
        writer.close()


def generated(records: int) -> Any:
    """Records whose class follows the first feature; owners in no order."""
    rng = np.random.default_rng(0)
    for start in range(0, records, AT_ONCE):
        count = min(AT_ONCE, records - start)
        inputs = rng.standard_normal((count, len(FEATURES)), dtype=np.float32).astype(np.float16)
        owners = rng.integers(0, OWNERS, count, dtype=np.uint16)
        yield {"inputs": inputs, "targets": (inputs[:, 0] > 0).astype(np.uint8), "owners": owners}


def read_batch(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model reads: features as float32, classes as whole numbers."""
    inputs, targets = batch
    if isinstance(inputs, tuple):
        inputs = torch.stack(inputs, dim=1)
    return inputs.float(), targets.long()


def opened(form: str, folder: Path) -> tuple[Any, np.ndarray[Any, Any]]:
    """The store of examples, and the row of each example's owner."""
    if form == "arrays":
        examples = MappedExamples.open((folder / "inputs.npy", folder / "targets.npy"), transform=read_batch)
        return examples, np.load(folder / "owners.npy", mmap_mode="r")
    files = sorted(folder.glob("*.parquet"))
    stored = ParquetExamples.open(files, (FEATURES, "target"), transform=read_batch)
    rows = np.empty(len(stored), dtype=np.uint16)
    for start, piece in ParquetRows.open(files, {"owner": "the check"}).pieces():
        rows[start : start + len(piece)] = piece.column("owner").to_numpy()
    rows.flags.writeable = False
    return stored, rows


def planned(owners: Owners) -> Plan:
    """The plan for ten steps."""
    return make_plan(
        owners.table, PlanConfig(steps=STEPS, variant="sample", expected_batch_size=BATCH, clipping_threshold=1.0)
    )


def measure(form: str, folder: Path) -> Measured:
    """Open, count, plan and train; in this process, which should be a new one."""
    torch.set_num_threads(1)
    libraries, began = status("VmRSS"), time.perf_counter()
    examples, rows = opened(form, folder)
    budgets = {f"owner {row}": float(np.linspace(0.5, 8, BUDGETS)[row % BUDGETS]) for row in range(OWNERS)}
    owners = Owners.from_rows(rows, budgets, delta=0.1 / len(rows))
    opening, began = time.perf_counter() - began, time.perf_counter()
    plan = planned(owners)
    planning = time.perf_counter() - began
    trainer = Trainer(plan, owners, examples, supervised(F.cross_entropy), INO_SGD)
    model = nn.Sequential(nn.Linear(len(FEATURES), 32), nn.Tanh(), nn.Linear(32, 2))
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=1.0), SecureSource())
    times, drawn = [], 0
    for _ in range(STEPS):
        began = time.perf_counter()
        drawn += train_step(trainer, state).batch_size
        times.append(time.perf_counter() - began)
    read = examples.rows.rows_read if isinstance(examples, ParquetExamples) else drawn
    return Measured(
        format=form,
        records=len(rows),
        bytes_on_disk=sum(path.stat().st_size for path in folder.iterdir()),
        libraries=libraries,
        peak=status("VmHWM"),
        opening=opening,
        planning=planning,
        step=float(np.median(times)),
        first_step=times[0],
        drawn=drawn / STEPS,
        rows_read=read / STEPS,
    )


def status(field: str) -> int:
    """A line of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measured_apart(form: str, folder: Path, records: int, row_group: int) -> Measured:
    """Write the files, take them out of the system's cache, measure in a new process, and delete them."""
    folder.mkdir()
    try:
        if form == "arrays":
            write_arrays(folder, records)
        else:
            write_parquet(folder, records, row_group)
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        command = [sys.executable, __file__, "--measure", form, "--folder", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (this file)
        if done.returncode:
            sys.exit(done.stderr)
        return Measured(**json.loads(done.stdout.splitlines()[-1]))
    finally:
        shutil.rmtree(folder)


def described(found: Measured, row_group: int) -> str:
    """A line of the table."""
    name = "mapped arrays" if found.format == "arrays" else f"Parquet, {row_group:,} rows per group"
    return (
        f"| {name} | {found.bytes_on_disk / 1e9:.2f} | {found.libraries / 1e6:.0f} | {found.peak / 1e6:,.0f} | "
        f"{found.opening:.1f} | {found.planning:.1f} | {found.first_step:.2f} | {found.step:.2f} | "
        f"{found.drawn:,.0f} | {found.rows_read:,.0f} |"
    )


def fits(found: Measured, row_group: int) -> bool:
    """Whether memory was bounded, and no more was read than a row group for each example that was drawn."""
    most = found.drawn * (1 if found.format == "arrays" else row_group)
    return found.peak <= LARGEST_PEAK and found.rows_read <= most


def main() -> None:
    """Measure every format, write the table, and exit with 1 if anything was larger than it may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="where the files are written; by default a temporary folder")
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--row-groups", type=int, nargs="+", default=[4096, 65536, 1 << 20])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "LARGE_DATA.md")
    parser.add_argument("--machine", default="on a shared machine", help="a word about where, for the table")
    parser.add_argument("--measure", choices=("arrays", "parquet"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asdict(measure(given.measure, given.folder))))
        return
    sentences = SENTENCES.format(
        machine=given.machine, records=given.records, owners=OWNERS, budgets=BUDGETS, steps=STEPS, batch=BATCH
    )
    titles = "format | GB on disk | libraries (MB) | peak (MB) | open (s) | plan (s) | first step (s) | step (s) | "
    lines = [f"| {titles}examples per step | rows read per step |", "| --- |" + " ---: |" * 9]
    held = []
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for form, row_group in [("arrays", 1), *(("parquet", size) for size in given.row_groups)]:
            found = measured_apart(form, Path(scratch) / f"{form}-{row_group}", given.records, row_group)
            lines.append(described(found, row_group))
            held.append(fits(found, row_group))
            print(lines[-1], file=sys.stderr, flush=True)
    verdict = "Memory is bounded" if all(held) else "NOT bounded"
    limits = f"no peak above {LARGEST_PEAK / 1e9:g} GB, and at most one row group read for each example drawn"
    lines += ["", f"{verdict}: {limits}."]
    page = ["# Data larger than memory", "", *textwrap.wrap(sentences, 120), "", *lines, ""]
    given.output.write_text("\n".join(page), encoding="utf-8")
    print("\n".join(lines))
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
