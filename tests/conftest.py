"""Settings and helpers that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# What a user's folder for such things would keep, compiled kernels above all, is kept in build/.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / "build" / "kept")
# Some virtual machines announce AMX and end the process that uses it, as torch does for bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Reproducible in CI, and machines may be slow: an example has no deadline. A failure is reported as it was found:
# making it smaller takes minutes where one example takes seconds, and `--hypothesis-profile=shrink` does it.
PROFILE = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("shrink", **PROFILE)
settings.register_profile("inosgd", **PROFILE, phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile("inosgd")


@pytest.fixture(autouse=True, scope="session")
def _dp_accounting_remembers() -> Iterator[None]:
    """dp-accounting takes its time, and many tests ask it about the same mechanisms: what it made of some is kept."""
    from dp_accounting.pld import privacy_loss_distribution as made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made, "from_gaussian_mechanism", lru_cache(maxsize=100)(made.from_gaussian_mechanism))
        yield


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    """One torch thread per test process: the suite already uses every core."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
