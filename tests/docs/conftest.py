"""Commands that pages show keep nothing in the user's folders."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _kept_with_the_tests(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
