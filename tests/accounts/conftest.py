"""Books on both databases; every test that asks for one is run on each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.postgres import REQUIRED, Server, missing, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    why = missing()
    if why is not None:
        assert REQUIRED not in os.environ, why
        pytest.skip(why)
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """Where a new book can be made."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/accounts.db"
    return request.getfixturevalue("postgres").new_database()
