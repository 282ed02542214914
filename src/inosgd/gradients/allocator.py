"""Has the C library keep the memory of one step for the next.

glibc, the C library of most Linux systems, returns the free end of its heap to the system as soon as it is a little
larger than what was freed there before. A training frees all of a step's memory at the step's end, and takes it again
page by page in the next one, which can be a quarter of its time. Told to keep it, steps are faster, with the same peak.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

KEPT_BYTES = 1 << 30
"""How much freed memory a process keeps at the end of its heap."""

SWITCH = "INOSGD_KEEP_MEMORY"
"""The environment variable that turns this off, if it is 0."""

_LARGEST_BLOCK = 32 << 20
"""Larger blocks are taken from the system one by one, and returned; glibc's own largest value."""

_HUGE_PAGE, _ADVICE = 2 << 20, 14  # MADV_HUGEPAGE in mman.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


def new_doubles(count: int, like: torch.Tensor) -> torch.Tensor:
    """So many float64 numbers on a device, with anything in them, in huge pages where the system has them.

    A sum over the parameters of a large model is one of the blocks that are returned to the system at every step.
    Taking it again in pages of 4 kB was up to a tenth of the step of a small vision transformer.
    """
    block = like.new_empty(count, dtype=torch.float64)
    if block.nbytes > _LARGEST_BLOCK and block.is_cpu and sys.platform == "linux":
        first = -(-block.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
        size = (block.data_ptr() + block.nbytes - first) // _HUGE_PAGE * _HUGE_PAGE
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _ADVICE)
    return block


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to `KEPT_BYTES` of freed memory; the first call in a process does it, for good.

    Returns:
        Whether it was done: not with another C library, not if `SWITCH` is 0, and not if the environment sets glibc's
        thresholds itself.
    """
    set_by_user = any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or os.environ.get(SWITCH) == "0" or set_by_user:
        return False
    set_option = getattr(_libc(), "mallopt", None)
    return set_option is not None and bool(
        set_option(_MMAP_THRESHOLD, _LARGEST_BLOCK) and set_option(_TRIM_THRESHOLD, KEPT_BYTES)
    )
