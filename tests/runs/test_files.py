"""Files and their records: killed between the two, a run verifies, goes on, and ends as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from inosgd import Ledger, SeededSource
from inosgd.errors import InvalidArgumentError
from inosgd.ledger import ledger
from inosgd.ledger.verification import Finding
from inosgd.runs import files as run_files
from inosgd.runs import resuming, saving, verification
from inosgd.runs.files import Comparison, compare
from inosgd.runs.folder import RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import resume, train_durably
from inosgd.runs.verification import verify_run
from tests import tiny


class KilledError(BaseException):
    """As unexpected as SIGKILL."""


def killed(*_, **__):
    raise KilledError


def train(run: RunFolder, steps: int | None = None) -> bytes:
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan(), torch.optim.Adam)
        state = resume(locked, trainer, model, optimizer, SeededSource(4)).state
        try:
            train_durably(locked, trainer, state, every=4, steps=steps)
        finally:
            state.ledger.close()
    return tiny.bits(model)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = tiny.new_run(tmp_path)
    train(run, 4)
    return run


CHECKPOINT_KILLS = {
    "before its files are whole": (saving, "write_private"),
    "before its record": (Ledger, "mark_checkpoint"),
    "between its record and position.json": (ledger, "write_private"),
    "between its record and its name": (saving, "place"),
    "before old keys are erased": (resuming, "erase_keys"),
}


@pytest.mark.parametrize("where", CHECKPOINT_KILLS)
def test_killed_around_a_checkpoint(run, where, monkeypatch):
    shutil.copytree(run.path, run.path.with_name("twin"))
    expected = train(RunFolder.open(run.path.with_name("twin")))
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(*CHECKPOINT_KILLS[where], killed)
        train(run)
    assert verify_run(run).findings == ()
    assert train(run) == expected
    report = verify_run(run)
    assert report.good
    assert report.notes == ()
    kinds = [json.loads(line)["kind"] for line in run.ledger_path.read_text().splitlines()]
    assert kinds.count("step") == tiny.STEPS


def test_a_checkpoint_that_was_recorded_and_not_named_is_gone_on_from(run, monkeypatch):
    """Nothing is computed again: whoever knows the record knows that the hidden folder is the checkpoint."""
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(saving, "place", killed)
        train(run)
    assert any("before it gave it its name" in note for note in verify_run(run).notes)
    with run.lock() as locked:
        resumed = resume(locked, *tiny.parts(run.plan(), torch.optim.Adam))
        resumed.state.ledger.close()
    assert (resumed.state.step, resumed.messages) == (8, ())


CHANGE_KILLS = {
    "before the files": (run_files, "stage"),
    "before their record": (Ledger, "mark_files"),
    "between their record and their names": (run_files, "place"),
    "before the change": (Ledger, "mark_change"),
}


@pytest.mark.parametrize("where", CHANGE_KILLS)
def test_killed_around_a_change_of_budgets(run, where, monkeypatch):
    train(run)
    changes = Changes(budgets={"liberal": tiny.Budget(epsilon=9.0, delta=1e-5)})
    config = dataclasses.replace(tiny.PLAN.config, steps=14)
    proposal = propose(run, changes, config, verify=False)
    files = {"notes.json": b"{}"}
    with monkeypatch.context() as patch, run.lock() as locked, pytest.raises(KilledError):
        patch.setattr(*CHANGE_KILLS[where], killed)
        carry_out(locked, proposal, files)
    assert verify_run(run).findings == ()
    assert run.plan() == tiny.PLAN
    with run.lock() as locked:
        carry_out(locked, propose(run, changes, config, verify=False), files)
    train(run)
    report = verify_run(run)
    assert report.good
    assert report.steps == 14
    assert report.notes == ()


def test_a_planted_hidden_file_is_not_taken_for_one_that_was_recorded(run):
    for name in ("run.json", "plans/plan-0001.json"):
        path = run.path / name
        (path.parent / f".{path.name}.partial").write_text("{}")
    newest = run.checkpoints()[-1].path
    shutil.copytree(newest, newest.with_name(".step-00000099.record-00000099.partial"))
    report = verify_run(run)
    assert report.good
    assert len(report.notes) == 2 + 4
    train(run, 4)
    assert json.loads(run.description_path.read_text())["description"] == {"of": "a test"}
    assert [each.step for each in run.checkpoints()] == [0, 4, 8]
    assert not list(run.checkpoints_path.glob(".*"))


def test_a_given_up_checkpoint_that_comes_back_is_found_and_not_used(run):
    train(run, 4)
    kept = run.path.with_name("kept")
    given_up = run.checkpoints()[-1].path
    shutil.copytree(given_up, kept)
    with run.lock() as locked:
        locked.roll_back(4)
    shutil.copytree(kept, given_up)
    (finding,) = verify_run(run).findings
    assert f"checkpoint {given_up.name} was given up; resume the run" in finding.message
    with run.lock() as locked:
        resumed = resume(locked, *tiny.parts(run.plan(), torch.optim.Adam))
        resumed.state.ledger.close()
    assert resumed.state.step == 4
    assert verify_run(run).good


def test_a_finding_counts_if_two_looks_see_it(run, monkeypatch):
    """A training that goes on meanwhile may be between two things at one of them."""
    wrong, right = Comparison((Finding(1, "in between"),), ()), Comparison((), ())
    looks = [wrong, right]
    monkeypatch.setattr(verification, "compare", lambda *_: looks.pop(0))
    assert verify_run(run).good
    looks[:] = [wrong, Comparison((Finding(2, "elsewhere"),), ()), wrong, wrong]
    assert verify_run(run).findings == wrong.findings
    assert not looks


def test_verification_while_training_finds_nothing_wrong(tmp_path):
    """At every step, and between the parts of a checkpoint's writing: what is wrong is only ever seen once."""
    run = tiny.new_run(tmp_path)
    seen = []

    def look(*_):
        seen.append(compare(run.path, tiny.STEPS).findings)

    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = resume(locked, trainer, model, optimizer, SeededSource(0)).state
        train_durably(locked, trainer, state, every=2, callbacks=[look])
        state.ledger.close()
    assert len(seen) == tiny.STEPS
    assert not any(seen)


def test_the_key_of_the_data_may_be_removed_and_then_nothing_goes_on(run):
    (run.path / "data.key").unlink()
    report = verify_run(run)
    assert report.good
    assert "data.key is not there" in report.notes[0]
    with run.lock() as locked:
        locked.mark_published(4)  # needs no data
    with pytest.raises(InvalidArgumentError, match=r"data.key is missing .*; restore it from a copy"):
        train(run)
