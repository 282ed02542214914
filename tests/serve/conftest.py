"""Books with owners, visitors who have logged in, and a browser."""

from __future__ import annotations

import pytest

from inosgd.accounts.book import Accounts
from inosgd.ledger.records import Position
from inosgd.serve.app import application
from inosgd.serve.links import make_link
from inosgd.serve.settings import Settings
from tests.accounts.books import new_book, plan_within
from tests.accounts.conftest import postgres, url
from tests.report.conftest import chromium
from tests.serve.visiting import Visit

__all__ = ["chromium", "postgres", "url"]


@pytest.fixture
def book(tmp_path):
    """A book in which half of each budget was spent by a training."""
    with filled(f"sqlite:///{tmp_path}/accounts.db") as opened:
        yield opened


@pytest.fixture
def visit(book, tmp_path):
    """Visits of a page of the book, by whose link it is; None for the model owner."""
    app = application(Settings(f"sqlite:///{tmp_path}/accounts.db"))

    def visitor(owner: str | None, token: str | None = None) -> Visit:
        token = token or make_link(book, "patients" if owner else None, owner)
        return Visit(app, token)

    return visitor


def filled(url: str) -> Accounts:
    from inosgd.accounts.draws import Draw

    book = new_book(url)
    plan = plan_within(book)
    draw = Draw.reserve(book, "patients", plan)
    for step in range(plan.steps):
        draw.before(plan.at(step), Position(1, "0" * 64))
    draw.finish()
    return book
