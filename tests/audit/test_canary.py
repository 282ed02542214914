"""The canary audit: correct code passes, every control is caught by the audit that is said to catch it.

Seeds are fixed. With correct code a finding is false with probability at most 5% for all owners and views together.
"""

from __future__ import annotations

import numpy as np
import pytest

from inosgd import DP_SGD, IDP_SGD, INO_SGD
from inosgd.audit import canary
from inosgd.audit.canary import Game, Played, play, play_order, repeated_finding, tasks_of, verdict
from inosgd.audit.controls import CONTROLS
from inosgd.audit.practice import honest
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.studies.runner import Failure
from tests.audit import tiny

RUNS, CANARIES = 150, 3000


def _repeated(game: Game, kind: str, runs: int = RUNS) -> Played:
    rows = game.owners
    if kind == "order":
        games = [[play_order(game, row, f"order/{run}/{row}") for row in rows.tolist()] for run in range(runs)]
        parts = [
            Played(*(np.concatenate([getattr(each, name) for each in row], axis=1) for name in canary._COLUMNS))
            for row in games
        ]
        return Played.together(parts)
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
        part = canary._block(played, block, len(game.owners))
        for view in ("white", "black"):
            found[game.claim(row).name, view] = canary.one_run_finding(
                game.claim(row), view, part.included, getattr(part, view), 0.99
            )
    return found


@pytest.fixture(scope="module")
def correct() -> dict[str, Played]:
    game = tiny.game_of()
    return {"data": _repeated(game, "data"), "order": _repeated(game, "order", 60)}


def test_correct_code_is_not_rejected(correct):
    game = tiny.game_of()
    for kind, views in (("data", ("white", "black")), ("order", ("white",))):
        for found in _findings(game, correct[kind], views).values():
            assert not found.rejected
            assert max(found.lower_bound, found.lower_bound_of_noise) <= found.accounted


def test_the_audit_of_correct_code_sees_something(correct):
    """Not rejecting would be easy without power: the liberal owner's bound must come near the accounted epsilon."""
    found = _findings(tiny.game_of(), correct["data"])["liberal", "white"]
    assert found.lower_bound_of_noise > 0.2 * found.accounted


def test_one_run_of_correct_code_is_not_rejected_and_sees_something():
    found = _one_run(tiny.game_of())
    assert not any(each.rejected for each in found.values())
    assert found["liberal", "white"].lower_bound > 0.2 * found["liberal", "white"].accounted


@pytest.mark.parametrize(("name", "runs"), [("half-noise", 300), ("rejection", 45)])
def test_repeated_trainings_catch(name, runs):
    """Half the noise moves the best share of right guesses from 78% to 90%: 200 trials reject with power 99%."""
    game = tiny.game_of(CONTROLS[name].spoil, IDP_SGD)
    found = _findings(game, _repeated(game, "data", runs), confidence=0.95)
    for view in ("white", "black"):
        assert any(each.rejected for (_, seen), each in found.items() if seen == view), view


@pytest.mark.parametrize("name", ["no-noise", "unclipped-owner", "anothers-terms"])
def test_one_run_catches(name):
    assert any(each.rejected for each in _one_run(tiny.game_of(CONTROLS[name].spoil)).values())


def test_an_unstable_order_is_caught_by_accomplices():
    game = tiny.game_of(CONTROLS["unstable-order"].spoil)
    found = _findings(game, _repeated(game, "order", 120), ("white",), confidence=0.95)
    assert found["liberal", "white"].rejected


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("loss", [canary.FIRST, canary.LAST])
def test_accomplices_show_the_whole_sensitivity_and_no_more(row, loss):
    """Thm. 3.3 met with equality: a canary among tied accomplices moves the weighted sum by exactly its threshold."""
    practice = honest(tiny.PLAN, INO_SGD)
    public = canary._with_public_owner(practice, float(practice.terms.clipping_thresholds[row]))
    assert canary._placed(public, row, loss).effect == pytest.approx(1.0, abs=1e-9)
    assert canary._scene(CONTROLS["unstable-order"].spoil(public), row).effect > 2.0


def test_the_observer_sees_the_noisy_sums():
    """Without noise, what is seen is 0 or the whole threshold, in units of the claimed noise."""
    game = tiny.game_of(CONTROLS["no-noise"].spoil)
    played = play(game, np.repeat(game.owners, 50), "look")
    claimed = game.claimed.phases[0].terms
    steps = played.black[0] * np.repeat(claimed.noise_multipliers()[game.owners], 50)
    assert np.abs(steps - np.round(steps)).max() < 1e-3
    assert (steps[~played.included[0]] == 0).all()
    taken = np.round(steps[played.included[0]])
    assert 0 < taken.mean() < game.claimed.steps


def test_white_box_score_is_the_likelihood_ratio():
    seen, rate, multiplier = np.array([-1.0, 0.3, 2.0]), 0.2, 1.5
    inside = (1 - rate) * np.exp(-(seen**2) / 2) + rate * np.exp(-((seen - 1 / multiplier) ** 2) / 2)
    wanted = np.log(inside) + seen**2 / 2
    found = canary.log_likelihood_ratio(seen, np.full(3, rate), np.full(3, multiplier))
    assert found == pytest.approx(wanted)
    certain = canary.log_likelihood_ratio(np.array([5000.0]), np.ones(1), np.array([0.1]))
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
    guilty = [canary.Finding("a", "white-box", 1.0, 1.0, 1e-5, 2.0, None, True, 9)]
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
