"""What owners and the model owner see, and what their forms do, on both databases."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from inosgd.accounts import schema
from inosgd.accounts.book import Accounts
from inosgd.accounts.requests import waiting
from inosgd.accounts.verification import verify_book
from inosgd.errors import AccountError, AccountExceededError, InvalidArgumentError
from inosgd.owners import Budget, OwnerTable
from inosgd.serve.app import application
from inosgd.serve.audit import lines
from inosgd.serve.links import links, make_link
from inosgd.serve.settings import Settings
from inosgd.units import JOINT
from tests.accounts.books import new_book, same_for_all, spent
from tests.serve.conftest import filled
from tests.serve.visiting import Visit, form_of, plain


def test_an_owner_sees_what_is_promised_spent_and_left(visit):
    words = visit("hospital").text()
    assert "at best 74 of 100 attempts succeed" in words or "at best 73 of 100 attempts succeed" in words
    assert "Guessing succeeds in 50" in words
    assert "50 % of your budget is left" in words or "49 % of your budget is left" in words
    assert "training 40 50 %" in words  # 40 steps, half of the budget
    assert "ε = 1 at δ = 1e-05" in words
    assert "clinic" not in words
    assert "registry" not in words


def test_no_lowering_promises_less_than_was_spent(visit):
    owner = visit("hospital")
    (spent,) = re.findall(r"it would be at best (\d+) of 100", owner.text())
    assert "was larger" not in owner.text()
    assert f"at best {spent} succeed" in owner.text("/change?action=lower&epsilon=0.01")
    owner.change("lower", 0.01)
    assert f"at best {spent} of 100 attempts succeed" in owner.text()
    assert "published while your budget was larger" in owner.text()


def test_changes_on_both_databases(url):
    with filled(url) as book:
        owner = Visit(application(Settings(url)), make_link(book, "patients", "hospital"))
        assert owner.change("lower", 0.8).headers["location"].startswith("/done?entry=")
        assert book.standing("patients", "hospital").budget.epsilon == 0.8
        assert "Your budget is 0.7 now" in owner.text(owner.change("lower", "0,7").headers["location"])
        owner.change("pause")
        assert book.standing("patients", "hospital").state == "paused"
        assert book.left("patients", book.table("patients")).divergences[1] == 0
        assert "Paused." in owner.text()
        owner.change("resume")
        assert book.standing("patients", "hospital").epsilon_in_force == 0.7
        owner.change("raise", 2)
        assert book.standing("patients", "hospital").budget.epsilon == 0.7  # it waits
        assert "a budget of 2" in owner.text()
        model = Visit(application(Settings(url)), make_link(book))
        page = model.get("/").text
        assert "hospital asks to raise its budget from 0.7 to 2" in plain(page)
        assert model.post("/request", form_of(page, "/request", verdict="accept")).status_code == 303
        assert book.standing("patients", "hospital").budget.epsilon == 2
        owner.change("withdraw")
        assert "Withdrawn." in owner.text()
        assert owner.get("/change?action=resume").status_code == 400
        assert verify_book(book).findings == []
        actions = [line.action for line in lines(book)]
        assert actions[:3] == ["withdraw", "accepted a request", "log-in"]
        assert actions.count("link made") == 2
        changed = [entry.fields for entry in book.entries(kind="budgets")]
        assert [each["state"] for each in changed] == ["open", "open", "paused", "open", "open", "withdrawn"]
        assert all(each["by"].startswith("link ") for each in changed)


def test_requests_are_declined_taken_back_and_given_up_with_other_changes(book, visit):
    owner, model = visit("clinic"), visit(None)
    owner.change("raise", 3)
    model.post("/request", form_of(model.get("/").text, "/request", verdict="decline"))
    assert waiting(book) == []
    owner.change("raise", 3)
    owner.change("raise", 4)
    assert [each.budget.epsilon for each in waiting(book)] == [4]
    owner.change("take+back")
    assert waiting(book) == []
    owner.change("raise", 5)
    owner.change("lower", 0.4)
    assert waiting(book) == []


@pytest.mark.parametrize(
    ("action", "epsilon", "why"),
    [
        ("lower", "0.6", "give a smaller one"),
        ("raise", "0.4", "give a larger one"),
        ("lower", "none", "greater than 0"),
        ("lower", "nan", "greater than 0"),
        ("raise", "inf", "greater than 0"),
        ("resume", "", "not paused"),
        ("take back", "", "no request"),
        ("double", "", "choose one of"),
    ],
)
def test_what_cannot_be_asked_for_is_said(visit, action, epsilon, why):
    answer = visit("clinic").get(f"/change?action={action}&epsilon={epsilon}")
    assert answer.status_code == 400
    assert why in plain(answer.text)


def test_the_consequence_is_shown_before_anything_changes(book, visit):
    before = book.head
    words = visit("hospital").text("/change?action=lower&epsilon=0.6")
    assert "What changes now" in words
    assert "What cannot be taken back" in words
    assert "stays spent" in words
    assert "Nothing of it is left" in words
    assert "for good" in visit("hospital").text("/change?action=withdraw")
    assert book.head == before


def test_a_receipt_of_the_page_is_checked_without_inosgd(book, visit, tmp_path):
    owner = visit("hospital")
    owner.change("pause")
    (tmp_path / "receipt.json").write_bytes(owner.get("/receipt.json").content)
    (tmp_path / "check.py").write_bytes(owner.get("/check_receipt.py").content)

    def check(name: str) -> subprocess.CompletedProcess:
        head = "{}:{}".format(*book.head)
        command = [sys.executable, "-I", "check.py", name, head]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert check("receipt.json").stdout.startswith("valid: hospital was charged")
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert "clinic" not in json.dumps(receipt)
    last = receipt["entries"][-1]
    receipt["entries"][-1]["text"] = last["text"].replace("paused", "open")  # as if there had been no pause
    (tmp_path / "tampered.json").write_text(json.dumps(receipt))
    tampered = check("tampered.json")
    assert tampered.returncode == 1
    assert "was edited" in tampered.stderr
    left_out = {**receipt, "entries": receipt["entries"][:-1]}
    (tmp_path / "left-out.json").write_text(json.dumps(left_out))
    assert "does not end at the published head" in check("left-out.json").stderr


def test_the_model_owner_sees_all_owners_trainings_and_a_plan(book, visit):
    model = visit(None)
    visit("registry").change("pause")
    words = model.text()
    for name in ("clinic", "hospital", "registry"):
        assert name in words
    assert "registry paused 0 50 %" in words  # what was spent is shown as it is
    assert "clinic" not in model.text("/?search=hosp").split("Owners")[1].split("A plan")[0]
    planned = model.text("/plan?collection=patients&steps=50&batch=100&variant=scale")
    assert "Noise scale" in planned
    assert "Nothing is left to registry" in planned
    for wrong in ("steps=0", "steps=x", "batch=-1", "variant=magic", "collection=none"):
        name, _, value = wrong.partition("=")
        asked = {"collection": "patients", "steps": "50", "batch": "100", "variant": "scale", name: value}
        assert model.get("/plan?" + "&".join(f"{key}={each}" for key, each in asked.items())).status_code == 400


def test_owners_of_units_that_they_share_have_links_and_the_units_have_none(tmp_path):
    names = ("a", "b", f"a{JOINT}b")
    table = OwnerTable(names, np.array([1.0, 2.0, 1.0]), np.full(3, 1e-5), np.array([5, 5, 2]), "patient")
    url = f"sqlite:///{tmp_path}/a.db"
    with new_book(url, table) as book:
        with pytest.raises(InvalidArgumentError, match="several owners"):
            make_link(book, "patients", names[2])
        owner = Visit(application(Settings(url)), make_link(book, "patients", "b"))
        assert "one of your patients was used" in owner.text()
        owner.change("pause")
        assert book.left("patients", book.table("patients")).divergences.tolist()[1:] == [0, 0]  # theirs too
        owner.change("resume")
        assert book.left("patients", book.table("patients")).divergences.min() > 0
        assert verify_book(book).findings == []


def test_a_book_of_the_schema_before_is_brought_to_this_one(tmp_path, monkeypatch):
    url, new = f"sqlite:///{tmp_path}/old.db", schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", new[:1])
    with Accounts.create(url) as old:
        old.database.rows("SELECT 1")
    monkeypatch.setattr(schema, "MIGRATIONS", new)
    with Accounts.open(url) as book:
        assert links(book) == []
        assert verify_book(book).findings == []


def test_pausing_charges_nothing_and_an_owner_that_withdrew_cannot_be_brought_back(book):
    before = spent(book)
    book.set_budgets("patients", {"clinic": Budget(epsilon=0.5, delta=1e-5)}, state="paused")
    with pytest.raises(AccountExceededError, match="'clinic'"):
        book.reserve("patients", ("clinic", "hospital", "registry"), same_for_all(0.001, 100.0, 1))
    book.set_budgets("patients", {"clinic": Budget(epsilon=0.5, delta=1e-5)}, state="withdrawn")
    with pytest.raises(AccountError, match="has withdrawn"):
        book.set_budgets("patients", {"clinic": Budget(epsilon=9.0, delta=1e-5)})
    assert spent(book) == before
    assert verify_book(book).findings == []
    book.database.rows("UPDATE standings SET state = 'open'")
    assert "do not stand where its entries say" in verify_book(book).findings[0]
