"""The canary audit: correct code passes, every control is caught by the audit that is said to catch it.

Seeds are fixed. With correct code a finding is false with probability at most 5% for all owners and views together.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from inosgd import DP_SGD, IDP_SGD, INO_SGD
from inosgd.audit import accomplices, canary, findings
from inosgd.audit import practice as practice_module
from inosgd.audit.accomplices import play_order
from inosgd.audit.canary import tasks_of
from inosgd.audit.controls import CONTROLS
from inosgd.audit.findings import repeated_finding, verdict
from inosgd.audit.game import FIRST, LAST, Game, Played, log_likelihood_ratio, play
from inosgd.audit.practice import honest
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.engine import BatchGradients, Measured
from inosgd.parallel.runner import Failure
from inosgd.rounding import Room
from tests.audit import tiny

RUNS, CANARIES = 120, 3000


def _repeated(game: Game, kind: str, runs: int = RUNS, rows=None) -> Played:
    rows = game.owners if rows is None else np.array(rows)
    if kind == "order":
        games = [[play_order(game, row, f"order/{run}/{row}") for row in rows.tolist()] for run in range(runs)]
        return Played.together([Played.side_by_side(row) for row in games])
    return Played.together([play(game, rows, f"data/{run}") for run in range(runs)])


def _findings(game: Game, played: Played, views=("white", "black"), confidence: float = 0.99):
    return {
        (game.claim(row).name, view): repeated_finding(
            game.claim(row), view, played.included[:, column], getattr(played, view)[:, column], confidence
        )
        for column, row in enumerate(game.owners.tolist())
        for view in views
    }


def _one_run(game: Game, canaries: int = CANARIES):
    played = play(game, np.repeat(game.owners, canaries), "one-run/0")
    found = {}
    for block, row in enumerate(game.owners.tolist()):
        part = findings._block(played, block, len(game.owners))
        for view in ("white", "black"):
            found[game.claim(row).name, view] = findings.one_run_finding(
                game.claim(row), view, part.included, getattr(part, view), 0.99
            )
    return found


@pytest.fixture(scope="module")
def correct() -> dict[str, Played]:
    game = tiny.game_of()
    return {"data": _repeated(game, "data"), "order": _repeated(game, "order", 32)}


def test_correct_code_is_not_rejected(correct):
    game = tiny.game_of()
    for kind, views in (("data", ("white", "black")), ("order", ("white",))):
        for found in _findings(game, correct[kind], views).values():
            assert not found.rejected
            assert max(found.lower_bound, found.lower_bound_of_noise) <= found.accounted


def test_the_audit_of_correct_code_sees_something(correct):
    """Not rejecting would be easy without power: the liberal owner's bound must come near the accounted epsilon."""
    game = tiny.game_of()
    found = _findings(game, correct["data"])["liberal", "white"]
    assert found.lower_bound_of_noise > 0.2 * found.accounted
    scores, included = correct["order"].white[:, 1], correct["order"].included[:, 1]
    right = ((scores > 0) == included).mean()  # 78% at best; 32 guesses of a blind view reach 65% with probability 5%
    assert 0.65 <= right <= 0.95


def test_one_run_of_correct_code_is_not_rejected_and_sees_something():
    found = _one_run(tiny.game_of())
    assert not any(each.rejected for each in found.values())
    assert found["liberal", "white"].lower_bound > 0.2 * found["liberal", "white"].accounted


@pytest.mark.parametrize(("name", "runs"), [("half-noise", 200), ("rejection", 45)])
def test_repeated_trainings_catch(name, runs):
    """Half the noise moves the best share of right guesses from 78% to 90%: 134 trials reject with power 98%.

    Rejection puts a canary, the only one of its class, into every batch: what was said to be rare is certain.
    """
    game = tiny.game_of(CONTROLS[name].spoil, IDP_SGD)
    found = _findings(game, _repeated(game, "data", runs), confidence=0.95)
    for view in ("white", "black"):
        assert any(each.rejected for (_, seen), each in found.items() if seen == view), view


@pytest.mark.parametrize("name", ["no-noise", "unclipped-owner", "anothers-terms"])
def test_one_run_catches(name):
    assert any(each.rejected for each in _one_run(tiny.game_of(CONTROLS[name].spoil)).values())


def test_an_unstable_order_is_caught_by_accomplices():
    """It moves the sum by 2.75 thresholds instead of 1: 97% of guesses are right where 78% are possible.

    50 trials reject if 45 are right, which has a power of 99.9%.
    """
    game = tiny.game_of(CONTROLS["unstable-order"].spoil)
    played = _repeated(game, "order", 75, [1])
    found = repeated_finding(game.claim(1), "order", played.included[:, 0], played.white[:, 0], 0.95)
    assert found.rejected


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("loss", [FIRST, LAST])
def test_accomplices_show_the_whole_sensitivity_and_no_more(row, loss):
    """Thm. 3.3 met with equality: a canary among tied accomplices moves the weighted sum by exactly its threshold."""
    practice = honest(tiny.PLAN, INO_SGD)
    public = accomplices._with_public_owner(practice, float(practice.terms.clipping_thresholds[row]))
    assert accomplices._placed(public, row, loss).effect == pytest.approx(1.0, abs=1e-9)
    assert accomplices._scene(CONTROLS["unstable-order"].spoil(public), row).effect > 2.0


def test_the_observer_sees_the_noisy_sums():
    """Without noise, what is seen is 0 or the whole threshold but for roundings, in units of the claimed noise."""
    game = tiny.game_of(CONTROLS["no-noise"].spoil)
    played = play(game, np.repeat(game.owners, 50), "look")
    claimed = game.claimed.phases[0].terms
    present = game.claimed.table.sizes + np.bincount(
        np.repeat(game.owners, 50), minlength=len(game.claimed.table.sizes)
    )
    whole = 1 - Room.of(claimed, present, torch.float32).share
    steps = played.black[0] * np.repeat(claimed.noise_multipliers()[game.owners], 50) / whole
    assert (np.abs(steps - np.round(steps)) <= 1e-3 * steps).all(), "norms are rounded up by less than that"
    assert (steps[~played.included[0]] == 0).all()
    taken = np.round(steps[played.included[0]])
    assert 0 < taken.mean() < game.claimed.steps


def test_accomplices_without_a_canary_are_seen_as_nothing_at_every_step():
    """Without noise an absent canary leaves exactly what the auditor subtracts, and a present one its threshold."""
    game = tiny.game_of(CONTROLS["no-noise"].spoil)
    multiplier = float(game.claimed.phases[0].terms.noise_multipliers()[1])
    for run in range(6):
        played = play_order(game, 1, f"look/{run}")
        taken = float(played.black[0, 0]) * multiplier
        assert abs(taken - round(taken)) < 1e-3
        assert (round(taken) > 0) == bool(played.included[0, 0])


@dataclasses.dataclass(frozen=True)
class HalfNorms:
    """An engine that measures every gradient at half its norm, so that clipping lets twice the threshold pass."""

    engine: BookkeepingEngine = dataclasses.field(default_factory=BookkeepingEngine)

    @contextmanager
    def on(self, model, losses, examples):
        with self.engine.on(model, losses, examples) as gradients:
            yield _Halved(gradients)


@dataclasses.dataclass(frozen=True)
class _Halved:
    gradients: BatchGradients

    def measure(self):
        measured = self.gradients.measure()
        return Measured(measured.losses, measured.grad_norms / 2)

    def weighted_sum(self, coefficients, error=0.0):
        return self.gradients.weighted_sum(coefficients, error)


def test_canaries_go_through_the_engine_that_users_run(monkeypatch):
    """An engine whose norms are wrong is seen: without noise a canary moves the sum by two thresholds, not one."""
    game = tiny.game_of(CONTROLS["no-noise"].spoil)
    rows, multiplier = np.ones(40, dtype=np.int64), float(game.claimed.phases[0].terms.noise_multipliers()[1])
    correct = play(game, rows, "engine")
    monkeypatch.setattr(practice_module, "BookkeepingEngine", HalfNorms)
    wrong = play(game, rows, "engine")
    moved = correct.black[0][correct.included[0]] * multiplier
    assert moved.max() <= game.claimed.steps
    assert wrong.black[0][wrong.included[0]] * multiplier == pytest.approx(2 * moved, rel=1e-3)


def test_white_box_score_is_the_likelihood_ratio():
    seen, rate, multiplier = np.array([-1.0, 0.3, 2.0]), 0.2, 1.5
    inside = (1 - rate) * np.exp(-(seen**2) / 2) + rate * np.exp(-((seen - 1 / multiplier) ** 2) / 2)
    wanted = np.log(inside) + seen**2 / 2
    found = log_likelihood_ratio(seen, np.full(3, rate), np.full(3, multiplier))
    assert found == pytest.approx(wanted)
    certain = log_likelihood_ratio(np.array([5000.0]), np.ones(1), np.array([0.1]))
    assert np.isfinite(certain).all()


def test_coins_are_fair_and_kept_apart_from_the_training():
    drawn = np.concatenate(
        [play(tiny.game_of(seed=7), np.zeros(200, dtype=np.int64), f"{n}").included[0] for n in range(5)]
    )
    assert abs(drawn.mean() - 0.5) < 0.08  # five standard deviations


def test_tasks_and_verdicts():
    game = tiny.game_of()
    assert {task.kind for task in tasks_of(game, 12, 40)} == {"data", "order", "one-run"}
    assert {task.kind for task in tasks_of(tiny.game_of(method=IDP_SGD), 12, 40)} == {"data", "one-run"}
    with pytest.raises(InvalidArgumentError, match="runs=3"):
        tasks_of(game, 3, 40)
    found = tiny.audited(game, ("data", "order", "one-run"), 12, 60)
    assert len(found) == 10
    assert verdict(list(found.values()), 0.95).startswith("Nothing is refuted at 95%")
    guilty = [findings.Finding("a", "white-box", 1.0, 1.0, 1e-5, 2.0, None, True, 9)]
    assert "REJECTED at 95% confidence: the claim for a is refuted (white-box)" in verdict(guilty, 0.95)


def test_a_failed_training_ends_the_audit(monkeypatch):
    monkeypatch.setattr(canary, "run_all", lambda *_, **__: iter([(0, Failure("data 0", "ValueError: no"))]))
    with pytest.raises(InosgdError, match="data 0: ValueError: no"):
        list(canary.play_all(tasks_of(tiny.game_of(), 12, 40)))


def test_controls_that_are_no_defect_are_refused():
    with pytest.raises(InvalidArgumentError, match="weights no example by its rank"):
        tiny.game_of(CONTROLS["unstable-order"].spoil, IDP_SGD)
    with pytest.raises(InvalidArgumentError, match="treats all owners alike"):
        tiny.game_of(CONTROLS["anothers-terms"].spoil, DP_SGD, plan=tiny.plan_for("uniform"))


def test_a_study_in_noise_units_is_audited_as_in_the_usual_one():
    game, terms = tiny.game_of(), tiny.PLAN.at(0)
    eta = game.study.config.learning_rate * terms.noise_scale / terms.expected_batch_size
    study = game.study.changed({"learning_rate": eta, "learning_rate_unit": "noise"})
    other = dataclasses.replace(game, study=study)
    rows = np.repeat(game.owners, 5)
    usual, in_noise = play(game, rows, "units"), play(other, rows, "units")
    np.testing.assert_allclose(in_noise.white, usual.white, atol=1e-3)
    wrong = dataclasses.replace(game, study=game.study.changed({"learning_rate": eta}))
    assert wrong.learning_rate != pytest.approx(other.learning_rate)
