"""Settings and helpers that all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from tests.properties import FEW, MANY

# What a user's folder for such things would keep, compiled kernels above all, is kept in build/.
TESTS = Path(__file__).parent
os.environ["XDG_CACHE_HOME"] = str(TESTS.parent / "build" / "kept")
# Some virtual machines announce AMX and end the process that uses it, as torch does for bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# One thread per test process, numpy's too: the suite already uses every core. Where a test asks torch for more, a
# thread that waits sleeps; in a loop it would take the core that the others need, and minutes of the suite.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

# Reproducible in CI, and machines may be slow: an example has no deadline. A failure is reported as it was found:
# making it smaller takes minutes where one example takes seconds, and `--hypothesis-profile=shrink` does it.
PROFILE = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
AS_FOUND = {"phases": [Phase.explicit, Phase.reuse, Phase.generate]}
settings.register_profile("shrink", **PROFILE)
settings.register_profile("inosgd", **PROFILE, **AS_FOUND, max_examples=FEW)
settings.register_profile("thorough", **PROFILE, **AS_FOUND, max_examples=MANY)
settings.load_profile("inosgd")


def pytest_configure(config: pytest.Config) -> None:
    """`-m long` tries many examples of every property."""
    if config.option.markexpr == "long":
        settings.load_profile("thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every property is a short form and a long one."""
    if config.option.markexpr == "long":
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker("long")


def pytest_collection_finish() -> None:
    """What was imported is there to stay: garbage is not looked for among it again and again."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _dp_accounting_remembers() -> Iterator[None]:
    """dp-accounting takes its time, and many tests ask it about the same mechanisms: what it made of some is kept."""
    from dp_accounting.pld import privacy_loss_distribution as made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made, "from_gaussian_mechanism", lru_cache(maxsize=100)(made.from_gaussian_mechanism))
        yield


@pytest.fixture(autouse=True, scope="session")
def _disks_are_not_waited_for() -> Iterator[None]:
    """No test cuts the power, and waiting for tens of thousands of files takes as long as the small trainings of tests.

    What is handed to the disk, and in which order, is tested in `tests/test_files.py` and
    `tests/ledger/test_records.py`; that account books wait, of each book here.
    """
    from inosgd.accounts.database import SqliteDatabase

    made = SqliteDatabase.__init__

    def opened(self: SqliteDatabase, path: Path, *, create: bool) -> None:
        made(self, path, create=create)
        assert self.rows("PRAGMA synchronous") == [(2,)], "a book is on disk when a change returns: FULL is 2"
        self.rows("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, os.fstat, raising=False)  # like them, it refuses what is no open file
        patched.setattr(SqliteDatabase, "__init__", opened)
        yield


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    """What an environment says to numpy and to new processes, said to torch as well."""
    import torch

    torch.set_num_threads(1)


FOLDERS = {
    "analysis",
    "audit",
    "bench",
    "cli",
    "compare",
    "docs",
    "hostile",
    "integrations",
    "paper",
    "report",
    "runs",
    "serve",
    "study",
    "tuning",
}
TRUSTING = FOLDERS | {"test_averaging.py", "test_example_scripts.py", "test_noise_units.py", "test_optimizers.py"}
"""Tests that train, and whose subject is neither how gradients are computed nor what dp-accounting says."""


@pytest.fixture(autouse=True, scope="module")
def _engine_and_plans_are_trusted(request: pytest.FixtureRequest) -> Iterator[None]:
    """What engines try with a new model, and asking dp-accounting about a new plan, take most of a tiny training.

    Tests of other folders do both, as does the first page of the documentation.
    """
    if request.path.relative_to(TESTS).parts[0] not in TRUSTING:
        yield
        return
    from tests.gradients.conftest import leave_sizes_unprobed, leave_values_unchecked

    with pytest.MonkeyPatch.context() as patched:
        leave_values_unchecked(patched)
        leave_sizes_unprobed(patched)
        patched.setattr("inosgd.planning.planner.reference_excess", lambda _: (0.0, 0, 0.0))
        patched.setattr("inosgd.ledger.verification.reference_epsilons", lambda *_: {})
        yield


@pytest.fixture
def engine_tries_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """In those folders, for a test of what engines find in new models."""
    from inosgd.gradients.values import check_values
    from tests.gradients.conftest import PROBED_SIZES

    monkeypatch.setattr("inosgd.gradients.checks.check_values", check_values)
    monkeypatch.setattr("inosgd.gradients.invariance._sizes", PROBED_SIZES)


@pytest.fixture
def dp_accounting_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In those folders, for a test of plans and ledgers that dp-accounting checks."""
    from inosgd.planning.verification import reference_epsilons, reference_excess

    monkeypatch.setattr("inosgd.planning.planner.reference_excess", reference_excess)
    monkeypatch.setattr("inosgd.ledger.verification.reference_epsilons", reference_epsilons)
