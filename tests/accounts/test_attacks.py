"""Attacks on a book: forged and replayed receipts, edits, old copies."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inosgd.accounting.selection import NegativeBinomialTrials, PoissonTrials
from inosgd.accounts.book import Accounts
from inosgd.accounts.chain import Head, header_hash
from inosgd.accounts.charge import Charge
from inosgd.accounts.receipts import check_script, receipt_of
from inosgd.accounts.verification import verify_book
from inosgd.errors import AccountError
from inosgd.owners import Budget, OwnerTable
from tests.accounts.books import NAMES, TABLE, new_book, plan_within, same_for_all

SCRIPT = Path(__file__).parents[2] / "src" / "inosgd" / "accounts" / "check_receipt.py"


def busy_book(url: str, tunings: int = 0) -> Accounts:
    """Trainings, perhaps tunings, a change of budgets that splits classes, another collection."""
    book = new_book(url)
    state = book.reserve("patients", NAMES, same_for_all(0.01, 4.0, 20))
    book.commit(state.id, 15)
    book.settle(state.id, 12)
    book.open_collection("others", TABLE)
    book.reserve("others", NAMES, same_for_all(0.02, 4.0, 10))
    book.set_budgets("patients", {"hospital": Budget(epsilon=2.0, delta=1e-5)})
    for trials in (PoissonTrials(3.0), NegativeBinomialTrials.geometric(3.0))[:tunings]:
        plan = plan_within(book, share=0.1, steps=5)
        tuning = book.reserve("patients", NAMES, Charge.of_selection([plan], trials), purpose="tuning")
        book.commit(tuning.id, 1)
    book.look("patients", "compare")
    return book


def checked(receipt: dict, head: Head, folder: Path) -> subprocess.CompletedProcess:
    """What the script says, in a process that cannot import inosgd."""
    (folder / "receipt.json").write_text(json.dumps(receipt))
    shutil.copy(SCRIPT, folder / "check_receipt.py")
    command = [sys.executable, "-I", "check_receipt.py", "receipt.json", f"{head.number}:{head.hash}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_script_is_short_and_needs_nothing():
    assert len(SCRIPT.read_text().splitlines()) <= 100
    assert "inosgd." not in SCRIPT.read_text()
    assert check_script() == SCRIPT.read_text()
    alone = subprocess.run([sys.executable, "-I", SCRIPT], capture_output=True, text=True)
    assert alone.returncode == 1
    assert alone.stderr.strip().endswith("python check_receipt.py RECEIPT.json NUMBER:HASH.")


def test_a_receipt_is_valid_for_every_owner(url, tmp_path):
    with busy_book(url, tunings=2) as book:
        for owner in NAMES:
            done = checked(receipt_of(book, "patients", owner), book.head, tmp_path)
            assert done.returncode == 0, done.stderr
            collection = book.collection("patients")
            spent = collection.spent[book.class_of(collection, book.place(collection, owner))] * 1e-12
            assert f"{owner} was charged {spent:.6g} of" in done.stdout


def test_a_receipt_among_many_owners_proves_its_own_row(tmp_path):
    owners = 5000
    table = OwnerTable(
        tuple(f"owner {k}" for k in range(owners)),
        np.linspace(0.5, 4, owners),
        np.full(owners, 1e-5),
        np.ones(owners),
    )
    with new_book(f"sqlite:///{tmp_path}/a.db", table) as book:
        book.reserve("patients", table.names, same_for_all(0.001, 4.0, 20, owners))
        receipt = receipt_of(book, "patients", "owner 3333")
        assert checked(receipt, book.head, tmp_path).returncode == 0
        assert len(json.dumps(receipt)) < 60_000
        receipt["place"] = 3332  # the row of a neighbour, in the same piece
        assert "another one" in checked(receipt, book.head, tmp_path).stderr


def edited_price(receipt: dict) -> None:
    """A cheaper price in the piece of an array."""
    proof = next(each for each in receipt["proofs"].values() if "prices" in each)["prices"]
    content = np.frombuffer(base64.b64decode(proof["content"]), dtype="<i8") // 2
    proof["content"] = base64.b64encode(content.tobytes()).decode()


def dropped_entry(receipt: dict) -> None:
    del receipt["entries"][1]


def hidden_charge(receipt: dict) -> None:
    """A charge that is said to be of another collection."""
    receipt["entries"][1]["collection"] = 9


def withheld_body(receipt: dict) -> None:
    receipt["entries"][1]["text"] = None


def edited_body(receipt: dict) -> None:
    receipt["entries"][2]["text"] = receipt["entries"][2]["text"].replace('"releases":15', '"releases":1')


def other_owner(receipt: dict) -> None:
    receipt["owner"] = "registry"


def chained_anew(receipt: dict) -> None:
    """An edited body with all hashes computed again: the chain holds, and ends elsewhere."""
    edited_body(receipt)
    import hashlib

    previous = "0" * 64
    for entry in receipt["entries"]:
        if entry["text"] is not None:
            entry["body"] = hashlib.sha256(entry["text"].encode()).hexdigest()
        entry["previous"] = previous
        previous = header_hash({key: value for key, value in entry.items() if key != "text"})


@pytest.mark.parametrize(
    "forge", [edited_price, dropped_entry, hidden_charge, withheld_body, edited_body, other_owner, chained_anew]
)
def test_a_forged_receipt_is_not_valid(forge, tmp_path):
    with busy_book(f"sqlite:///{tmp_path}/a.db") as book:
        receipt = receipt_of(book, "patients", "clinic")
        forge(receipt)
        done = checked(receipt, book.head, tmp_path)
        assert done.returncode != 0
        assert "NOT VALID" in done.stderr


def test_a_replayed_receipt_is_not_valid_against_the_newest_head(tmp_path):
    with busy_book(f"sqlite:///{tmp_path}/a.db") as book:
        old, old_head = receipt_of(book, "patients", "clinic"), book.head
        book.reserve("patients", NAMES, same_for_all(0.001, 4.0, 1))
        assert checked(dict(old), old_head, tmp_path).returncode == 0
        old = json.loads(json.dumps(receipt_of(book, "patients", "clinic")))
        old["entries"] = old["entries"][: old_head.number]
        assert "published head" in checked(old, book.head, tmp_path).stderr


def test_a_receipt_says_of_which_collection_it_is(tmp_path):
    """The same owner has been charged less elsewhere: such a receipt is valid, and is not that of the patients."""
    with busy_book(f"sqlite:///{tmp_path}/a.db") as book:
        for name in ("patients", "others"):
            done = checked(receipt_of(book, name, "clinic"), book.head, tmp_path)
            assert done.stdout.endswith(f"in {name!r}\n")


def declared_book(url: str) -> Accounts:
    """A programme of two trainings, the second of which has begun."""
    book = new_book(url)
    book.declare("patients", NAMES, [same_for_all(0.05, 4.0, 20), same_for_all(0.02, 3.0, 30)])
    book.commit(book.reserve("patients", NAMES, same_for_all(0.02, 3.0, 30)).id, 10)
    return book


def test_the_receipt_of_a_programme_says_what_is_not_checked(tmp_path):
    with declared_book(f"sqlite:///{tmp_path}/a.db") as book:
        for owner in NAMES:
            done = checked(receipt_of(book, "patients", owner), book.head, tmp_path)
            assert done.returncode == 0, done.stderr
            assert "by PLD, which `inosgd account verify` checks" in done.stdout


UNDECLARED = {
    "as declared": None,
    "never declared": "not part of the programme",
    "another mechanism": "not one that the collection's programme has left",
    "more steps": "not one that the collection's programme has left",
    "twice": "not one that the collection's programme has left",
    "late": "declared before the first training",
    "another part": "is said to be another",
    "lowered": "does not allow the programme",
}


@pytest.mark.parametrize("case", UNDECLARED)
def test_nothing_is_free_because_a_book_calls_it_a_programme(case, tmp_path):
    """A model owner that writes its book by hand has heads of its own: the first case is the control."""
    url, late = f"sqlite:///{tmp_path}/a.db", case in ("never declared", "late")
    part, rate, noise, steps = (1, 0.02, 3.0, 30) if case == "twice" else (0, 0.05, 4.0, 20)
    rate, steps = 0.5 if case == "another mechanism" else rate, 2000 if case == "more steps" else steps
    charge = same_for_all(rate, noise, steps)
    with new_book(url) if late else declared_book(url) as book:
        if case == "late":
            book.reserve("patients", NAMES, same_for_all(0.01, 4.0, 1))
        if case == "lowered":
            book.set_budgets("patients", {"clinic": Budget(epsilon=0.05, delta=1e-5)})
        with book._writing() as write:
            if case == "late":
                write.entry("declared", 1, {"trainings": [charge.to_json()]}, {"mechanisms 0": charge.table})
            fields = {"reservation": "free", "purpose": "training", "plan": None, "begun": 0, "releases": [steps]}
            fields |= {**charge.to_json(), "programme": [2, 1 if case == "another part" else part]}
            arrays = {"mechanisms": charge.table, "prices": np.zeros((3, 1), dtype=np.int64)}
            write.entry("reserved", 1, fields, arrays)
            write.entry("committed", 1, {"reservation": "free", "releases": steps, "ledger": None})
        done = checked(receipt_of(book, "patients", "clinic"), book.head, tmp_path)
        assert (done.returncode == 0) == (case in ("as declared", "lowered")), done.stdout + done.stderr
        found = [finding for finding in verify_book(book).findings if "cannot stand there" in finding]
        assert len(found) == (case != "as declared")
        assert all(str(UNDECLARED[case]) in finding for finding in found)


def test_entries_that_do_not_belong_there_are_noticed(tmp_path):
    """A charge that is filed under another collection is in no receipt; opened again, nothing would be spent."""
    cases = {
        "is of collection 1": ("committed", 2, {"releases": 16, "ledger": None}),
        "does not end as reserved": ("settled", 1, {"releases": 0, "state": "reserved"}),
        "was opened before": ("opened", 1, {}),
    }
    for number, (expected, (kind, collection, fields)) in enumerate(cases.items()):
        with new_book(f"sqlite:///{tmp_path}/{number}.db") as book:
            book.open_collection("others", TABLE)
            state = book.reserve("patients", NAMES, same_for_all(0.01, 4.0, 20))
            book.commit(state.id, 15)
            assert verify_book(book).good
            opened, arrays = book.entries(1, "opened")[0], {}
            if kind == "opened":
                fields = {name: value for name, value in opened.fields.items() if name != "arrays"}
                arrays = {name: book.array(opened.number, name) for name in opened.fields["arrays"]}
            with book._writing() as write:
                write.entry(kind, collection, {"reservation": state.id, **fields}, arrays)
            assert any(expected in finding for finding in verify_book(book).findings), expected


@pytest.mark.parametrize(
    ("kind", "releases"), [("committed", 16), ("committed", 21), ("committed", 9), ("settled", -1)]
)
def test_no_more_is_committed_than_was_reserved(kind, releases, tmp_path):
    """Nor less than before, nor given back than was taken; the first case is the control."""
    with new_book(f"sqlite:///{tmp_path}/a.db") as book:
        state = book.reserve("patients", NAMES, same_for_all(0.01, 4.0, 20))
        book.commit(state.id, 15)
        with book._writing() as write:
            write.entry(kind, 1, {"reservation": state.id, "releases": releases, "ledger": None})
        done = checked(receipt_of(book, "patients", "clinic"), book.head, tmp_path)
        assert (done.returncode == 0) == (releases == 16), done.stdout + done.stderr


EDITS = {
    "body": ("UPDATE entries SET body = replace(body, '\"releases\":15', '\"releases\":1') WHERE number = 3", "edited"),
    "kind": ("UPDATE entries SET kind = 'looked' WHERE number = 3", "edited"),
    "time": ("UPDATE entries SET time = '2001-01-01T00:00:00.000000+00:00' WHERE number = 3", "edited"),
    "removed": ("DELETE FROM entries WHERE number = 4", "missing"),
    "spent": ("UPDATE collections SET spent = zeroblob(length(spent)) WHERE id = 1", "spent is not what"),
    "budget": ("UPDATE collections SET epsilons = deltas WHERE id = 1", "epsilons is not what"),
    "array": ("UPDATE arrays SET content = zeroblob(length(content)) WHERE entry = 2 AND name = 'prices'", "array"),
    "array gone": ("DELETE FROM arrays WHERE entry = 2 AND name = 'mechanisms'", "array"),
    "state": ("UPDATE reservations SET state = 'void'", "reservations"),
    "owner": ("UPDATE owners SET name = 'other' WHERE name = 'clinic' AND collection = 1", "owners"),
    "collection": ("UPDATE collections SET name = 'other' WHERE id = 2", "collections"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_book_is_noticed(edit, tmp_path):
    statement, expected = EDITS[edit]
    busy_book(f"sqlite:///{tmp_path}/a.db").close()
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with Accounts.open(f"sqlite:///{tmp_path}/a.db") as book:
        findings = verify_book(book).findings
    assert any(expected in finding for finding in findings), findings


def test_cheap_prices_are_noticed_even_if_the_chain_was_made_with_them(tmp_path, monkeypatch):
    honest = Charge.prices
    monkeypatch.setattr(Charge, "prices", lambda self, orders: honest(self, orders) // 2)
    with new_book(f"sqlite:///{tmp_path}/a.db") as book:
        book.reserve("patients", NAMES, same_for_all(0.01, 4.0, 20))
        assert any("by dp-accounting" in finding for finding in verify_book(book).findings)
        receipt = receipt_of(book, "patients", "clinic")
        assert "a price is too low" in checked(receipt, book.head, tmp_path).stderr


@pytest.mark.parametrize("case", ["honest", "another's class", "brought back"])
def test_no_entry_moves_an_owner_to_what_another_has_left_or_brings_it_back(case, tmp_path):
    """Written with its tables and hashes, as a party that may write to the database would."""
    with new_book(f"sqlite:///{tmp_path}/a.db") as book:
        book.set_budgets("patients", {"clinic": Budget(epsilon=0.4, delta=1e-5)}, state="withdrawn")
        collection = book.collection("patients")
        members, budgets = book.members(collection), np.column_stack([collection.epsilons, collection.deltas])
        if case == "another's class":
            members = members[[0, 2, 1]]
        if case == "brought back":
            budgets[members[0], 0] = 0.4
        arrays = {"members": members, "parents": np.zeros(0, "<i4"), "budgets": budgets}
        with book._writing() as write:
            entry = write.entry("budgets", collection.number, {}, arrays)
            book.store(replace(collection, members=entry.number, epsilons=budgets[:, 0]))
        said = {"another's class": "does not come from its own", "brought back": "not what its owner asked for"}
        findings = verify_book(book).findings
        assert findings == [] if case == "honest" else said[case] in findings[0], findings


@pytest.mark.parametrize(("price", "good"), [(0, True), (-1, False)])
def test_no_release_gives_anything_back(price, good, tmp_path, monkeypatch):
    """A price below zero, within what roundings may take off, times many releases would hide all that was spent."""
    honest = Charge.prices
    monkeypatch.setattr(Charge, "prices", lambda self, orders: np.full_like(honest(self, orders), price))
    with new_book(f"sqlite:///{tmp_path}/a.db") as book:
        state = book.reserve("patients", NAMES, same_for_all(0.0, 4.0, 10**5))
        book.commit(state.id, 10**5)
        assert verify_book(book).good == good
        assert (checked(receipt_of(book, "patients", "clinic"), book.head, tmp_path).returncode == 0) == good


def test_an_old_copy_of_the_book_is_noticed_through_a_published_head(tmp_path):
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "a.db"
    with busy_book(url) as book:
        book._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "old.db")
    with Accounts.open(url) as book:
        running = book.reserve("patients", NAMES, same_for_all(0.001, 4.0, 5))
        published = book.head
        book._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "old.db", path)
    with Accounts.open(url) as book:
        assert verify_book(book).good  # by itself it is whole
        assert any("old copy" in finding for finding in verify_book(book, published).findings)
        with pytest.raises(AccountError, match="old copy"):
            book.commit(running.id, 5)  # a training that goes on notices by itself
        book.reserve("patients", NAMES, same_for_all(0.001, 4.0, 3))
        assert any("not the one that was published" in finding for finding in verify_book(book, published).findings)
