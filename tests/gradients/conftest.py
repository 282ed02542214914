"""Fixtures of the engines' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inosgd.gradients import checks, invariance
from inosgd.gradients.seen import Seen

PROBED_SIZES = invariance._sizes


def leave_values_unchecked(patched: pytest.MonkeyPatch) -> None:
    def trusting(*_: object, seen: Seen, **__: object) -> bool:
        seen.anything = True
        return True

    patched.setattr("inosgd.gradients.checks.check_values", trusting)


def leave_sizes_unprobed(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(invariance, "_sizes", lambda *_: invariance.Sizes(8, agrees=_All()))


@pytest.fixture(autouse=True)
def _nothing_is_known_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in one test does not hold in the next, where kernels may be patched."""
    monkeypatch.setattr(invariance, "_found", {})
    monkeypatch.setattr(checks, "_of_kinds", {})


@pytest.fixture
def values_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No values are checked: for tests that count passes, or that break what is checked later than it is."""
    leave_values_unchecked(monkeypatch)


class _All(dict[int, bool]):
    """Every size agrees."""

    def __contains__(self, _: object) -> bool:
        return True

    def __getitem__(self, _: int) -> bool:
        return True


@pytest.fixture(scope="module")
def sizes_unprobed() -> Iterator[None]:
    """No sizes of batches are probed: for tests of what is computed, which use a new model every time."""
    with pytest.MonkeyPatch.context() as patched:
        leave_sizes_unprobed(patched)
        yield
