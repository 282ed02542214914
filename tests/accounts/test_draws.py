"""Draws: ledgers that ask before every release, and reservations that are settled by them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from inosgd.accounts.draws import Draw, remaining, settle_from_run
from inosgd.accounts.verification import verify_book
from inosgd.counting import Labels, count_classes
from inosgd.errors import AccountError, AccountExceededError, LedgerError, RunLockedError
from inosgd.ledger.records import Position
from inosgd.owners import Budget
from inosgd.plan import Phase
from inosgd.plan_config import Counting
from inosgd.randomness import SeededSource
from inosgd.runs.folder import RunFolder
from inosgd.training import TrainingState, fit
from tests.accounts.books import new_book, plan_within, spent
from tests.tiny import first_owners, parts

TABLE = first_owners().table


@pytest.fixture
def book(tmp_path):
    with new_book(f"sqlite:///{tmp_path}/a.db", TABLE) as opened:
        yield opened


def tiny_plan(book, share=0.5, **asked):
    return plan_within(book, TABLE, share, 12, expected_batch_size=10, clipping_threshold=0.5, **asked)


def draw_in_run(book, folder, plan, steps: int, block: int = 4) -> RunFolder:
    """A run that took some steps and died."""
    run = RunFolder.create(folder / "run", {}, plan)
    with run.lock() as locked:
        ledger = locked.open_ledger()
        ledger.permission = Draw.reserve(book, "patients", plan, run=run.path, block=block)
        for step in range(steps):
            ledger.record(step, plan.at(step))
        ledger.close()
    return run


def test_a_real_training_is_charged_what_its_ledger_has(book):
    plan = tiny_plan(book)
    draw = Draw.reserve(book, "patients", plan, block=5)
    trainer, model, optimizer = parts(plan)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(0), draw.ledger(plan))
    fit(trainer, state, steps=7)
    assert draw.state.committed == 10
    assert draw.finish().committed == 7 == state.ledger.steps
    assert verify_book(book).findings == []


def test_a_training_whose_book_is_moved_replaced_or_deleted_takes_no_further_step(tmp_path):
    """It would draw on a file that no owner sees any more; renamed back, the file is its book again."""
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with new_book(f"sqlite:///{path}", TABLE) as book:
        plan = tiny_plan(book)
        draw = Draw.reserve(book, "patients", plan, heeding=True, block=5)
        draw.before(plan.at(0), Position(1, "0" * 64))
        shutil.copy(path, tmp_path / "copy.db")
        path.rename(aside)
        for replacement in (None, tmp_path / "copy.db"):
            if replacement is not None:
                replacement.rename(path)
            with pytest.raises(AccountError, match="moved, replaced or deleted while it was open"):
                draw.before(plan.at(1), Position(2, "0" * 64))
            with pytest.raises(AccountError, match="moved, replaced or deleted"), book.database.writing():
                pass
        aside.rename(path)
        draw.before(plan.at(1), Position(2, "0" * 64))
        assert draw.taken == 2


def test_a_refused_release_is_not_recorded_and_changes_nothing(book):
    plan = tiny_plan(book, share=1.0)
    draw = Draw.reserve(book, "patients", plan, block=3)
    trainer, model, optimizer = parts(plan)
    state = TrainingState.start(trainer, model, optimizer, SeededSource(0), draw.ledger(plan))
    fit(trainer, state, steps=6)
    before = [parameter.clone() for parameter in model.parameters()]
    book.set_budgets("patients", {"strict": Budget(epsilon=0.7, delta=1e-5)})
    with pytest.raises(AccountExceededError, match="'strict'"):
        fit(trainer, state)
    assert state.ledger.steps == state.step == 6
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_counts_of_classes_are_releases_too(book):
    owners = first_owners()
    plan = tiny_plan(book, counting=Counting(2, ("liberal",), share=0.6))
    assert plan.count is not None
    draw = Draw.reserve(book, "patients", plan, block=50)
    ledger = draw.ledger(plan)
    assert draw.state.releases == (1, 12)
    labels = Labels(("no", "yes"), torch.arange(len(owners)).numpy() % 2)
    count_classes(ledger, plan, owners, labels, SeededSource(0))
    assert draw.taken == 1
    ledger.record(0, plan.at(0))
    strict, liberal = spent(book)
    draw.finish()
    assert spent(book)[1] < liberal
    assert 0 < spent(book)[0] < strict  # committed ahead of its steps, and given back
    assert verify_book(book).findings == []


def test_a_dead_run_is_settled_as_it_is_committed(book, tmp_path):
    run = draw_in_run(book, tmp_path, tiny_plan(book), 6)
    (state,) = book.reservations(only_open=True)
    assert state.committed == 8
    with run.lock(), pytest.raises(RunLockedError):
        settle_from_run(book, state)
    assert settle_from_run(book, state).committed == 8  # its ledger has 6, and may have lost its end


def test_a_ledger_that_was_shortened_within_a_block_settles_all_of_the_block(book, tmp_path):
    run = draw_in_run(book, tmp_path, tiny_plan(book), 7)
    lines = run.ledger_path.read_bytes().splitlines(keepends=True)
    run.ledger_path.write_bytes(b"".join(lines[:-3]))  # as it was at the second commitment
    assert settle_from_run(book, book.reservations()[0]).committed == 8


def test_a_block_that_was_committed_meanwhile_is_not_given_back(book):
    plan = tiny_plan(book)
    draw = Draw.reserve(book, "patients", plan, block=4)
    ledger = draw.ledger(plan)
    ledger.record(0, plan.at(0))
    seen = book.reservation(draw.state.id)
    for step in range(1, 6):
        ledger.record(step, plan.at(step))
    assert settle_from_run(book, seen, forfeit=True).committed == 8  # and not the 4 of then
    ledger.record(6, plan.at(6))
    ledger.record(7, plan.at(7))
    with pytest.raises(AccountError, match="has ended"):
        ledger.record(8, plan.at(8))
    with pytest.raises(AccountError, match="has ended"):
        draw.finish()


def test_a_draw_that_goes_on_gives_back_nothing_of_an_earlier_process(book, tmp_path):
    plan = tiny_plan(book)
    draw_in_run(book, tmp_path, plan, 6)
    (state,) = book.reservations(only_open=True)
    again = Draw(book, state, plan.phases, taken=4)  # by a ledger that has lost two records
    again.before(plan.at(4), Position(1, "0" * 64))
    assert again.finish().committed == 8


def test_two_processes_do_not_draw_on_one_reservation(book, tmp_path):
    plan = tiny_plan(book)
    draw_in_run(book, tmp_path, plan, 4)
    (state,) = book.reservations(only_open=True)
    ones, others = (Draw(book, state, plan.phases, taken=4, block=4) for _ in range(2))
    ones.before(plan.at(4), Position(1, "0" * 64))
    with pytest.raises(AccountError, match="a copy of the run"):
        others.before(plan.at(4), Position(1, "0" * 64))


def test_blocks_are_short_in_short_trainings(book):
    plan = tiny_plan(book)
    draw = Draw.reserve(book, "patients", plan)
    draw.before(plan.at(0), Position(1, "0" * 64))
    assert draw.state.committed == 1
    long = replace(draw.state, releases=(400,)), replace(draw.state, releases=(100_000,))
    assert [Draw(book, each, plan.phases)._block for each in long] == [20, 50]


def test_a_ledger_that_was_shortened_behind_a_commitment_settles_nothing(book, tmp_path):
    run = draw_in_run(book, tmp_path, tiny_plan(book), 6)
    (state,) = book.reservations(only_open=True)
    lines = run.ledger_path.read_bytes().splitlines(keepends=True)
    run.ledger_path.write_bytes(b"".join(lines[:-3]))  # two steps are behind the second commitment, and one before it
    with pytest.raises(LedgerError, match="its last records were lost"):
        settle_from_run(book, state)
    assert book.reservation(state.id).state == "reserved"


def test_a_ledger_that_went_on_without_its_account_is_noticed(book, tmp_path):
    plan = tiny_plan(book)
    run = draw_in_run(book, tmp_path, plan, 4)
    with run.lock() as locked:
        ledger = locked.open_ledger()
        for step in range(4, 8):
            ledger.record(step, plan.at(step))
        ledger.close()
    with pytest.raises(AccountError, match="went on without it"):
        settle_from_run(book, book.reservations()[0])


def test_what_was_rolled_back_stays_charged(book, tmp_path):
    run = draw_in_run(book, tmp_path, tiny_plan(book), 6)
    with run.lock() as locked:
        ledger = locked.open_ledger()
        ledger.mark_rollback(2)
        ledger.close()
    assert settle_from_run(book, book.reservations()[0]).committed == 8


def test_remaining_phases():
    phases = [Phase(2, None), Phase(3, None)]
    assert [phase.steps for phase in remaining(phases, 0)] == [2, 3]
    assert [phase.steps for phase in remaining(phases, 1)] == [1, 3]
    assert [phase.steps for phase in remaining(phases, 2)] == [3]
    assert [phase.steps for phase in remaining(phases, 4)] == [1]
    assert remaining(phases, 5) == []
