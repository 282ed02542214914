"""Many owners at once, beside a training; `checks/serve.py` is the thorough form, with 100 owners and processes."""

from __future__ import annotations

import threading

import numpy as np

from inosgd.accounts.book import Accounts
from inosgd.accounts.draws import Draw
from inosgd.accounts.requests import waiting
from inosgd.accounts.verification import verify_book
from inosgd.ledger.records import Position
from inosgd.owners import OwnerTable
from inosgd.serve.links import make_link
from tests.accounts.books import TABLE, new_book, plan_within
from tests.serve.clicking import ACTIONS, click
from tests.serve.running import served

OWNERS = 12


def test_owners_who_click_at_once_lose_no_change_and_disturb_no_training(tmp_path):
    url, names = f"sqlite:///{tmp_path}/a.db", tuple(f"owner {number}" for number in range(OWNERS))
    table = OwnerTable(names, np.full(OWNERS, 1.0), np.full(OWNERS, 1e-5), np.full(OWNERS, 10))
    with new_book(url) as book:
        book.open_collection("others", table)
        tokens = {name: make_link(book, "others", name) for name in names}
        done: list[int] = []
        trains = threading.Thread(target=_train, args=(url, done))
        with served(url) as settings:
            trains.start()
            clicked = click(settings.origin, tokens)
            trains.join(60)
        assert clicked.failures == []
        entries = len(ACTIONS) - 1
        assert clicked.confirmed == dict.fromkeys(names, entries)
        collection = book.collection("others")
        assert len(book.entries(collection.number, "budgets")) == OWNERS * entries
        assert [book.standing("others", name).budget.epsilon for name in names] == [0.8] * OWNERS
        assert len(waiting(book)) == OWNERS
        assert done == [40]
        assert verify_book(book).findings == []


def _train(url: str, done: list[int]) -> None:
    with Accounts.open(url) as book:
        plan = plan_within(book, TABLE)
        draw = Draw.reserve(book, "patients", plan, heeding=True, block=1)
        for step in range(plan.steps):
            draw.before(plan.at(step), Position(1, "0" * 64))
        done.append(draw.finish().committed)
