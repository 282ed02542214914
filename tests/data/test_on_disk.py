"""Training on data that stay on disk takes the memory of a batch, not of the data; `checks/large_data.py` is larger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECORDS = 1_500_000
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, torch
import torch.nn.functional as F
from inosgd import INO_SGD, OwnerTable, Owners, Plan, SeededSource, Trainer, TrainingState, members
from inosgd.plan import Phase, Terms
from inosgd import supervised
from inosgd.data.mapped import MappedExamples
from inosgd.data.parquet import ParquetExamples
from inosgd.training import fit

folder, records = Path(sys.argv[1]), int(sys.argv[2])
members.LISTED = 0
torch.set_num_threads(1)

def write(path, shape, kind):
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, records, 100_000):
            rows = np.arange(start, start + 100_000)
            block = np.broadcast_to((rows % 2)[:, None], (100_000, 16)) if len(shape) > 1 else rows % 2
            file.write(block.astype(kind).tobytes())

write(folder / "inputs.npy", (records, 16), np.float32)
write(folder / "targets.npy", (records,), np.int64)
write(folder / "owners.npy", (records,), np.uint8)
part = pa.table({"x": np.arange(100_000, dtype=np.float32), "y": np.arange(100_000) % 2})
with pq.ParquetWriter(folder / "rows.parquet", part.schema, compression="NONE", use_dictionary=False) as writer:
    for _ in range(records // 100_000):
        writer.write_table(part, row_group_size=2000)

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def train(examples, width, rows, steps):
    owners = Owners.from_rows(rows, {"a": 1.0, "b": 8.0}, delta=1e-7)
    terms = Terms.for_owners(owners.table, np.array([5e-5, 1e-4]), np.ones(2), 1e3)
    plan = Plan(owners.table, (Phase(steps, terms),), "rdp", np.zeros(2))
    trainer = Trainer(plan, owners, examples, supervised(F.cross_entropy), INO_SGD)
    model = torch.nn.Linear(width, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(trainer, TrainingState.start(trainer, model, optimizer, SeededSource(0)))

def growth(open_examples, width):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    train(open_examples(), width, np.load(folder / "owners.npy", mmap_mode="r"), 5)
    return status("VmHWM") - before

def mapped():
    return MappedExamples.open((folder / "inputs.npy", folder / "targets.npy"))

def parquet():
    return ParquetExamples.open(
        folder / "rows.parquet", ("x", "y"), transform=lambda batch: (batch[0][:, None], batch[1]), cache_bytes=1 << 20
    )

def in_memory():
    return torch.from_numpy(np.load(folder / "inputs.npy")), torch.from_numpy(np.load(folder / "targets.npy"))

small = np.array([0, 1] * 20, dtype=np.uint8)
train((torch.zeros(40, 16), torch.zeros(40, dtype=torch.long)), 16, small, 1)  # loads whatever is loaded on first use
found = {"mapped": growth(mapped, 16), "parquet": growth(parquet, 1), "in memory": growth(in_memory, 16)}
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
def test_memory_does_not_grow_with_the_data(tmp_path):
    """The arrays have 110 MB; a process that trains from memory, the control, grows by all of them."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(RECORDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout)
    assert growth["mapped"] < 50e6
    assert growth["parquet"] < 24e6
    assert growth["in memory"] > 100e6
