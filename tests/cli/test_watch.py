"""``inosgd watch`` from the outside."""

from __future__ import annotations

import os
import socket
import time

import pytest

from inosgd import SeededSource
from inosgd.cli.watch import Pace, Seen, _time_left, look
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, train_durably
from tests import tiny


def take_steps(run: RunFolder, steps: int) -> None:
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = begin(locked, trainer, model, optimizer, SeededSource(0))
        train_durably(locked, trainer, state, every=4, steps=steps)
        state.ledger.close()


@pytest.fixture
def run(tmp_path) -> RunFolder:
    made = tiny.new_run(tmp_path)
    take_steps(made, 8)
    return made


def add(run: RunFolder, step: int, losses: dict[str, float]) -> None:
    owners = {name: {"score": 0.5, "loss": loss} for name, loss in losses.items()}
    with run.lock() as locked:
        locked.add_metrics(step, {"overall": 0.625, "scored_by": "accuracy", "owners": owners})


def sign(run: RunFolder, process: int, host: str) -> None:
    (run.path / "lock").write_text(f"process {process} on {host} since now\n")


def test_one_frame(inosgd, run):
    add(run, 4, {"strict": 1.5, "liberal": 0.5})
    add(run, 8, {"strict": 1.25, "liberal": 0.75})
    outcome = inosgd("watch", "run", "--once")
    assert outcome.code == 0
    for words in ("step 8 of 12", "training", "1.250 ↓", "0.750 ↑", "left", "accuracy 62.5 %", "spent ε"):
        assert words in outcome.out
    spent = run.read_ledger().spent()
    shown = next(line for line in outcome.out.splitlines() if line.startswith("strict")).split()
    assert float(shown[-4]) >= spent[0]
    assert float(shown[-4]) == pytest.approx(spent[0], rel=0.01)


def test_it_ends_with_the_training(inosgd, tmp_path):
    take_steps(tiny.new_run(tmp_path), 12)
    outcome = inosgd("watch", "run", "--every", 0.01)  # would not return while a training runs
    assert outcome.code == 0
    assert "finished" in outcome.out
    assert "no held-out results yet" in outcome.out


def test_a_process_that_died_is_told_from_one_that_works(inosgd, run):
    sign(run, os.getpid(), socket.gethostname())
    assert look(run, Pace()).state == "training"
    sign(run, 2**22 + 1, socket.gethostname())  # above the largest process number of Linux
    assert look(run, Pace()).ended
    assert "interrupted: go on with inosgd resume" in inosgd("watch", "run").out
    sign(run, 2**22 + 1, "another-machine")
    assert look(run, Pace()).state == "training"
    (run.path / "lock").unlink()
    assert look(run, Pace()).ended


def test_watching_changes_nothing(inosgd, run):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    inosgd("watch", "run", "--once")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_the_pace_is_that_of_the_steps_that_were_watched(run):
    pace = Pace([(time.monotonic() - 10.0, 3)])
    assert pace.seconds_per_step(run, 8) == pytest.approx(2.0, rel=0.05)
    assert Pace().seconds_per_step(run, 0) is None


def test_time_left(run):
    seen = look(run, Pace())

    def left(seconds_per_step: float) -> str:
        fields = {**seen.__dict__, "seconds_per_step": seconds_per_step, "state": "training"}
        return _time_left(Seen(**fields))

    assert left(5.0) == ", about 0 min 20 s left"
    assert left(1800.0) == ", about 2 h 0 min left"


def test_many_owners_do_not_fill_the_screen(inosgd, tmp_path):
    from inosgd import Budget, Owners, PlanConfig, make_plan

    budgets = {f"o{number}": Budget(epsilon=1.0 + number, delta=1e-5) for number in range(30)}
    table = Owners.from_labels([name for name in budgets for _ in range(9)], budgets).table
    plan = make_plan(
        table,
        PlanConfig(variant="sample", steps=3, expected_batch_size=10, clipping_threshold=0.5, accountant="rdp"),
        verify=False,
    )
    RunFolder.create(tmp_path / "run", {}, plan)
    outcome = inosgd("watch", "run", "--once")
    assert "the 20 strictest of 30 owners" in outcome.out
    assert "o29" not in outcome.out


@pytest.mark.parametrize(("arguments", "words"), [(("absent",), "there is no run"), (("run", "--every", 0), "every=0")])
def test_requests_that_cannot_be_met(inosgd, run, arguments, words):
    outcome = inosgd("watch", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
