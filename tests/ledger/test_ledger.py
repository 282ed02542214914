"""The ledger is written first, refuses what a budget does not allow, is never rewritten, and can be checked."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import stat

import numpy as np
import pytest

from inosgd import Ledger, OwnerTable
from inosgd.accounting import reference_epsilon
from inosgd.errors import (
    AlreadyPublishedError,
    BudgetExceededError,
    InosgdError,
    InvalidArgumentError,
    LedgerError,
    TrainingStoppedError,
)
from inosgd.ledger.records import RecordFile, read_chain
from inosgd.ledger.verification import verify_ledger
from inosgd.plan import Terms
from tests.processes import forked

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
    assert (lines[2]["kind"], lines[2]["step"]) == ("step", 0)
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


def written(path, count=4, table=TABLE) -> Ledger:
    ledger = Ledger(table, "pld", path)
    for step in range(count):
        ledger.record(step, terms(), streams=f"before {step}")
    return ledger


def test_a_ledger_opens_where_it_ended(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = written(path)
    ledger.close()
    again = Ledger.open(path)
    assert (again.steps, again.position, again.table) == (4, ledger.position, TABLE)
    assert again.phases == ledger.phases
    np.testing.assert_array_equal(again.spent(), ledger.spent())
    np.testing.assert_allclose(again.remaining(), TABLE.epsilons - again.spent())
    again.record(4, terms())
    again.close()
    assert [body["kind"] for body in read_chain(path).bodies] == ["ledger", "terms", *["step"] * 5]
    with pytest.raises(InvalidArgumentError, match="there is no ledger"):
        Ledger.open(tmp_path / "elsewhere")


def test_a_torn_step_is_removed_with_a_message_and_may_be_recorded_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path).close()
    os.truncate(path, path.stat().st_size - 30)
    looked = Ledger.read(path)
    assert looked.steps == 3
    assert "record (number 6) is torn" in looked.messages[0]
    with pytest.raises(InvalidArgumentError, match="opened for reading"):
        looked.record(3, terms())
    ledger = Ledger.open(path)
    assert ledger.messages[0].endswith("was removed; it was not released")
    ledger.record(3, terms())
    ledger.close()
    assert verify_ledger(path).good


CHECKPOINT = {
    "kind": "checkpoint",
    "name": "step-00000000.record-00000001",
    "step": 0,
    **dict.fromkeys(("state", "streams", "erased"), "0"),
}


def test_formats_and_kinds_that_are_not_known_are_refused(tmp_path):
    for name, bodies in {
        "format": [{"kind": "ledger", "format": 6, "accountant": "pld", "owners": TABLE.to_json()}],
        "kind": [*header(), {"kind": "gift"}],
        "first": [{"kind": "step", "step": 0}],
        "second": [*header(), *header()],
        "terms": [*header(), {"kind": "step", "step": 0}],
        "gap": [*header(), {"kind": "terms", "terms": terms().to_json()}, {"kind": "step", "step": 1}],
        "missing": [*header(), {"kind": "published"}],
        "future": [*header(), {"kind": "rollback", "step": 1}],
        "rows": [*header(), {"kind": "change", "step": 0, "owners": swapped().to_json()}],
        "leads out": [*header(), {"kind": "files", "files": {"../run.json": "0"}}],
        "root": [*header(), {"kind": "files", "files": {"/etc/passwd": "0"}}],
        "hidden": [*header(), {"kind": "files", "files": {"plans/.x": "0"}}],
        "null": [*header(), {"kind": "files", "files": {"a\0b": "0"}}],
        "half a character": [*header(), {"kind": "files", "files": {"a\ud800": "0"}}],
        "empty": [*header(), {"kind": "files", "files": {"": "0"}}],
        "later": [*header(), {"kind": "files", "files": {"a": "0"}, "step": 1}],
        "odd name": [*header(), {**CHECKPOINT, "name": "step-1/../.."}],
        "unwritten": [*header(), {**CHECKPOINT, "step": 1}],
        "twice": [*header(), CHECKPOINT, CHECKPOINT],
        "again": [*header(), CHECKPOINT, {"kind": "lost", "checkpoint": CHECKPOINT["name"]}, CHECKPOINT],
        "not there": [*header(), {"kind": "lost", "checkpoint": "step-00000000.record-00000001"}],
    }.items():
        path = forged(tmp_path / name, bodies)
        with pytest.raises(LedgerError) as caught:
            Ledger.open(path)
        assert caught.value.record == len(bodies)
        assert caught.value.fault == "invalid"
        assert not verify_ledger(path).good
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(LedgerError, match="the ledger is empty"):
        Ledger.open(tmp_path / "empty")
    earlier = forged(tmp_path / "earlier", [{**header()[0], "format": 3}])
    with pytest.raises(LedgerError, match=r"format=3: another version of inosgd wrote this ledger.* reads format 5"):
        Ledger.open(earlier)
    (tmp_path / "old").write_text('{"format": 1, "accountant": "pld", "owners": {}}\n')
    with pytest.raises(LedgerError, match="record 1"):
        Ledger.open(tmp_path / "old")


def test_unknown_keys_are_ignored(tmp_path):
    bodies = [{**header()[0], "colour": "green"}, {"kind": "terms", "terms": terms().to_json(), "x": 1}]
    ledger = Ledger.read(forged(tmp_path / "ledger", [*bodies, {"kind": "step", "step": 0, "y": []}]))
    assert ledger.steps == 1


def header() -> list[dict]:
    return [{"kind": "ledger", "format": 5, "accountant": "pld", "owners": TABLE.to_json()}]


def swapped() -> OwnerTable:
    return OwnerTable(TABLE.names[::-1], TABLE.epsilons[::-1], TABLE.deltas, TABLE.sizes)


def forged(path, bodies):
    """A file whose chain is right, whatever its records say."""
    file = RecordFile.create(path)
    for body in bodies:
        file.append(body)
    file.close()
    return path


def test_a_step_is_replayed_only_with_its_terms_and_its_streams(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path).close()
    records = len(read_chain(path).bodies)
    ledger = Ledger.open(path)
    with pytest.raises(InvalidArgumentError, match="next step is 4"):
        ledger.record(2, terms(), streams="before 2")
    ledger.resume_at(2)
    with pytest.raises(InvalidArgumentError, match="other terms, and would cost twice"):
        ledger.record(2, terms(noise=3.0), streams="before 2")
    for other in ("before 3", None):
        with pytest.raises(InvalidArgumentError, match="other random streams, and would cost twice"):
            ledger.record(2, terms(), streams=other)
    ledger.record(2, terms(), streams="before 2")
    ledger.record(3, terms(), streams="before 3")
    assert len(read_chain(path).bodies) == records
    ledger.record(4, terms(), streams="before 4")
    assert len(read_chain(path).bodies) == records + 1
    with pytest.raises(LedgerError, match="has lost records"):
        ledger.resume_at(6)
    ledger.close()


def test_a_step_without_streams_cannot_be_replayed():
    ledger = Ledger(TABLE, "pld")
    ledger.record(0, terms())
    ledger.resume_at(0)
    with pytest.raises(InvalidArgumentError, match="would cost twice"):
        ledger.record(0, terms())


def test_what_is_charged_covers_what_was_bounded():
    ledger = Ledger(TABLE, "pld")
    ledger.record(0, terms(), sensitivity=np.array([1.0, 0.5]))
    for sensitivity in ([1.0, 1.0 + 1e-12], [np.nan, 1.0]):
        with pytest.raises(InvalidArgumentError, match="is charged for a threshold of 1; clip to the terms"):
            ledger.record(1, terms(), sensitivity=np.array(sensitivity))
    assert ledger.steps == 1


def test_rolling_back_gives_back_what_was_not_published_and_nothing_else(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 6)
    full, half = ledger.spent(), ledger.spent(until=3)
    ledger.mark_published(3, "ab" * 32)
    ledger.mark_rollback(4)
    assert ledger.steps == 4
    with pytest.raises(AlreadyPublishedError, match="published after step 3") as refused:
        ledger.mark_rollback(2)
    assert (refused.value.step, refused.value.published) == (2, 3)
    ledger.mark_rollback(3)
    np.testing.assert_array_equal(ledger.spent(), half)
    assert (half < full).all()
    ledger.record(3, terms())
    ledger.close()
    again = Ledger.open(tmp_path / "ledger.jsonl")
    assert (again.steps, again.published) == (4, 3)
    again.close()
    report = verify_ledger(tmp_path / "ledger.jsonl")
    assert report.good
    assert report.steps == 4


def test_marks_of_steps_that_never_were_are_refused_before_they_are_written(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 2)
    before = ledger.position
    for mark in (ledger.mark_published, ledger.mark_rollback, lambda step: ledger.mark_change(step, TABLE)):
        with pytest.raises(InvalidArgumentError, match="only 2 steps were recorded"):
            mark(3)
    assert ledger.position == before
    ledger.close()


def test_changed_budgets_hold_from_then_on_and_owners_keep_their_rows(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 4)
    spent = ledger.spent()
    wider = OwnerTable((*TABLE.names, "late"), [1.0, 8.0, 2.0], [1e-5] * 3, [100, 100, 50])
    ledger.mark_change(4, wider, "cd" * 32)
    np.testing.assert_array_equal(ledger.spent(), [*spent, 0.0])
    assert ledger.plan == "cd" * 32
    with pytest.raises(InvalidArgumentError, match="keeps the rows"):
        ledger.mark_change(4, TABLE)
    lower = OwnerTable(wider.names, [0.96 * spent[0], 8.0, 2.0], wider.deltas, wider.sizes)
    with pytest.raises(BudgetExceededError, match="'strict'"):
        ledger.mark_change(4, lower)
    ledger.mark_change(3, lower)
    assert ledger.steps == 3
    more = Terms.for_owners(wider, np.full(3, 0.1), np.ones(3), 50.0)
    ledger.record(3, more)
    ledger.close()
    assert Ledger.read(tmp_path / "ledger.jsonl").phases == ledger.phases
    assert verify_ledger(tmp_path / "ledger.jsonl").good


def test_a_stopped_ledger_refuses_steps_until_a_change():
    ledger = Ledger(TABLE, "pld")
    lower = OwnerTable(TABLE.names, [0.5, 8.0], TABLE.deltas, TABLE.sizes)
    ledger.mark_stop("strict asked for less than was published", lower)
    assert ledger.wanted == lower
    assert ledger.table == TABLE
    with pytest.raises(TrainingStoppedError, match="asked for less"):
        ledger.record(0, terms())
    ledger.mark_change(0, TABLE)
    ledger.record(0, terms())
    assert ledger.wanted == TABLE


def test_verification_finds_overspending_in_a_chain_that_is_right(tmp_path):
    """A forger who rewrites every hash is still found by dp-accounting, also if later records hide it again."""
    steps = [{"kind": "step", "step": step} for step in range(30)]
    bodies = [*header(), {"kind": "terms", "terms": terms().to_json()}, *steps]
    assert verify_ledger(forged(tmp_path / "good", bodies[:6])).good
    report = verify_ledger(forged(tmp_path / "bad", bodies))
    assert [finding.record for finding in report.findings] == [32]
    assert "'strict' has spent" in report.findings[0].message
    hidden = verify_ledger(forged(tmp_path / "hidden", [*bodies, {"kind": "rollback", "step": 2}]))
    assert [finding.record for finding in hidden.findings] == [32]
    assert hidden.steps == 2


def test_verification_agrees_with_the_ledger_and_names_the_broken_record(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, 5)
    ledger.close()
    report = verify_ledger(path)
    assert (report.records, report.steps, report.good) == (7, 5, True)
    np.testing.assert_allclose(list(report.spent.values()), ledger.spent())
    np.testing.assert_allclose(report.reference["strict"], report.spent["strict"], rtol=2e-3)
    path.write_bytes(path.read_bytes().replace(b'"noise_scale":2.0', b'"noise_scale":9.0'))
    broken = verify_ledger(path)
    assert [finding.record for finding in broken.findings] == [2]


def record_until_refused(pipe, path):
    """Says what it releases, in a process whose files may not grow beyond 2,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger(TABLE, "pld", path, horizon=100)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    try:
        for step in range(100):
            ledger.record(step, terms(noise=20.0))
            pipe.send(step)
    except InosgdError as error:
        pipe.send(str(error))
    pipe.recv()


def test_a_full_disk_stops_a_process_and_loses_nothing(tmp_path):
    """What it said it released is in the ledger."""
    path, said = tmp_path / "ledger.jsonl", []
    with forked(record_until_refused, path) as (pipe, _):
        while not said or isinstance(said[-1], int):
            said.append(pipe.recv())
    *released, refused = said
    assert "could not be written: File too large" in refused
    assert 0 < len(released) < 100
    ledger = Ledger.open(path)
    assert ledger.steps == len(released)
    ledger.close()


def test_files_and_checkpoints_go_with_the_steps_that_are_given_up():
    ledger = Ledger(TABLE, "pld")
    for step in range(4):
        ledger.record(step, terms())
    ledger.mark_files({"run.json": "a"})
    ledger.mark_files({"model/model.json": "b", "model/x": "c"}, 4)
    for step in (0, 2, 4):
        ledger.mark_checkpoint(f"step-{step:08d}.record-00000001", step, state="s", streams="t", erased="e")
    records = ledger.position.records
    ledger.mark_files({"model/x": "c"}, 4)  # known already
    assert ledger.position.records == records
    ledger.mark_rollback(2)
    history = ledger.history
    assert set(history.files) == {"run.json"}
    assert [each.step for each in history.in_order()] == [0, 2]
    assert history.given_up == {"step-00000004.record-00000001": records + 1}
    assert history.returned == records + 1


def test_what_is_trained_on_stays_until_owners_bring_or_take_examples():
    ledger = Ledger(TABLE, "pld")
    ledger.mark_data({"examples": "d"})
    ledger.mark_change(0, dataclasses.replace(TABLE, epsilons=TABLE.epsilons * 2))
    assert ledger.history.data == {"examples": "d"}
    ledger.mark_change(0, dataclasses.replace(TABLE, sizes=TABLE.sizes + 1))
    assert ledger.history.data == {}
