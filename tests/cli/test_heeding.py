"""Trainings that run while owners change their budgets in the account book."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inosgd.accounts import draws
from inosgd.accounts.book import Accounts
from inosgd.accounts.draws import Draw
from inosgd.accounts.filter import rooms
from inosgd.accounts.verification import verify_book
from inosgd.ledger.records import read_chain
from inosgd.owners import Budget
from inosgd.runs.folder import RunFolder
from inosgd.runs.verification import verify_run
from inosgd.study import running
from inosgd.training import train_step
from tests.study.writers import write_study

URL = "sqlite:///accounts.db"
RUN = Path("run")
ACCOUNT = ("[data]\n", f'account = "{URL}"\n\n[data]\n')


@pytest.fixture
def study(inosgd, tmp_path):
    path = write_study(tmp_path, ACCOUNT)
    assert inosgd("account", "create", URL, "--study", path, "--collection", "cases").code == 0
    return path


@pytest.fixture
def train(inosgd, study, monkeypatch):
    """Train, and do something to the book before the given steps."""

    def run(changes, command=("train", "study.toml", "--out", "run", "--every", 4)):
        left = dict(changes)

        def step_after_changes(trainer, state):
            if state.step in left:
                left.pop(state.step)()
            return train_step(trainer, state)

        with monkeypatch.context() as patched:
            patched.setattr("inosgd.training.train_step", step_after_changes)
            return inosgd(*command, "--no-report")

    return run


def change(owner: str, epsilon: float, state: str = "open") -> None:
    with Accounts.open(URL) as book:
        book.set_budgets("cases", {owner: Budget(epsilon=epsilon, delta=1e-5)}, state=state)


def records(kind: str) -> list[dict]:
    return [body for body in read_chain(RunFolder.open(RUN).ledger_path).bodies if body["kind"] == kind]


def checked() -> dict[str, float]:
    """What each owner has spent of its room in force, after book and run were verified."""
    run = RunFolder.open(RUN)
    assert verify_run(run).good
    with Accounts.open(URL) as book:
        assert verify_book(book).findings == []
        assert book.reservations(only_open=True) == []
        collection = book.collection("cases")
        members, names = book.members(collection), book.names(collection)
        return {name: collection.spent[c] / max(collection.rooms[c], 1) for name, c in zip(names, members, strict=True)}


@pytest.mark.parametrize("way", ["moved", "by another name", "copied"])
def test_a_run_that_goes_on_at_another_place_heeds_and_gives_back(train, inosgd, tmp_path, way):
    """A copy, whose original is where it was, does not: what that has reserved is not the copy's."""

    def interrupt():
        raise KeyboardInterrupt

    out = f"../{tmp_path.name}/run" if way == "by another name" else "run"
    assert train({6: interrupt}, ("train", "study.toml", "--out", out, "--every", 4)).code != 0
    change("hospital_b", 2.0, "paused")
    if way != "by another name":
        (shutil.move if way == "moved" else shutil.copytree)("run", "elsewhere")
    name = "run" if way == "by another name" else "elsewhere"
    done = inosgd("resume", name, "--no-report")
    if way == "copied":
        assert (done.code, "hospital_b" in done.err) == (2, True)
        name = "run"
        done = inosgd("resume", name, "--no-report")
    assert done.code == 0, done.err
    bodies = read_chain(RunFolder.open(Path(name)).ledger_path).bodies
    assert [body["account"]["entry"] for body in bodies if body["kind"] == "change"] == [last_entry("budgets")]
    with Accounts.open(URL) as book:
        assert verify_book(book).findings == []
        assert book.reservations(only_open=True) == []


def last_entry(kind: str) -> int:
    with Accounts.open(URL) as book:
        return book.entries(kind=kind)[-1].number


def test_a_lowered_budget_is_obeyed_at_the_next_step(train):
    seen = []

    def lower():
        change("hospital_b", 1.5)
        seen.append(RunFolder.open(RUN).read_ledger().steps)

    outcome = train({6: lower})
    assert outcome.code == 0, outcome.err
    run = RunFolder.open(RUN)
    ledger = run.read_ledger()
    assert ledger.steps == 12
    assert ledger.table.epsilons.tolist() == [1.0, 1.5, 8.0]
    (changed,) = records("change")
    assert changed["step"] == seen[0] == 6  # the step that was about to be taken was not
    with Accounts.open(URL) as book:
        assert changed["account"] == {"book": book.id, "entry": book.last_change(1)}
    assert len(run.plans()) == 2
    used = checked()
    assert all(0.9 < share <= 1 for share in used.values())  # every budget in force is used, and none is passed


def test_without_heeding_a_change_within_what_was_reserved_goes_unnoticed(train, monkeypatch):
    """The control of the test above: the look before each release is what makes the training obey."""
    monkeypatch.setattr(Draw, "_heed", lambda _: None)
    monkeypatch.setattr(draws, "BLOCKS", 1)
    outcome = train({6: lambda: change("hospital_b", 1.5)})
    assert outcome.code == 0
    assert records("change") == []
    assert checked()["hospital_b"] > 1


def test_a_committed_block_does_not_delay_obeying(train, monkeypatch):
    monkeypatch.setattr(draws, "BLOCKS", 1)  # all twelve releases are committed at once
    assert train({6: lambda: change("hospital_b", 1.5)}).code == 0
    assert [each["step"] for each in records("change")] == [6]
    assert max(checked().values()) <= 1


def test_a_paused_owner_rests_and_takes_part_again(train):
    steps = {}

    def pause():
        change("clinic", 8.0, "paused")

    def look_and_resume():
        terms = RunFolder.open(RUN).read_ledger().history.terms_at(8)
        steps["rates"] = terms.sampling_rates.tolist()
        change("clinic", 8.0)

    outcome = train({5: pause, 9: look_and_resume})
    assert outcome.code == 0, outcome.err
    assert steps["rates"][2] == 0 < steps["rates"][0]
    ledger = RunFolder.open(RUN).read_ledger()
    assert ledger.table.epsilons.tolist() == [1.0, 2.0, 8.0]  # a pause rolls nothing back
    assert ledger.history.terms_at(10).sampling_rates[2] > 0
    assert [each["step"] for each in records("change")] == [5, 9]
    checked()


def test_a_withdrawn_owner_leaves(train):
    assert train({5: lambda: change("clinic", 8.0, "withdrawn")}).code == 0
    ledger = RunFolder.open(RUN).read_ledger()
    assert ledger.table.sizes[2] == 0 < ledger.table.sizes[0]
    assert ledger.steps == 12
    checked()


def test_less_than_was_spent_rolls_back(train):
    outcome = train({10: lambda: change("hospital_b", 1.2)})
    assert outcome.code == 0, outcome.err
    (changed,) = records("change")
    assert changed["step"] in (4, 8)
    ledger = RunFolder.open(RUN).read_ledger()
    assert ledger.steps == 12
    assert ledger.spent()[1] <= 1.2


def test_what_was_published_stops_the_training_with_a_reason(train, inosgd):
    assert train({}).code == 0
    assert inosgd("publish", "run", "--step", 8).code == 0
    change("hospital_b", 0.3)
    again = inosgd("resume", "run", "--no-report")
    assert again.code == 2
    assert "was stopped" in again.err
    (stop,) = records("stop")
    assert "hospital_b" in stop["reason"]
    assert stop["account"]["entry"] > 0


def test_all_owners_paused_stops_and_resuming_goes_on(train, inosgd):
    def pause_all():
        for owner, epsilon in (("clinic", 8.0), ("hospital_a", 1.0), ("hospital_b", 2.0)):
            change(owner, epsilon, "paused")

    outcome = train({5: pause_all})
    assert outcome.code == 2
    assert "was stopped after step 5" in outcome.err
    assert len(records("stop")) == 1
    again = inosgd("resume", "run", "--no-report")
    assert again.code == 2
    assert len(records("stop")) == 1
    change("clinic", 8.0)
    gone_on = inosgd("resume", "run", "--no-report")
    assert gone_on.code == 0, gone_on.err
    assert "owners have changed their budgets" in gone_on.err
    assert RunFolder.open(RUN).read_ledger().steps == 12
    checked()


def test_a_raised_budget_is_used(train):
    assert train({6: lambda: change("hospital_a", 1.5)}).code == 0
    ledger = RunFolder.open(RUN).read_ledger()
    assert ledger.table.epsilons[0] == 1.5
    assert ledger.spent()[0] > 1.0
    assert checked()["hospital_a"] > 0.9


def test_a_change_that_is_taken_back_at_once_is_none(train):
    def twice():
        change("hospital_a", 0.8)
        change("hospital_a", 1.0)

    assert train({6: twice}).code == 0
    assert records("change") == []
    checked()


def test_a_run_that_asks_for_less_keeps_to_that(inosgd, train):
    change("hospital_b", 5.0)  # the study asks for 2 of it
    assert train({6: lambda: change("hospital_b", 4.0)}).code == 0
    assert RunFolder.open(RUN).read_ledger().table.epsilons[1] == 2.0
    checked()


def test_an_interrupted_run_heeds_when_it_is_resumed(train, inosgd):
    def interrupt():
        raise KeyboardInterrupt

    assert train({6: interrupt}).code == 130
    change("hospital_b", 1.5)
    outcome = inosgd("resume", "run", "--no-report")
    assert outcome.code == 0, outcome.err
    assert RunFolder.open(RUN).read_ledger().table.epsilons[1] == 1.5
    checked()


def test_budgets_plans_for_what_accounts_leave(train, inosgd, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    assert train({6: interrupt}).code == 130
    for name in ("hospital_a", "hospital_b", "clinic"):
        change(name, 12.0)
    assert inosgd("train", "study.toml", "--out", "other", "--no-report").code == 0  # it takes some of what was left
    proposed = inosgd("budgets", "run", "--set", "hospital_b=4", "--yes", "--json")
    assert proposed.code == 0, proposed.err
    assert json.loads(proposed.out)["action"] in ("continue", "roll back")
    outcome = inosgd("resume", "run", "--no-report")
    assert outcome.code == 0, outcome.err
    assert max(checked().values()) <= 1


def test_a_share_is_of_what_was_left_before_the_run(inosgd, train, tmp_path):
    write_study(tmp_path, ("[data]\n", f'[account]\nurl = "{URL}"\nshare = 0.5\n\n[data]\n'))
    assert train({6: lambda: change("clinic", 7.0)}).code == 0
    used = checked()
    assert used["hospital_a"] == pytest.approx(0.5, abs=0.02)  # and not half of the half that was left
    with Accounts.open(URL) as book:
        collection = book.collection("cases")
        assert (rooms(collection.epsilons, collection.deltas, collection.orders) == collection.rooms).all()


def test_a_change_between_the_plan_and_its_reservation_is_not_missed(train, monkeypatch):
    """It is heeded by the next plan: a run has heeded what its ledger answers, not what came before it reserved."""
    heed, changes = running.heed, iter([lambda: change("hospital_b", 1.6)])

    def heed_and_change(*arguments, **named):
        done = heed(*arguments, **named)
        next(changes, lambda: None)()
        return done

    monkeypatch.setattr(running, "heed", heed_and_change)
    outcome = train({6: lambda: change("hospital_b", 1.8)})
    assert outcome.code == 0, outcome.err
    assert [each["owners"]["epsilons"][1] for each in records("change")] == [1.8, 1.6]
    assert RunFolder.open(RUN).read_ledger().table.epsilons[1] == 1.6
    assert max(checked().values()) <= 1


def test_owners_that_change_again_and_again_while_plans_are_made_do_not_end_the_training(train, monkeypatch):
    heed = running.heed
    later = iter(
        [("clinic", "paused"), ("hospital_b", "paused"), ("clinic", "open"), ("clinic", "paused"), ("clinic", "open")]
    )
    budgets = {"clinic": 8.0, "hospital_b": 2.0}

    def heed_and_change(*arguments, **named):
        done = heed(*arguments, **named)
        owner, state = next(later, (None, None))
        if owner:
            change(owner, budgets[owner], state)
        return done

    monkeypatch.setattr(running, "heed", heed_and_change)
    outcome = train({6: lambda: change("hospital_a", 0.9)})
    assert outcome.code == 0, outcome.err
    ledger = RunFolder.open(RUN).read_ledger()
    assert ledger.steps == 12
    assert ledger.history.terms_at(11).sampling_rates[1] == 0 < ledger.history.terms_at(11).sampling_rates[2]
    checked()
