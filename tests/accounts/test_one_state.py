"""What is read of one owner is of one state of the book, while other owners change their budgets."""

from contextlib import nullcontext

import numpy as np
import pytest

from inosgd.accounts.book import Accounts
from inosgd.accounts.views import described_owner
from inosgd.owners import Budget, OwnerTable
from inosgd.serve.changes import account_of
from inosgd.serve.links import make_link, visitor_with
from tests.accounts.books import new_book

CALM, RESTLESS = ("b", "d", "f"), ("a", "c", "e", "g")
SAME = OwnerTable(tuple("abcdefg"), np.full(7, 1.0), np.full(7, 1e-5), np.full(7, 10))


@pytest.fixture
def book(url):
    """A book whose owners all have the same budget, and so are one class."""
    with new_book(url, SAME) as made:
        yield made


@pytest.fixture
def disturb(url, book, monkeypatch):
    """From the call on, after every statement that the book reads, an owner changes its budget: classes are split."""
    plain, left = book.database.rows, list(RESTLESS)

    def rows(statement, values=()):
        found = plain(statement, values)
        if left:
            with Accounts.open(url) as other:
                other.set_budgets("patients", {left.pop(): Budget(epsilon=0.1 + 0.1 * len(left), delta=1e-5)})
        return found

    return lambda: monkeypatch.setattr(book.database, "rows", rows)


def seen_by(book, owner):
    return described_owner(book, "patients", owner)["epsilon"]


@pytest.mark.parametrize("owner", CALM)
def test_an_owner_is_shown_its_own_budget(book, disturb, owner):
    disturb()
    assert seen_by(book, owner) == 1.0
    assert book.standing("patients", owner).budget.epsilon == 1.0


def test_without_one_state_another_owners_budget_is_shown(book, disturb, monkeypatch):
    """The control: statement by statement, a class of one state meets the columns of another."""
    monkeypatch.setattr(book.database, "reading", nullcontext)
    disturb()
    assert seen_by(book, "b") < 1.0


def test_what_a_page_says_of_an_account_is_of_one_state(book, disturb):
    visitor = visitor_with(book, make_link(book, "patients", "b"))
    disturb()
    account = account_of(book, visitor)
    assert (account.standing.budget.epsilon, account.collection.epsilons.tolist()) == (1.0, [1.0])
