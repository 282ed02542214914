"""``inosgd serve``, and the links that open its page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from inosgd.accounts.book import Accounts
from inosgd.accounts.verification import verify_book
from inosgd.owners import Budget, OwnerTable
from inosgd.serve.links import visitor_with
from tests.accounts.books import new_book

URL = "sqlite:///accounts.db"


@pytest.fixture
def book(inosgd):
    with new_book(URL) as opened:
        yield opened


def test_links_are_made_listed_and_revoked(inosgd, book):
    made = inosgd("account", "link", URL, "--owner", "clinic", "--at", "https://a.example/")
    address, _, token = made.out.strip().partition("#")
    assert address == "https://a.example/enter"
    assert visitor_with(book, token).owner == "clinic"
    model = inosgd("account", "link", URL, "--model-owner").out.strip().partition("#")[2]
    assert visitor_with(book, model).is_model_owner
    listed = inosgd("account", "links", URL)
    assert "clinic" in listed.out
    assert "the model owner" in listed.out
    found = json.loads(inosgd("account", "links", URL, "--json").out)
    assert {each["visitor"]["owner"] for each in found} == {"clinic", None}
    for text in (listed.out, json.dumps(found)):
        assert token.partition(".")[2] not in text
    assert inosgd("account", "revoke", URL, token.partition(".")[0]).code == 0
    assert visitor_with(book, token) is None


@pytest.mark.parametrize("wrong", [(), ("--owner", "clinic", "--model-owner"), ("--owner", "nobody")])
def test_a_link_is_of_one_role(inosgd, book, wrong):
    outcome = inosgd("account", "link", URL, *wrong)
    assert outcome.code == 2
    assert "owner" in outcome.err


def test_the_command_line_does_not_end_a_pause(inosgd, book):
    book.set_budgets("patients", {"clinic": Budget(epsilon=0.5, delta=1e-5)}, state="paused")
    outcome = inosgd("account", "budget", URL, "clinic", 2)
    assert outcome.code == 2
    assert "it has paused" in outcome.err
    assert (
        json.loads(inosgd("account", "show", URL, "--json", "--owner", "clinic").out)["owners"]["clinic"]["left"] == 0
    )


def test_where_the_page_listens_is_checked_first(inosgd, book):
    assert "--behind-proxy" in inosgd("serve", URL, "--host", "0.0.0.0").err
    assert "https://budgets.example.org" in inosgd("serve", URL, "--behind-proxy", "http://a.example").err
    assert "there is no book" in inosgd("serve", "sqlite:///none.db").err


def test_it_serves_in_a_process_of_its_own(inosgd, book, tmp_path):
    command = [sys.executable, "-m", "inosgd", "serve", URL, "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert "Open my account" in answer.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert out == ""


def test_many_standings_are_written_at_once(tmp_path):
    names = tuple(f"owner {number}" for number in range(1500))
    table = OwnerTable(names, np.full(1500, 1.0), np.full(1500, 1e-5), np.full(1500, 3))
    with Accounts.create(f"sqlite:///{tmp_path}/many.db") as many:
        many.open_collection("all", table)
        many.set_budgets("all", {"owner 7": Budget(epsilon=0.9, delta=1e-5)}, state="paused")
        many.set_budgets("all", {name: Budget(epsilon=0.8, delta=1e-5) for name in names[100:1400]})
        standings = many.standings(many.collection("all"))
        assert len(standings) == 1301
        assert standings["owner 7"].state == "paused"
        assert verify_book(many).findings == []
