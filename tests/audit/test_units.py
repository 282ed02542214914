"""Audits of trainings that protect units: a whole unit is inserted or left out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from inosgd import IDP_SGD, make_plan
from inosgd.audit.audited import Audited
from inosgd.audit.controls import CONTROLS
from inosgd.audit.game import UNIT_ROWS, Game, play
from inosgd.audit.practice import honest
from inosgd.audit.shadow import ShadowTask, membership, stackable, train_shadows, unit_means
from inosgd.errors import InvalidArgumentError
from inosgd.study.study import StudyData, only_examples
from inosgd.units import Units
from tests.audit import tiny
from tests.studies import perceptron_study

pytestmark = pytest.mark.usefixtures("engine_tries_models")  # it has not seen units of so many rows before


def split(seed: int) -> StudyData:
    """The tiny study with two or three rows per person."""
    data = tiny.split(seed)
    of_row = np.arange(len(data.examples)) // 3 * 2 + data.owners.assignment  # a person has one owner
    units = Units.of(of_row, name="person")
    owners = units.owned_by(data.owners)
    return dataclasses.replace(
        data, owners=owners, train_groups=owners.assignment, units=units, row_owners=data.owners.assignment
    )


STUDY = perceptron_study("people", split, 4, 3, 2, rate=0.5, steps=4, expected_batch_size=10, clipping_threshold=0.5)
DATA = split(0)
PLAN = make_plan(DATA.owners.table, STUDY.config.plan, verify=False)


def game_of(control: str | None = None) -> Game:
    practice = honest(PLAN, IDP_SGD)
    return Game(STUDY, DATA, PLAN, practice if control is None else CONTROLS[control].spoil(practice), 3)


def found(game: Game, runs: int = 24):
    return tiny.audited(game, ("data", "one-run"), runs, 40)


def test_a_whole_person_is_inserted_and_the_claim_stands():
    findings = found(game_of())
    assert {owner for owner, _ in findings} == {"strict", "liberal"}
    assert not any(each.rejected for each in findings.values())


def test_rows_that_are_sampled_and_clipped_one_by_one_are_refuted_at_the_claim_for_persons():
    """The negative control of every claim about units: what row-level training does."""
    findings = found(game_of("rows-as-units"), 60)
    assert findings["liberal", "white-box"].rejected
    assert findings["strict", "white-box"].rejected or findings["liberal", "black-box"].rejected


def test_an_inserted_person_moves_its_coordinate_by_one_threshold_and_by_many_in_the_control():
    """Without noise, and with a canary in every batch."""

    def moved(control: str | None) -> float:
        game = game_of(control)
        noise_scale = 1e-3 * game.practice.terms.noise_scale
        terms = dataclasses.replace(game.practice.terms, sampling_rates=np.ones(2), noise_scale=noise_scale)
        silent = dataclasses.replace(game, practice=game.practice.with_terms(terms))
        for number in range(20):
            played = play(silent, np.array([1]), f"moved/{number}")
            if played.included[0, 0]:
                return float(played.black[0, 0])
        raise AssertionError("no canary was in")

    claimed = PLAN.phases[0].terms
    one = PLAN.steps * claimed.clipping_thresholds[1] / claimed.noise_scale
    assert moved(None) == pytest.approx(one, rel=0.02)
    assert moved("rows-as-units") == pytest.approx(UNIT_ROWS * one, rel=0.02)


def test_the_control_needs_units():
    with pytest.raises(InvalidArgumentError, match="gathers rows in units"):
        Audited.of(tiny.STUDY, "rows-as-units", 0, halves=False)


def test_shadow_models_leave_out_whole_persons():
    task = ShadowTask(STUDY, honest(PLAN, IDP_SGD), 0, (0, 1))
    assert not stackable(STUDY, DATA, 0)
    confidences = train_shadows(task)
    assert confidences.shape == (2, len(DATA.units))
    chosen = np.flatnonzero(membership(0, 0, len(DATA.units)))
    part = only_examples(DATA, chosen)
    assert part.units.row_count == DATA.units.counts[chosen].sum()


def test_a_persons_confidence_is_the_mean_of_its_rows():
    values = np.arange(10.0)[None]
    units = Units.of(np.array([0, 1, 0, 2, 2, 2, 1, 3, 3, 0]))
    expected = [values[0, units.rows_of(np.array([unit]))].mean() for unit in range(4)]
    np.testing.assert_allclose(unit_means(values, units)[0], expected)


def test_nothing_of_an_audit_depends_on_torchs_generator():
    state = torch.get_rng_state()
    play(game_of(), np.array([0]), "quiet")
    assert torch.equal(torch.get_rng_state(), state)
