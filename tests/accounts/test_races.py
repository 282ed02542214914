"""The last of a budget, with many processes after it; `checks/accounts.py` has the long forms."""

import pytest

from tests.accounts.killing import kill_at_every_write, kill_at_random, verified
from tests.accounts.racing import race


@pytest.mark.parametrize("processes", [2, 8])
def test_nobody_gets_more_than_is_left_and_nobody_is_stuck(url, processes):
    races = race(url, 10, processes)
    assert races.failures == []
    assert races.seen["allowed"] + races.seen["refused"] == 10 * processes
    assert races.seen["refused"] > 0


def test_a_race_without_a_lock_would_be_noticed(tmp_path, monkeypatch):
    from inosgd.accounts.book import Accounts

    monkeypatch.setattr(Accounts, "_refuse", lambda *_: None)
    assert any("allowed of" in failure for failure in race(f"sqlite:///{tmp_path}/a.db", 3, 2).failures)


def test_no_kill_loses_a_charge_or_leaks_a_reservation(url, tmp_path):
    kills = kill_at_every_write(url, tmp_path, every=3)
    assert kills.failures == []
    assert kills.kills >= 20
    assert verified(url) == []


def test_no_kill_at_a_random_instant_does(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    assert kill_at_random(url, tmp_path, 10).failures == []
    assert verified(url) == []
