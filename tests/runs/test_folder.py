"""A run survives kills, full disks, damage and company; the ledger never shows less than was released."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inosgd import DP_SGD, Ledger, Owners, Plan, SecureSource, SeededSource
from inosgd.errors import (
    AlreadyPublishedError,
    BudgetExceededError,
    CheckpointError,
    InvalidArgumentError,
    LedgerError,
    RunLockedError,
)
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.resuming import begin, resume, train_durably
from inosgd.runs.verification import verify_run
from inosgd.streams import NAMES
from tests import tiny
from tests.processes import forked

ROOT = Path(__file__).parents[2]


def trained(run: RunFolder, source=None, steps=None, every=4, build=torch.optim.Adam, callbacks=()) -> bytes:
    """Begin or resume, and take some steps; the bits at the end."""
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan(), build)
        state = resume(locked, trainer, model, optimizer, source).state
        try:
            train_durably(locked, trainer, state, every=every, steps=steps, callbacks=callbacks)
        finally:
            state.ledger.close()
    return tiny.bits(model)


class PowerCutError(Exception):
    pass


def cut_after(step):
    """A callback that ends the process's life after ``step`` steps, before they are in a checkpoint."""

    def callback(state, _):
        if state.step == step:
            raise PowerCutError

    return callback


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return tiny.new_run(tmp_path)


def _refuses(work) -> bool:
    try:
        work()
    except InvalidArgumentError:
        return True
    return False


def twin_of(run: RunFolder) -> RunFolder:
    other = run.path.parent / "twin"
    shutil.copytree(run.path, other)
    return RunFolder.open(other)


def test_a_run_comes_into_being_whole_and_private(run, tmp_path):
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert run.description() == {"of": "a test"}
    assert run.plan() == tiny.PLAN
    assert run.read_ledger().table == tiny.PLAN.table
    with pytest.raises(InvalidArgumentError, match="already exists"):
        tiny.new_run(tmp_path)
    with pytest.raises(InvalidArgumentError, match="there is no run"):
        RunFolder.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("found", [1, 2, 99])
def test_a_run_of_another_version_is_refused_by_its_format(run, found):
    fields = json.loads(run.description_path.read_bytes())
    assert fields["format"] == 3
    run.description_path.write_text(json.dumps(fields | {"format": found}))
    with pytest.raises(InvalidArgumentError, match=f"format={found}: another version of inosgd wrote this run"):
        RunFolder.open(run.path)


def test_a_run_that_cannot_be_created_leaves_nothing(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        RunFolder.create(tmp_path / "run", {"what": object()}, tiny.PLAN)
    assert list(tmp_path.iterdir()) == []


def test_begin_makes_the_first_checkpoint_and_happens_once(run):
    with run.lock() as locked:
        parts = tiny.parts(run.plan())
        begin(locked, *parts, SecureSource()).ledger.close()
        assert [checkpoint.step for checkpoint in run.checkpoints()] == [0]
        with pytest.raises(InvalidArgumentError, match="has begun already"):
            begin(locked, *parts, SecureSource())


@pytest.mark.parametrize("source", [SeededSource(4), None], ids=["seeded", "secure"])
def test_a_resumed_run_reaches_the_bits_of_an_uninterrupted_one(run, source):
    """Killed twice, once with steps recorded that no checkpoint has; with other intervals between checkpoints."""
    with run.lock() as locked:
        begin(locked, *tiny.parts(run.plan(), torch.optim.Adam), source or SecureSource()).ledger.close()
    expected = trained(twin_of(run))
    with pytest.raises(PowerCutError):
        trained(run, callbacks=[cut_after(7)])
    assert run.read_ledger().steps == 7
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [0, 4]
    trained(run, steps=2, every=5)
    assert trained(run, every=3) == expected
    kinds = [json.loads(line)["kind"] for line in run.ledger_path.read_text().splitlines()]
    assert kinds.count("step") == tiny.STEPS
    assert verify_run(run).good


def test_messages_say_what_happened(run):
    with pytest.raises(PowerCutError):
        trained(run, SeededSource(0), callbacks=[cut_after(6)])
    os.truncate(run.ledger_path, run.ledger_path.stat().st_size - 9)
    with run.lock() as locked:
        resumed = resume(locked, *tiny.parts(run.plan(), torch.optim.Adam))
        resumed.state.ledger.close()
    torn, again = resumed.messages
    assert "is torn" in torn
    assert "1 recorded steps after the checkpoint are computed again" in again


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(run):
    expected = trained(twin_of(run), SeededSource(0))
    trained(run, SeededSource(0), steps=8)
    newest = run.checkpoints()[-1]
    assert newest.step == 8
    newest.model_path.write_bytes(newest.model_path.read_bytes()[:-1] + b"x")
    (finding,) = verify_run(run).findings
    assert f"checkpoint {newest.path.name} is damaged" in finding.message
    assert "restore it from a copy" in finding.message
    with run.lock() as locked:
        resumed = resume(locked, *tiny.parts(run.plan(), torch.optim.Adam))
        assert resumed.state.step == 4
        assert "is damaged" in resumed.messages[0]
        resumed.state.ledger.close()
    assert trained(run) == expected
    report = verify_run(run)
    assert report.good
    assert any(".damaged-step-00000008" in note for note in report.notes)


def test_without_any_checkpoint_a_begun_run_is_not_begun_again(run):
    trained(run, SeededSource(0), steps=1)
    shutil.rmtree(run.checkpoints_path)
    run.checkpoints_path.mkdir()
    with pytest.raises(CheckpointError, match="1 recorded steps and no whole checkpoint"):
        trained(run, SeededSource(0))


def test_a_run_that_has_not_begun_needs_a_source(run):
    with pytest.raises(CheckpointError, match="has not begun"):
        trained(run)


def other_labels(trainer):
    inputs, targets = tiny.examples(len(trainer.owners))
    return replace(trainer, examples=(inputs, 1 - targets))


def other_owners(trainer):
    moved = Owners.from_rows(trainer.owners.assignment[::-1].copy(), tiny.BUDGETS)
    return replace(trainer, owners=moved)


@pytest.mark.parametrize("source", [SeededSource(0), SecureSource()], ids=["seeded", "secure"])
@pytest.mark.parametrize(
    ("what", "change"),
    {
        "plan": lambda trainer: tiny.trainer_for(tiny.first_plan(variant="scale")),
        "examples": other_labels,
        "owners": other_owners,
        "method": lambda trainer: replace(trainer, method=DP_SGD),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_recorded_steps_are_replayed_with_nothing_else_than_what_they_were_recorded_with(run, source, what, change):
    """Under the same noise, the sum over other data would differ from the first by their difference, without noise."""
    with pytest.raises(PowerCutError):
        trained(run, source, callbacks=[cut_after(6)])
    before = run.ledger_path.read_bytes()
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan(), torch.optim.Adam)
        with pytest.raises(InvalidArgumentError, match=f"^{what}: .*(resume with the same|build the trainer for)"):
            resume(locked, change(trainer), model, optimizer)
    assert run.ledger_path.read_bytes() == before
    trained(run)  # the control: with the same it goes on


def test_what_stands_for_the_examples_is_compared_in_their_place(run):
    with run.lock() as locked:
        parts = tiny.parts(run.plan())
        begin(locked, *parts, SeededSource(0), data=b"version 1").ledger.close()
        with pytest.raises(InvalidArgumentError, match=r"^examples: "):
            resume(locked, *parts, data=b"version 2")
        with pytest.raises(InvalidArgumentError, match=r"^examples: "):
            resume(locked, *parts)
        resume(locked, *parts, data=b"version 1").state.ledger.close()


def test_no_key_outlives_the_training(run):
    with pytest.raises(PowerCutError):
        trained(run, SecureSource(), every=2, callbacks=[cut_after(9)])
    keys = [sum(state["key"] is not None for state in each.streams.values()) for each in run.checkpoints()]
    assert keys == [0, 0, 0, len(NAMES), len(NAMES)]
    trained(run)
    assert all(state["key"] is None for each in run.checkpoints() for state in each.streams.values())


def lock_and_wait(pipe, path):
    with RunFolder.open(path).lock():
        pipe.send("mine")
        pipe.recv()


def test_two_processes_cannot_work_in_one_run(run):
    with forked(lock_and_wait, run.path) as (pipe, other):
        assert pipe.recv() == "mine"
        with pytest.raises(RunLockedError, match=f"in use by process {other.pid} on ") as caught, run.lock():
            pass
        assert str(other.pid) in caught.value.holder
    with run.lock():  # the other was killed
        pass


def test_a_process_cannot_lock_a_run_twice_and_must_lock_it_once(run, tmp_path):
    (tmp_path / "link").symlink_to(run.path)
    (tmp_path / "folder").symlink_to(tmp_path)
    paths = [run.path, tmp_path / "link", tmp_path / "folder" / "run", run.path / ".." / "run"]
    for path in paths:
        with run.lock(), pytest.raises(RunLockedError, match="this process"), RunFolder.open(path).lock():
            pass
    with RunFolder.open(tmp_path / "link").lock():
        assert LockedRun.of(LockedRun(run.path)).path == run.path
    with run.lock() as locked:  # still the lock of one process: a forked one has none
        child = os.fork()
        if child == 0:
            os._exit(0 if _refuses(locked.open_ledger) else 1)
        assert os.waitpid(child, 0)[1] == 0


WRITING = {
    "open the ledger": lambda run: run.open_ledger(),
    "mark files": lambda run: run.mark_files({"a": "b"}, 8),
    "publish": lambda run: run.mark_published(8),
    "add metrics": lambda run: run.add_metrics(8, {}),
    "write a checkpoint": lambda run: run.write_checkpoint(None),
    "set a checkpoint aside": lambda run: run.set_aside(run.last_checkpoint().path.name),
    "forget": lambda run: run.forget_after(0),
    "roll back": lambda run: run.roll_back(4),
}


@pytest.mark.parametrize("how", WRITING)
def test_only_a_locked_run_writes_and_only_while_it_is_locked(run, how):
    trained(run, SeededSource(0), steps=8)
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert not hasattr(run, WRITING[how].__code__.co_names[0])
    with run.lock() as locked:
        pass
    signed = {run.path / "lock": (run.path / "lock").read_bytes()}
    with pytest.raises(InvalidArgumentError, match="is not locked"):
        WRITING[how](locked)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files | signed


@pytest.mark.parametrize("locked_before", [True, False])
def test_training_needs_a_locked_run(run, locked_before):
    trainer, model, optimizer = tiny.parts(run.plan())
    given = run
    if locked_before:
        with run.lock() as given:
            pass
    for work in (
        lambda: begin(given, trainer, model, optimizer, SeededSource(0)),
        lambda: resume(given, trainer, model, optimizer, SeededSource(0)),
        lambda: train_durably(given, trainer, None, every=1),
    ):
        with pytest.raises(InvalidArgumentError, match="is not locked"):
            work()


def test_a_ledger_that_lost_its_last_records_is_found_by_the_checkpoints(run):
    trained(run, SeededSource(0), steps=8)
    lines = run.ledger_path.read_bytes().splitlines(keepends=True)
    run.ledger_path.write_bytes(b"".join(lines[:-1]))
    report = verify_run(run)
    assert [finding.record for finding in report.findings] == [len(lines), None]
    assert "its last records were lost" in report.findings[0].message
    with pytest.raises(LedgerError, match="lost"):
        trained(run)


def test_a_ledger_of_another_run_is_found_by_the_checkpoints(run, tmp_path):
    trained(run, SeededSource(0), steps=4)
    other = RunFolder.create(tmp_path / "other", {}, tiny.PLAN)
    trained(other, SeededSource(1), steps=4)
    shutil.copy(other.ledger_path, run.ledger_path)
    assert "rewritten or belongs to another run" in verify_run(run).findings[0].message


def test_a_plan_that_was_edited_is_refused(run):
    path = run.plans()[0]
    fields = json.loads(path.read_text())
    fields["phases"][0]["terms"]["noise_scale"] /= 2
    path.write_text(json.dumps(fields))
    with pytest.raises(InvalidArgumentError, match=r"plans/plan-0001.json is not the file that the ledger knows"):
        run.plan()
    assert not verify_run(run).good


def test_a_plan_that_understates_its_cost_is_refused_even_if_the_ledger_names_it(tmp_path):
    """`Plan.from_json` believes the file; a run computes it again."""
    fields = json.loads(tiny.PLAN.to_json())
    fields["phases"][0]["terms"]["noise_scale"] /= 2
    cheap = Plan.from_json(json.dumps(fields))
    run = RunFolder.create(tmp_path / "run", {}, cheap)
    with pytest.raises(InvalidArgumentError, match=r"its phases cost .*; it was edited"):
        run.plan()


def test_a_published_model_holds_what_was_spent(run):
    trained(run, SeededSource(0), steps=10)
    with run.lock() as locked:
        published = locked.mark_published(8)
        assert published.step == 8
        with pytest.raises(InvalidArgumentError, match="there are checkpoints after steps 0, 4, 8, 10"):
            locked.mark_published(9)
        with pytest.raises(AlreadyPublishedError):
            locked.roll_back(4)
        locked.roll_back(8)
    assert run.read_ledger().steps == 8
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [0, 4, 8]
    body = json.loads(run.ledger_path.read_text().splitlines()[-2])
    assert (body["kind"], body["model"]) == ("published", published.model_digest)


def test_published_steps_are_not_computed_again(run):
    """Their checkpoint is damaged: under the same noise even another rounding would say something of the sums."""
    trained(run, SeededSource(0), steps=8)
    with run.lock() as locked:
        published = locked.mark_published(8)
    published.model_path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="published after step 8, and the last whole checkpoint is after step 4"):
        trained(run)


def test_rolled_back_steps_get_other_noise(run):
    """Were the noise the same, two different sums under it would differ by a sum without noise."""
    first = trained(twin_of(run), SeededSource(0))
    trained(run, SeededSource(0), steps=8)
    with run.lock() as locked:
        locked.roll_back(4)
    second = trained(run)
    assert second != first
    assert verify_run(run).good
    kinds = [json.loads(line)["kind"] for line in run.ledger_path.read_text().splitlines()]
    assert kinds.count("step") == 16


def test_metrics_follow_the_steps_that_stand(run):
    def note(state, _):
        LockedRun(run.path).add_metrics(state.step, {"loss": 1.0 / state.step})

    with pytest.raises(PowerCutError):
        trained(run, SeededSource(0), callbacks=[note, cut_after(6)])
    with run.metrics_path.open("a") as file:
        file.write('{"step": 7, "lo')
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]
    trained(run, callbacks=[note])
    assert [line["step"] for line in run.metrics()] == list(range(1, 13))
    assert stat.S_IMODE(run.metrics_path.stat().st_mode) == 0o600


def test_a_full_disk_in_the_middle_of_a_step_loses_nothing(run, monkeypatch):
    from tests.ledger.test_records import Full

    expected = trained(twin_of(run), SeededSource(0))
    seen = []

    def fill(state, _):
        seen.append(state.step)
        if state.step == 6:
            records = state.ledger._records
            records._file = Full(records._file, 40, stuck=True)

    with pytest.raises(LedgerError, match="No space left"):
        trained(run, SeededSource(0), callbacks=[fill])
    assert run.read_ledger().steps == len(seen) == 6
    assert trained(run) == expected


def test_a_full_disk_in_the_middle_of_a_checkpoint_loses_nothing(run, monkeypatch):
    from inosgd.runs import saving

    expected = trained(twin_of(run), SeededSource(0))
    trained(run, SeededSource(0), steps=4)
    original = saving.write_private

    def full(path, content):
        original(path, content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_private", full)
    with pytest.raises(OSError, match="No space left"):
        trained(run)
    monkeypatch.setattr(saving, "write_private", original)
    assert [each.step for each in run.checkpoints()] == [0, 4]
    assert trained(run) == expected


def test_the_ledger_of_a_run_refuses_what_its_budgets_do_not_allow(run):
    trained(run, SeededSource(0))
    with run.lock() as locked:
        ledger = locked.open_ledger()
        with pytest.raises(BudgetExceededError):
            for step in range(tiny.STEPS, 1000):
                ledger.record(step, tiny.PLAN.at(0))
        assert (ledger.spent() <= tiny.PLAN.table.epsilons).all()
        ledger.close()


def test_verification_recomputes_with_dp_accounting(run, dp_accounting_is_asked):
    trained(run, SeededSource(0))
    report = verify_run(run)
    assert report.good
    assert report.steps == tiny.STEPS
    np.testing.assert_allclose(list(report.reference.values()), list(report.spent.values()), rtol=5e-3)
    assert isinstance(Ledger.read(run.ledger_path), Ledger)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.long)])
def test_some_kills_at_random_instants(kills, monkeypatch, capsys):
    """checks/kills.py, which says what it checks and exits with what is wrong."""
    monkeypatch.setattr(sys, "argv", ["kills.py", "--kills", str(kills), "--seed", "1"])
    runpy.run_path(str(ROOT / "checks" / "kills.py"), run_name="__main__")
    assert f"| kills (SIGKILL at a random instant) | {kills} |" in capsys.readouterr().out
