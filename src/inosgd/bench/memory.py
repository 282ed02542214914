"""Peak memory of one step, measured in a process of its own; how the allocator is set is up to the method."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

from inosgd.bench.methods import METHODS
from inosgd.bench.models import ALL
from inosgd.bench.new_process import in_new_process
from inosgd.errors import InosgdError


def peak_memory(model: str, method: str) -> int:
    """The bytes that a step of ``method`` takes on top of the model and its batch, from a new process."""
    try:
        return int(in_new_process(__name__, "measure", model, method))
    except InosgdError as error:
        raise InosgdError(f"memory of {method} on {model}: {error}") from error


def measure(model: str, method: str) -> int:
    """The same in this process, which should be a new one: the peak of its resident memory over the start, in bytes.

    What a smaller step before it has freed goes back to the system: a start with it would be too high by as much.
    """
    bench = ALL[model]
    METHODS[method](*bench.make(batch_size=2))()  # loads whatever is loaded on first use
    step = METHODS[method](*bench.make())
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
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
