"""The ledger is written first, refuses what a budget does not allow, and is never rewritten."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

from inosgd import BudgetExceededError, Ledger, OwnerTable, Terms
from inosgd.accounting import reference_epsilon
from inosgd.errors import InvalidArgumentError

TABLE = OwnerTable(("strict", "liberal"), [1.0, 8.0], [1e-5, 1e-5], [100, 100])


def terms(noise=2.0, rates=(0.1, 0.1)) -> Terms:
    return Terms.for_owners(TABLE, np.array(rates), np.ones(2), noise)


def steps_until_refused(ledger: Ledger, some: Terms) -> BudgetExceededError:
    with pytest.raises(BudgetExceededError) as refusal:
        while True:
            ledger.record(ledger.steps, some)
    return refusal.value


@pytest.mark.parametrize("horizon", [1, 7, 10_000])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_training_stops_before_a_budget_is_passed(accountant, horizon):
    ledger = Ledger(TABLE, accountant, horizon=horizon)
    refusal = steps_until_refused(ledger, terms())
    assert (ledger.spent() <= TABLE.epsilons).all()
    assert refusal.owner == "strict"
    assert refusal.epsilon == 1.0
    assert refusal.spent > 1.0
    assert refusal.step == ledger.steps
    fresh = reference_epsilon([(0.1, 2.0, ledger.steps)], 1e-5, "pld")
    assert fresh <= 1.0
    assert reference_epsilon([(0.1, 2.0, ledger.steps + 1)], 1e-5, "rdp") > 1.0


def test_phases_with_different_terms_add_up():
    ledger = Ledger(TABLE, "pld")
    for step, noise in enumerate([2.0, 2.0, 4.0, 4.0, 4.0, 2.0]):
        ledger.record(step, terms(noise))
    assert [phase.steps for phase in ledger.phases] == [2, 3, 1]
    reference = reference_epsilon([(0.1, 2.0, 3), (0.1, 4.0, 3)], 1e-5, "pld")
    np.testing.assert_allclose(ledger.spent(), reference, rtol=1e-3)


def test_a_budget_that_is_already_spent_allows_nothing_more():
    ledger = Ledger(TABLE, "pld")
    steps_until_refused(ledger, terms())
    steps = ledger.steps
    steps_until_refused(ledger, terms())
    assert ledger.steps == steps


def test_a_step_without_noise_is_refused_and_one_without_the_strict_owner_is_not():
    ledger = Ledger(TABLE, "pld")
    with pytest.raises(BudgetExceededError, match="'strict' allows epsilon=1 and would have spent inf"):
        ledger.record(0, terms(noise=0.0))
    ledger.record(0, terms(noise=2.0, rates=(0.0, 0.1)))
    assert ledger.spent()[0] == 0.0


def test_the_file_has_every_step_before_it_is_released(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(TABLE, "pld", path)
    ledger.record(0, terms())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["owners"]["names"] == ["strict", "liberal"]
    assert lines[1]["terms"]["noise_scale"] == 2.0
    assert lines[2] == {"step": 0}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ledger.record(1, terms())
    assert len(path.read_text().splitlines()) == 4
    refusal = steps_until_refused(ledger, terms())
    ledger.close()
    assert len(path.read_text().splitlines()) == 2 + refusal.step


def test_an_existing_ledger_is_never_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("kept")
    with pytest.raises(InvalidArgumentError, match="already there"):
        Ledger(TABLE, "pld", path)
    assert path.read_text() == "kept"


def test_steps_are_recorded_in_order_and_for_the_right_owners(tmp_path):
    ledger = Ledger(TABLE, "pld")
    with pytest.raises(InvalidArgumentError, match="step=1: the ledger's next step is 0"):
        ledger.record(1, terms())
    with pytest.raises(InvalidArgumentError, match="accountant='moments'"):
        Ledger(TABLE, "moments", tmp_path / "ledger.jsonl")
    assert list(tmp_path.iterdir()) == []
    alone = OwnerTable(("strict",), [1.0], [1e-5], [100])
    with pytest.raises(InvalidArgumentError, match=r"len\(sampling_rates\)=2"):
        Ledger(alone, "pld").record(0, terms())
