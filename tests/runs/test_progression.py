"""Budgets change, and at any time what stands has cost no owner more than it allows."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import Budget, Fairness, PlanConfig, SeededSource, make_plan
from inosgd.accounting import epsilons_spent, reference_epsilon
from inosgd.accounting.profile import gaussian_profile
from inosgd.errors import (
    BudgetExceededError,
    InvalidArgumentError,
    RunLockedError,
    TrainingStoppedError,
    UnknownOwnerError,
)
from inosgd.ledger.history import History, widened
from inosgd.ledger.ledger import Ledger
from inosgd.plan import Phase
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import resume, train_durably
from inosgd.runs.verification import verify_run
from tests import tiny
from tests.properties import tries


def train(run: RunFolder, steps: int | None = None, source=None, every: int = 3) -> None:
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = resume(locked, trainer, model, optimizer, source).state
        try:
            left = trainer.plan.steps - state.step
            train_durably(locked, trainer, state, every=every, steps=left if steps is None else min(steps, left))
        finally:
            state.ledger.close()


def asking(run: RunFolder, **changes) -> PlanConfig:
    return dataclasses.replace(run.plan().config, **changes)


def change(run: RunFolder, changes: Changes, config: PlanConfig | None = None, *, verify: bool = False):
    proposal = propose(run, changes, config, verify=verify)
    with run.lock() as locked:
        carry_out(locked, proposal)
    return proposal


def budgets(**epsilons: float) -> Changes:
    return Changes(budgets={name: Budget(epsilon=epsilon, delta=1e-5) for name, epsilon in epsilons.items()})


def fresh_spending(run: RunFolder) -> tuple[np.ndarray, np.ndarray]:
    """What stands has cost, by an accountant that shares nothing with the planner's calls, and what is allowed."""
    ledger = Ledger.read(run.ledger_path)
    return epsilons_spent(ledger.phases, ledger.table.deltas, "pld"), ledger.table.epsilons


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = tiny.new_run(tmp_path)
    train(run, 7, SeededSource(1))
    return run


@pytest.mark.parametrize("variant", ["uniform", "sample", "scale", "both", "fair", "threshold"])
def test_a_raised_budget_is_used_by_the_remaining_steps_with_the_past_counted(tmp_path, variant):
    run = tiny.new_run(tmp_path, tiny.first_plan(variant=variant))
    train(run, 6, SeededSource(1))
    before = run.read_ledger().spent()
    proposal = change(run, budgets(strict=3.0), verify=True)
    assert (proposal.action, proposal.step, proposal.plan.steps) == ("continue", 6, tiny.STEPS)
    assert proposal.plan.at(5) == tiny.first_plan(variant=variant).at(0)
    np.testing.assert_allclose(proposal.kept, before)
    train(run)
    spent, allowed = fresh_spending(run)
    assert (spent <= allowed).all()
    assert spent[0] > 1.0
    if variant == "scale":
        np.testing.assert_allclose(spent, allowed, rtol=2e-3)
    ledger = run.read_ledger()
    for owner in range(2):
        exposures = [
            (phase.terms.sampling_rates[owner], phase.terms.noise_multipliers()[owner], phase.steps)
            for phase in ledger.phases
        ]
        assert reference_epsilon(exposures, 1e-5, "pld", discretization=1e-3) <= allowed[owner] * (1 + 1e-3)
    assert verify_run(run).good


def test_replanning_keeps_the_limit_on_the_profile_unless_it_is_lifted_by_name(tmp_path):
    """The strict owner's epsilon at a thousandth of its delta, all phases composed, against the limit asked for."""
    run = tiny.new_run(tmp_path, tiny.first_plan(profile_margin=0.05))
    train(run, 3, SeededSource(1))
    limit = 1.05 * gaussian_profile(1.0, 1e-5).epsilon_at_thousandth

    def at_thousandth(config: PlanConfig | None = None) -> float:
        plan = propose(run, budgets(liberal=12.0), config, verify=False).plan
        return float(epsilons_spent(plan.phases, np.full(2, 1e-8), "pld")[0])

    assert at_thousandth() <= limit
    assert at_thousandth(asking(run, profile_margin=None)) > limit  # what forgetting it did


def test_replanning_asks_for_the_same_and_says_so_in_the_new_plan(tmp_path):
    knobs = {"fairness": Fairness(exponent=8.0, max_ratio=1.0), "profile_margin": 0.2, "allow_large_deltas": True}
    run = tiny.new_run(tmp_path, tiny.first_plan(variant="fair", accountant="rdp", **knobs))
    train(run, 3, SeededSource(1))
    first = run.plan().config
    assert {name: getattr(first, name) for name in knobs} == knobs
    plan = change(run, budgets(liberal=12.0)).plan
    assert plan.config == run.plan().config == first
    assert plan.accountant == "rdp"
    products = plan.at(3).sampling_rates * plan.at(3).clipping_thresholds
    assert products[1] == pytest.approx(products[0], rel=1e-6)
    other = propose(run, budgets(liberal=12.0), asking(run, fairness=Fairness()), verify=False).plan
    assert other.config == dataclasses.replace(first, fairness=Fairness())
    free = other.at(3).sampling_rates * other.at(3).clipping_thresholds
    assert free[1] > 1.5 * free[0]  # what forgetting the cap would do


def test_a_noise_scale_that_was_asked_for_is_kept(tmp_path):
    asked = {"expected_batch_size": None, "clipping_threshold": 0.5, "noise_scale": 2.0}
    run = tiny.new_run(tmp_path, tiny.first_plan(**asked))
    train(run, 3, SeededSource(1))
    plan = change(run, budgets(liberal=12.0)).plan
    assert {phase.terms.noise_scale for phase in plan.phases} == {2.0}
    assert plan.at(3).expected_batch_size > plan.at(0).expected_batch_size


def test_a_plan_by_hand_needs_a_configuration_to_replan(tmp_path):
    run = tiny.new_run(tmp_path, dataclasses.replace(tiny.PLAN, config=None))
    train(run, 3, SeededSource(1))
    with pytest.raises(InvalidArgumentError, match="config=None: the plan of the run was made by hand"):
        propose(run, budgets(liberal=12.0))
    assert propose(run, budgets(liberal=12.0), tiny.PLAN.config, verify=False).plan.config == tiny.PLAN.config


def test_a_delta_that_is_too_large_for_the_owners_that_join_is_refused(run):
    joining = Changes(budgets={"late": Budget(epsilon=1.0, delta=0.05)}, sizes={"late": 20})
    with pytest.raises(InvalidArgumentError, match="allow_large_deltas"):
        propose(run, joining, verify=False)
    assert propose(run, joining, asking(run, allow_large_deltas=True), verify=False).plan is not None


def test_forgetting_the_past_would_overspend(run):
    """The negative control of counting: the same request without the past, after the same steps."""
    table = propose(run, budgets(strict=3.0), verify=False).table
    naive = make_plan(table, asking(run, steps=5), verify=False)
    ledger = run.read_ledger()
    spent = epsilons_spent([*ledger.phases, *naive.phases], table.deltas, "pld")
    assert (spent > table.epsilons).all()
    with run.lock() as locked:
        writing = locked.open_ledger()
        writing.mark_change(7, table)
        with pytest.raises(BudgetExceededError):
            for step in range(7, 12):
                writing.record(step, naive.at(0))
        writing.close()


def test_a_lowered_budget_goes_back_to_the_last_checkpoint_that_it_allows(run):
    ledger = run.read_ledger()
    at = {step: ledger.spent(until=step)[0] for step in (3, 6, 7)}
    saved = run.checkpoint_at(3).model_digest
    limit = (at[3] + at[6]) / 2
    proposal = propose(run, budgets(strict=limit), verify=False)
    assert (proposal.action, proposal.step, proposal.recorded) == ("roll back", 3, 7)
    assert "owner 'strict' allows" in proposal.reason
    assert "the 4 steps after it are given up" in proposal.reason
    np.testing.assert_allclose([proposal.spent[0], proposal.kept[0]], [at[7], at[3]])
    assert run.read_ledger().steps == 7  # only shown
    with run.lock() as locked:
        carry_out(locked, proposal)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [0, 3]
    assert run.checkpoint_at(3).model_digest == saved
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = resume(locked, trainer, model, optimizer).state
        state.ledger.close()
    assert state.step == 3
    train(run)
    spent, allowed = fresh_spending(run)
    assert (spent <= allowed).all()
    assert allowed[0] == limit
    assert run.read_ledger().steps == tiny.STEPS
    assert verify_run(run).good


def test_a_lowered_budget_that_still_covers_what_was_spent_goes_on(run):
    spent = run.read_ledger().spent()[0]
    proposal = change(run, budgets(strict=(1 + spent) / 2))
    assert (proposal.action, proposal.step) == ("continue", 7)
    train(run)
    assert (fresh_spending(run)[0] <= fresh_spending(run)[1]).all()


def test_published_spending_is_never_given_back(run):
    """A roll back behind a published model is proposed as a stop; the ledger itself refuses it too."""
    ledger = run.read_ledger()
    low = ledger.spent(until=3)[0]
    assert propose(run, budgets(strict=low * 1.01), verify=False).action == "roll back"  # nothing is published
    with run.lock() as locked:
        locked.mark_published(6)
    proposal = propose(run, budgets(strict=low * 1.01), verify=False)
    assert (proposal.action, proposal.plan, proposal.step) == ("stop", None, 7)
    assert "when the model was published after step 6" in proposal.reason
    with run.lock() as locked:
        carry_out(locked, proposal)
    assert run.read_ledger().table == ledger.table  # what cannot be honoured is not on record as if it were
    with pytest.raises(TrainingStoppedError, match="published after step 6"):
        train(run)
    between = ledger.spent(until=6)[0] * 1.0001
    assert change(run, budgets(strict=between)).step == 6
    train(run)
    assert run.read_ledger().published == 6
    assert (fresh_spending(run)[0] <= fresh_spending(run)[1]).all()


def test_a_stopped_wish_is_asked_again_until_it_is_taken_back(run):
    with run.lock() as locked:
        locked.mark_published(6)
    change(run, budgets(strict=0.01))
    assert propose(run, budgets(liberal=9.0), verify=False).action == "stop"
    assert propose(run, budgets(strict=1.0), verify=False).action == "continue"
    gone = change(run, Changes(withdrawn=("strict",)))
    assert gone.action == "continue"
    assert gone.table.epsilons[0] == 1.0  # the budget under which it has spent what it has
    train(run)
    assert run.read_ledger().steps == tiny.STEPS


def test_a_withdrawn_owner_is_never_sampled_again_and_stays_on_record(run):
    before = run.read_ledger().spent()
    proposal = change(run, Changes(withdrawn=("strict",)))
    assert proposal.action == "continue"
    assert proposal.table.sizes.tolist() == [0, 25]
    assert proposal.plan.at(7).sampling_rates[0] == 0
    train(run)
    after = run.read_ledger().spent()
    assert after[0] == before[0]
    assert before[1] < after[1] <= 8.0
    assert run.read_ledger().table.names == ("strict", "liberal")
    with pytest.raises(InvalidArgumentError, match="or has withdrawn; give their number in sizes"):
        propose(run, budgets(strict=2.0), verify=False)
    back = Changes(budgets={"strict": Budget(epsilon=2.0, delta=1e-5)}, sizes={"strict": 10})
    again = change(run, back, asking(run, steps=20))
    assert again.plan.at(12).sampling_rates[0] > 0
    train(run)
    spent, allowed = fresh_spending(run)
    assert (spent <= allowed).all()
    assert spent[0] > before[0]


def test_owners_join_with_nothing_spent(run):
    proposal = change(run, Changes(budgets={"late": Budget(epsilon=2.0, delta=1e-6)}, sizes={"late": 20}))
    assert proposal.table.names == ("strict", "liberal", "late")
    assert proposal.spent[2] == 0
    assert proposal.plan.at(0).sampling_rates[2] == 0
    train(run)
    spent, allowed = fresh_spending(run)
    assert (spent <= allowed).all()
    assert spent[2] > 1.9
    assert verify_run(run).good


def test_owners_with_nothing_left_rest(run):
    train(run)
    nothing = propose(run, budgets(strict=4.0), verify=False)
    assert nothing.plan.steps == tiny.STEPS
    assert "no steps are left; ask for more" in nothing.reason
    proposal = change(run, budgets(strict=4.0), asking(run, steps=20))
    assert proposal.resting == ("liberal",)
    assert proposal.plan.at(15).sampling_rates[1] == 0
    train(run)
    spent, allowed = fresh_spending(run)
    assert (spent <= allowed).all()
    assert spent[0] > 3.9
    none = propose(run, Changes(), asking(run, steps=30), verify=False)
    assert none.action == "stop"
    assert "none is left that has examples and anything to spend" in none.reason


def test_steps_without_a_checkpoint_are_given_up_with_a_word(run):
    with run.lock():
        shutil.rmtree(run.checkpoint_at(7).path)
    proposal = change(run, budgets(strict=2.0))
    assert (proposal.action, proposal.step) == ("roll back", 6)
    assert "1 recorded steps came after the last checkpoint" in proposal.reason
    train(run)
    assert (fresh_spending(run)[0] <= fresh_spending(run)[1]).all()


def test_without_a_whole_checkpoint_there_is_nothing_to_go_back_to(run):
    for checkpoint in run.checkpoints():
        checkpoint.model_path.write_bytes(b"")
    proposal = propose(run, budgets(strict=0.01), verify=False)
    assert (proposal.action, proposal.plan) == ("stop", None)
    assert "no checkpoint is whole" in proposal.reason


def test_a_proposal_that_time_has_overtaken_is_refused(run):
    proposal = propose(run, budgets(strict=2.0), verify=False)
    train(run, 1)
    with run.lock() as locked, pytest.raises(InvalidArgumentError, match="propose again"):
        carry_out(locked, proposal)
    with pytest.raises(InvalidArgumentError, match="is not locked"):
        carry_out(run, proposal)


def test_killed_between_the_record_and_the_rest_the_next_resume_does_the_rest(run, monkeypatch):
    limit = float(run.read_ledger().spent(until=3)[0]) * 1.01
    proposal = propose(run, budgets(strict=limit), verify=False)
    with monkeypatch.context() as patch, run.lock() as locked:
        patch.setattr(LockedRun, "forget_after", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            carry_out(locked, proposal)
    assert len(list(run.checkpoints_path.glob("step-*"))) == 4
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [0, 3]
    train(run)
    assert verify_run(run).good
    assert (fresh_spending(run)[0] <= fresh_spending(run)[1]).all()


def test_two_runs_with_the_same_history_reach_the_same_bits(tmp_path):
    ends = []
    for name in ("one", "two"):
        run = tiny.new_run(tmp_path / name)
        train(run, 7, SeededSource(1))
        change(run, budgets(strict=2.0))
        train(run, 3, every=2)
        train(run, every=5)
        ends.append(run.checkpoints()[-1].model_digest)
    assert ends[0] == ends[1]


def test_senseless_changes_are_refused(run):
    with pytest.raises(UnknownOwnerError, match="cannot withdraw"):
        propose(run, Changes(withdrawn=("nobody",)))
    with pytest.raises(InvalidArgumentError, match="withdraw and have a budget at once"):
        propose(run, Changes(budgets={"strict": Budget(epsilon=1.0, delta=1e-5)}, withdrawn=("strict",)))
    with pytest.raises(InvalidArgumentError, match=r"budgets\['late'\]: the owner has no examples"):
        propose(run, budgets(late=1.0))
    with pytest.raises(UnknownOwnerError, match="has a size and no budget"):
        propose(run, Changes(sizes={"late": 3}))
    with pytest.raises(InvalidArgumentError, match="steps=5: 7 steps stand"):
        propose(run, Changes(), asking(run, steps=5))
    with run.lock(), pytest.raises(RunLockedError), run.lock():
        pass


EPSILONS = st.floats(-2.0, 1.3).map(lambda power: float(10**power))
EVENTS = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 6)),
    st.tuples(st.just("train"), st.integers(1, 6)),
    st.tuples(st.just("budget"), st.sampled_from(["strict", "liberal"]), EPSILONS, st.sampled_from([1e-5, 1e-6])),
    st.tuples(st.just("join"), EPSILONS),
    st.tuples(st.just("withdraw"), st.sampled_from(["strict", "liberal"])),
    st.tuples(st.just("publish")),
)


def live(run: RunFolder, event: tuple) -> None:
    """One event in the life of a run; what is refused as senseless is no event."""
    kind, *details = event
    if kind == "train":
        if run.read_ledger().stopped is None:
            train(run, details[0], SeededSource(1))
    elif kind == "publish":
        with run.lock() as locked:
            locked.mark_published()
    else:
        change(run, asked(run, kind, details), asking(run, steps=40))


def asked(run: RunFolder, kind: str, details: list) -> Changes:
    if kind == "withdraw":
        return Changes(withdrawn=(details[0],))
    if kind == "budget":
        return Changes(
            budgets={details[0]: Budget(epsilon=details[1], delta=details[2])},
            sizes={details[0]: tiny.SIZES[details[0]]},
        )
    name = f"owner {len(run.read_ledger().table)}"
    return Changes(budgets={name: Budget(epsilon=details[0], delta=1e-5)}, sizes={name: 10})


def still_stands(ledger: Ledger, published: tuple[Phase, ...]) -> bool:
    """Whether the steps that a published model rests on are all still counted, under the terms that they had."""
    steps = sum(phase.steps for phase in published)
    wide = tuple(widened(phase, len(ledger.table)) for phase in published)
    return ledger.steps >= steps and ledger.phases_until(steps) == wide


@tries(3)
@given(st.lists(EVENTS, min_size=2, max_size=6), st.sampled_from([tiny.PLAN, tiny.first_plan(variant="scale")]))
def test_after_any_sequence_of_changes_no_owner_has_spent_more_than_it_allows(events, plan):
    """And what was published is never missing from what stands."""
    with tempfile.TemporaryDirectory() as folder:
        run = tiny.new_run(Path(folder), plan)
        train(run, 3, SeededSource(1))
        published: tuple[Phase, ...] = ()
        for event in events:
            live(run, event)
            spent, allowed = fresh_spending(run)
            assert (spent <= allowed).all()
            ledger = run.read_ledger()
            if event[0] == "publish":
                published = ledger.phases
            assert still_stands(ledger, published)


def test_a_ledger_that_rolled_back_behind_a_published_model_would_be_caught(run, monkeypatch):
    """The negative control: without the ledger's check, what was published is missing."""
    with run.lock() as locked:
        locked.mark_published(6)
    published = run.read_ledger().phases_until(6)
    assert still_stands(run.read_ledger(), published)
    monkeypatch.setattr(History, "check_return", lambda self, step: None)
    with run.lock() as locked:
        locked.roll_back(3)
    assert not still_stands(run.read_ledger(), published)
    monkeypatch.undo()
    assert "cannot stand there: rolling back to step 3 is refused" in verify_run(run).findings[0].message
