"""Peak memory of one step, measured in a process of its own.

Run as ``python -m inosgd.bench.memory MODEL METHOD``; it prints the peak over the start, in bytes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from inosgd.bench.methods import METHODS
from inosgd.bench.models import MODELS
from inosgd.errors import InosgdError


def peak_memory(model: str, method: str) -> int:
    """The bytes that a step of ``method`` takes on top of the model and its batch, from a new process."""
    command = [sys.executable, "-m", "inosgd.bench.memory", model, method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own module)
    if done.returncode != 0:
        raise InosgdError(f"memory of {method} on {model}: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout)


def _measure(model: str, method: str) -> int:
    bench = MODELS[model]
    small, *few = bench.make(batch_size=2)
    METHODS[method](small, *few)()  # loads whatever is loaded on first use
    step = METHODS[method](*bench.make())
    Path("/proc/self/clear_refs").write_text("5")
    start = _status("VmRSS")
    step()
    step()
    return _status("VmHWM") - start


def _status(field: str) -> int:
    """A line of the process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise InosgdError(f"/proc/self/status has no {field}; memory is measured on Linux only")


if __name__ == "__main__":
    print(_measure(sys.argv[1], sys.argv[2]))
