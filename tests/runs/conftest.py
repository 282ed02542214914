"""Runs are tested with an engine that is trusted; what it tries with a new model is tested in `tests/gradients`."""

from __future__ import annotations

import pytest

from tests.gradients.conftest import engine_trusted, sizes_unprobed, values_unchecked

__all__ = ["engine_trusted", "sizes_unprobed", "values_unchecked"]


@pytest.fixture(autouse=True)
def _engine_trusted(engine_trusted):
    pass
