"""Memory that is kept from one step to the next."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from inosgd.gradients import allocator
from inosgd.gradients.allocator import SWITCH

PROGRAM = """
import runpy, sys, types
from pathlib import Path

sys.modules["torch"] = types.ModuleType("torch")

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

kept, start = runpy.run_path(sys.argv[1])["keep_freed_memory"](), resident()
blocks = [bytearray(b"x") * (1 << 22) for _ in range(12)]
del blocks
print(kept, resident() - start)
"""
"""The module alone, with an empty torch, as the true one takes seconds to import: blocks of both come from the same
``malloc``."""


def bytes_held(**environment: str) -> tuple[bool, int]:
    """Whether a new process keeps its memory, and what it holds after 50 MB were used and freed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", SWITCH))}
    command = [sys.executable, "-c", PROGRAM, allocator.__file__]
    answer = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True).stdout.split()
    return answer[0] == "True", int(answer[1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is about glibc")
class TestWithGlibc:
    def test_freed_memory_is_kept(self):
        kept, held = bytes_held()
        assert kept
        assert held > 40e6

    @pytest.mark.parametrize(
        "environment",
        [{SWITCH: "0"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}],
    )
    def test_control(self, environment):
        """Turned off, or with settings of the user's, it is returned."""
        kept, held = bytes_held(**environment)
        assert not kept
        assert held < 10e6
