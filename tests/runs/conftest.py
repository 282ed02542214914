"""Runs are tested with an engine that is trusted."""

from __future__ import annotations

import pytest

from tests.gradients.conftest import sizes_unprobed

__all__ = ["sizes_unprobed"]


@pytest.fixture(autouse=True)
def _engine_trusted(monkeypatch, sizes_unprobed):
    """What engines try with every new model, and what that guards, is tested with them; it takes most of a tiny run."""
    monkeypatch.setattr("inosgd.gradients.checks.check_values", lambda *_, **__: True)
