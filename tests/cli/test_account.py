"""``inosgd account``, and trainings, tunings and comparisons that draw on one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inosgd.accounts import draws
from inosgd.accounts.book import Accounts
from inosgd.runs.folder import RunFolder
from inosgd.training import train_step
from inosgd.tuning import private
from tests.study.writers import write_study

URL = "sqlite:///accounts.db"
ACCOUNT = ("[data]\n", f'account = "{URL}"\n\n[data]\n')
HALF = ("[data]\n", f'[account]\nurl = "{URL}"\nshare = 0.5\ncollection = "cases"\nkey = "my.key"\n\n[data]\n')


@pytest.fixture
def study(inosgd, tmp_path):
    path = write_study(tmp_path, HALF)
    outcome = inosgd("account", "create", URL, "--study", path, "--collection", "cases")
    assert outcome.code == 0, outcome.err
    assert "opened accounts for 3 owners, with 3 different budgets" in outcome.out
    return path


def shown(inosgd, *arguments) -> dict:
    outcome = inosgd("account", "show", URL, "--json", *arguments)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def train(inosgd, study, name: str = "run", *arguments):
    return inosgd("train", study, "--out", name, "--every", 4, "--no-report", *arguments)


def interrupted(inosgd, study, monkeypatch, after: int, name: str = "run"):
    def step_or_stop(trainer, state):
        if state.step == after:
            raise KeyboardInterrupt
        return train_step(trainer, state)

    with monkeypatch.context() as patched:
        patched.setattr("inosgd.training.train_step", step_or_stop)
        assert train(inosgd, study, name).code == 130


def test_trainings_share_what_there_is(inosgd, study, tmp_path):
    for number, share in enumerate([0.5, 0.75, 0.875]):
        outcome = train(inosgd, study, f"run{number}")
        assert outcome.code == 0, outcome.err
        clinic = shown(inosgd)["owners"]["hospital_a"]
        assert clinic["spent"] / clinic["room"] == pytest.approx(share, rel=0.01)
        assert clinic["spent_epsilon"] <= 1.0
        assert clinic["reserved"] == 0
    card = (tmp_path / "run2/model/model-card.md").read_text()
    assert "are added up, by a Rényi filter" in card
    assert inosgd("account", "verify", URL).code == 0
    history = json.loads(inosgd("account", "history", URL, "--json").out)
    assert [entry["kind"] for entry in history["entries"]].count("reserved") == 3
    assert "settled: committed" in inosgd("account", "history", URL).out
    told = json.loads(inosgd("account", "history", URL, "--owner", "hospital_a", "--json").out)["entries"]
    assert told[0]["epsilon"] == 1.0
    assert told[-1]["spent"] == pytest.approx(clinic["spent"])
    assert told[1]["noise_multipliers"][0] > 0
    assert "spent" in inosgd("account", "history", URL, "--owner", "hospital_a").out


def test_without_an_account_everything_is_as_before(inosgd, tmp_path):
    write_study(tmp_path)
    assert train(inosgd, "study.toml").code == 0
    assert not (tmp_path / "accounts.db").exists()
    assert "account" not in RunFolder.open(tmp_path / "run").description()


def test_a_budget_that_is_used_up_is_refused_by_name_and_leaves_nothing(inosgd, tmp_path):
    path = write_study(tmp_path, ACCOUNT)
    assert inosgd("account", "create", URL, "--study", path).code == 0
    assert train(inosgd, path).code == 0
    inosgd("account", "budget", URL, "hospital_b", 0.9)
    outcome = train(inosgd, path, "again")
    assert outcome.code == 2
    assert "account: 'hospital_b' has 0 % of its room left" in outcome.err
    assert not (tmp_path / "again").exists()
    assert shown(inosgd)["reserved"] == []
    owner = shown(inosgd, "--owner", "hospital_b")["owners"]["hospital_b"]
    assert owner["left"] == 0
    assert owner["spent"] > owner["room"]  # what was spent before is shown as it is


def test_what_an_account_has_left_is_said_before_it_is_spent(inosgd, tmp_path):
    path = write_study(tmp_path, ACCOUNT)
    assert inosgd("account", "create", URL, "--study", path).code == 0
    assert "of the account is left" not in inosgd("check", path).out
    assert train(inosgd, path).code == 0
    used_up = inosgd("check", path)
    assert used_up.code == 2
    assert "of its room left, and the noise of the whole training" in " ".join(used_up.err.split())
    for name, epsilon in (("hospital_a", 1.05), ("hospital_b", 12.0), ("clinic", 50.0)):
        inosgd("account", "budget", URL, name, epsilon)
    found = json.loads(inosgd("check", path, "--json").out)["findings"]
    (finding,) = [each for each in found if each["kind"] == "little-left"]
    assert finding["evidence"]["owners"] == 1
    assert finding["text"].startswith("hospital_a: ")
    assert finding["text"] in " ".join(train(inosgd, path, "again").err.split())


@pytest.mark.parametrize("after", [0, 6])
def test_an_interrupted_run_goes_on_with_its_reservation(inosgd, study, monkeypatch, after):
    assert train(inosgd, study, "whole").code == 0
    once = shown(inosgd)["owners"]["clinic"]["spent"]
    inosgd("account", "budget", URL, "hospital_a", 3)  # so that both runs plan for about the same
    interrupted(inosgd, study, monkeypatch, after)
    reserved = shown(inosgd)["reserved"]
    assert len(reserved) == (1 if after else 0)
    resumed = inosgd("resume", "run", "--no-report")
    assert resumed.code == 0, resumed.err
    assert shown(inosgd)["reserved"] == []
    assert shown(inosgd)["owners"]["clinic"]["spent"] > once
    history = json.loads(inosgd("account", "history", URL, "--json").out)["entries"]
    assert [entry["releases"] for entry in history if entry.get("state") == "committed"] == [12, 12]
    assert inosgd("account", "verify", URL).code == 0
    assert inosgd("resume", "run", "--no-report").code == 0  # nothing is left to release, or to reserve
    assert len(json.loads(inosgd("account", "history", URL, "--json").out)["entries"]) == len(history)


def test_a_dead_run_is_settled_and_then_resumed(inosgd, study, monkeypatch, tmp_path):
    interrupted(inosgd, study, monkeypatch, 6)
    with RunFolder.open(tmp_path / "run").lock():
        alive = inosgd("account", "settle", URL)
    assert alive.code == 1
    assert "in use by" in alive.out
    settled = json.loads(inosgd("account", "settle", URL, "--json").out)
    assert [(each["state"], each["releases"]) for each in settled] == [("refunded", 6)]
    clinic = shown(inosgd)["owners"]["clinic"]
    assert clinic["reserved"] == 0 < clinic["spent"]
    assert inosgd("resume", "run", "--no-report").code == 0
    assert shown(inosgd)["owners"]["clinic"]["spent"] == pytest.approx(2 * clinic["spent"])
    assert inosgd("account", "verify", URL).code == 0


def test_a_run_that_is_gone_is_forfeited(inosgd, study, monkeypatch, tmp_path):
    monkeypatch.setattr(draws, "BLOCKS", 1)
    interrupted(inosgd, study, monkeypatch, 6)
    shutil.rmtree(tmp_path / "run")
    missing = inosgd("account", "settle", URL)
    assert missing.code == 1
    assert "--forfeit" in missing.out
    assert "--reservation" in inosgd("account", "settle", URL, "--forfeit").err
    (reserved,) = shown(inosgd)["reserved"]
    assert inosgd("account", "settle", URL, "--reservation", reserved["id"], "--forfeit").code == 0
    assert "No reservation is open." in inosgd("account", "settle", URL).out
    clinic = shown(inosgd)["owners"]["clinic"]
    assert clinic["reserved"] == 0
    assert clinic["spent"] == pytest.approx(clinic["room"] / 2, rel=0.01)  # all that was committed


def shortened(run: Path, steps: int) -> None:
    """Take the records after so many steps out of the ledger, with the checkpoints that they know of."""
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    end = next(row for row, line in enumerate(lines) if json.loads(line).get("step") == steps and b'"step",' in line)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:end]))
    position = next(body for body in map(json.loads, lines[end - 1 :: -1]) if body["kind"] not in ("terms", "step"))
    (run / "position.json").write_text(json.dumps({"records": position["record"], "hash": position["hash"]}))
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name[5:13]) > steps:
            shutil.rmtree(checkpoint)


@pytest.mark.parametrize("lost", [True, False])
def test_new_noise_after_a_shortened_ledger_is_charged_anew(inosgd, study, monkeypatch, tmp_path, lost):
    monkeypatch.setattr(draws, "BLOCKS", 2)  # 6 releases each
    interrupted(inosgd, study, monkeypatch, 4)
    shortened(tmp_path / "run", 0)
    if lost:
        shutil.rmtree(tmp_path / "run/checkpoints")
        (tmp_path / "run/checkpoints").mkdir()
    resumed = inosgd("resume", "run", "--no-report")
    assert resumed.code == 0, resumed.err
    entries = json.loads(inosgd("account", "history", URL, "--json").out)["entries"]
    settled = [entry["releases"] for entry in entries if entry["kind"] == "settled"]
    assert settled == ([6, 12] if lost else [12])  # with its checkpoint, the same noise covers the same sums
    assert inosgd("account", "verify", URL).code == 0


def test_an_old_copy_of_the_book_does_not_let_a_run_go_on(inosgd, study, monkeypatch, tmp_path):
    shutil.copy(tmp_path / "accounts.db", tmp_path / "old.db")
    interrupted(inosgd, study, monkeypatch, 6)
    for name in ("accounts.db-wal", "accounts.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old.db", tmp_path / "accounts.db")
    outcome = inosgd("resume", "run", "--no-report")
    assert outcome.code == 2
    assert "the book has committed 0 of them" in outcome.err


def test_another_book_in_its_place_is_refused(inosgd, study, monkeypatch, tmp_path):
    interrupted(inosgd, study, monkeypatch, 6)
    (tmp_path / "accounts.db").rename(tmp_path / "elsewhere.db")
    assert inosgd("account", "create", URL, "--study", study, "--collection", "cases").code == 0
    outcome = inosgd("resume", "run", "--no-report")
    assert outcome.code == 2
    assert "names another account now" in outcome.err
    assert shown(inosgd)["reserved"] == []


def test_a_copied_run_is_charged_for_what_it_does(inosgd, study, monkeypatch, tmp_path):
    interrupted(inosgd, study, monkeypatch, 6)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert inosgd("resume", "copy", "--no-report").code == 0
    assert inosgd("resume", "run", "--no-report").code == 0
    entries = json.loads(inosgd("account", "history", URL, "--json").out)["entries"]
    assert [entry["releases"] for entry in entries if entry["kind"] == "settled"] == [6, 12]
    assert inosgd("account", "verify", URL).code == 0


def test_changed_budgets_of_a_run_are_reserved_anew(inosgd, study, monkeypatch):
    interrupted(inosgd, study, monkeypatch, 6)
    assert inosgd("budgets", "run", "--set", "hospital_a=0.9", "--yes").code == 0
    resumed = inosgd("resume", "run", "--no-report")
    if resumed.code:  # the new plan is not made within the accounts; then it is refused by name
        assert "is left in its account" in resumed.err
    assert inosgd("account", "verify", URL).code == 0


def test_a_private_tuning_is_charged_whole(inosgd, tmp_path, monkeypatch):
    monkeypatch.setattr(private, "draw_trials", lambda *_: 2)
    path = write_study(tmp_path, HALF, ("[training]\n", '[training]\naccountant = "rdp"\n'))
    assert inosgd("account", "create", URL, "--study", path, "--collection", "cases").code == 0
    tuned = ("tune", path, "--try", "learning_rate=1,2", "--jobs", 1, "--private", "--trials", 3, "--yes")
    outcome = inosgd(*tuned, "--out", "tuned")
    assert outcome.code == 0, outcome.err
    for owner in shown(inosgd)["owners"].values():
        assert 0 < owner["spent"] <= owner["room"] / 2
    assert shown(inosgd)["reserved"] == []
    assert inosgd("account", "verify", URL).code == 0
    card = json.loads((tmp_path / "tuned/model/model.json").read_text())
    assert card["privacy"]["account"]["collection"] == "cases"


def test_looks_are_booked_and_named_by_the_card(inosgd, study, tmp_path):
    compared = inosgd("compare", study, "--seeds", 1, "--jobs", 1, "--steps", 2, "--no-report", "--out", "compared")
    assert compared.code == 0, compared.err
    assert shown(inosgd)["looks"] == {"compare": 1}
    assert "without a charge: compare, 1 times" in inosgd("account", "show", URL).out
    assert train(inosgd, study).code == 0
    assert "compare (1 times)" in (tmp_path / "run/model/model-card.md").read_text()


def test_the_same_rows_under_another_name_are_refused(inosgd, study, tmp_path):
    again = inosgd("account", "create", URL, "--study", study, "--collection", "other")
    assert again.code == 2
    assert "are in collection 'cases' already" in again.err
    assert inosgd("account", "create", URL, "--study", study, "--collection", "other", "--overlaps", "cases").code == 0
    (tmp_path / "ids.txt").write_text("".join(f"patient {number}\n" for number in range(70)))
    by_ids = ("--study", study, "--ids", "ids.txt", "--key", "my.key")
    assert inosgd("account", "create", URL, *by_ids, "--collection", "by id").code == 0
    assert "70 of its units" in inosgd("account", "create", URL, *by_ids, "--collection", "again").err


def test_a_receipt_is_checked_without_inosgd(inosgd, study, tmp_path):
    assert train(inosgd, study).code == 0
    assert inosgd("account", "export", URL, "--out", "receipt", "--owner", "clinic").code == 0
    head = (tmp_path / "receipt/head.txt").read_text().strip()
    command = [sys.executable, "-I", "receipt/check_receipt.py", "receipt/receipt.json", head]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("valid: clinic was charged")
    assert inosgd("account", "export", URL, "--out", "chain").code == 0
    assert (tmp_path / "chain/chain.jsonl").exists()
    assert inosgd("account", "verify", URL, "--head", head).code == 0
    wrong = inosgd("account", "verify", URL, "--head", "1:" + "0" * 64, "--json")
    assert wrong.code == 1
    assert "not the one that was published" in wrong.out


def test_a_plan_says_what_the_filter_costs(inosgd, study):
    outcome = inosgd("plan", "--account", URL, "--share", 0.5, "--batch", 16, "--steps", 50, "--variant", "scale")
    assert outcome.code == 0, outcome.err
    assert "more noise than privacy-loss distributions" in outcome.out.replace("\n", " ")
    fields = json.loads(inosgd("plan", "--account", URL, "--batch", 16, "--steps", 50, "--json").out)
    assert 1 < fields["filter"]["noise_by_filter"] / fields["filter"]["noise_by_pld"] < 1.5


def test_a_study_without_its_account_does_not_go_on(inosgd, study, monkeypatch, tmp_path):
    interrupted(inosgd, study, monkeypatch, 6)
    (tmp_path / "accounts.db").rename(tmp_path / "elsewhere.db")
    outcome = inosgd("resume", "run", "--no-report")
    assert outcome.code == 2
    assert "there is no book" in outcome.err


def test_wrong_accounts_are_named(inosgd, study, tmp_path):
    write_study(tmp_path, ("[data]\n", 'account = "sqlite:///other.db"\n[data]\n'))
    assert "there is no book" in train(inosgd, "study.toml").err
    write_study(tmp_path, ("[data]\n", f'[account]\nurl = "{URL}"\nshare = 2\n[data]\n'))
    assert "account.share = 2" in train(inosgd, "study.toml").err
    write_study(tmp_path, ("[data]\n", f'[account]\nurl = "{URL}"\ncollection = "none"\n[data]\n'))
    assert "there is no such one" in train(inosgd, "study.toml").err


def test_the_table_and_the_history_can_be_read_alone(inosgd, study):
    """Heads of columns are those of ledgers, shares are rounded to the private side, and a change says whose it was."""
    assert train(inosgd, study).code == 0
    lines = inosgd("account", "show", URL).out.splitlines()
    assert lines[0].split() == ["owner", "budget", "ε", "δ", "spent", "ε", "used", "reserved", "left", "room", "order"]
    used, left = (float(share) for share in re.findall(r"([\d.]+) %", lines[2])[::2])
    exact = shown(inosgd)["owners"]["hospital_a"]
    assert used >= 100 * exact["spent"] / exact["room"]
    assert left <= 100 * exact["left"] / exact["room"]
    assert inosgd("account", "budget", URL, "hospital_a", 0.8).code == 0
    assert "budgets" in (last := inosgd("account", "history", URL).out.split("\n\n")[0].splitlines()[-1])
    assert "1 owner, by command line" in last


def test_a_pause_that_comes_while_a_budget_is_set_is_not_undone(inosgd, study, monkeypatch):
    """By the owner, between the look at where it stands and the change; the control is the second command."""
    set_budgets = Accounts.set_budgets

    def overtaken(book, name, budgets, **options):
        monkeypatch.setattr(Accounts, "set_budgets", set_budgets)
        book.set_budgets(name, budgets, state="paused")
        return book.set_budgets(name, budgets, **options)

    monkeypatch.setattr(Accounts, "set_budgets", overtaken)
    refused = inosgd("account", "budget", URL, "hospital_a", 0.8)
    assert (refused.code, "has changed its budget meanwhile" in refused.err) == (2, True)
    assert shown(inosgd)["owners"]["hospital_a"]["state"] == "paused"
    assert inosgd("account", "budget", URL, "hospital_b", 0.8).code == 0
