from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.audit.lira import leave_one_out_scores
from inosgd.audit.roc import Roc, roc_intervals
from inosgd.errors import InvalidArgumentError


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_probability_that_a_member_scores_higher(pairs):
    scores = np.array([score for score, _ in pairs], dtype=float)
    members = np.array([present for _, present in pairs])
    if members.all() or not members.any():
        return
    inside, outside = scores[members][:, None], scores[~members][None]
    wanted = ((inside > outside) + 0.5 * (inside == outside)).mean()
    roc = Roc.of(scores, members)
    assert roc.auc == pytest.approx(wanted)
    assert (roc.false_positive_rates[-1], roc.true_positive_rates[-1]) == (1.0, 1.0)


def test_true_positive_rate_at_a_price():
    scores = np.arange(200.0)
    members = scores >= 100
    members[[50, 199]] = [True, False]  # one member below, one alarm at the top
    roc = Roc.of(scores, members)
    assert roc.true_positive_rate_at(0.001) == 0.0
    assert roc.true_positive_rate_at(0.01) == pytest.approx(0.99)
    assert roc.true_positive_rate_at(1.0) == 1.0


def test_interval_is_honest_about_models_that_share_their_luck():
    """Every model shifts all of its scores: pairs are worth as little as there are models.

    300 experiments with 20 models at 90%: coverage of 85% or less has probability 0.4% if it is truly 90%.
    """
    rng, covered = np.random.default_rng(0), 0
    for repeat in range(300):
        members = rng.random((20, 30)) < 0.5
        strength = rng.normal(0.3, 0.5, size=(20, 1))
        scores = rng.normal(size=(20, 30)) + strength * members
        low, high = roc_intervals(scores, members, 0.9, seed=repeat, resamples=60).auc
        covered += low <= _TRUE_AREA <= high
    assert covered > 255


def test_intervals_of_an_attack_cover_what_it_reaches_on_average():
    """Leaving one out, models are targets and statistics at once, which resampling them does not quite follow.

    80 attacks at 90%: 64 or fewer that cover have probability 0.4% if the true coverage is 90%.
    """
    rng, attacks = np.random.default_rng(2), []
    for _ in range(80):
        members = rng.random((48, 30)) < 0.5
        scores = leave_one_out_scores(rng.normal(size=(48, 30)) + 0.7 * members, members, "online")
        found, within = Roc.of(scores.ravel(), members.ravel()), roc_intervals(scores, members, 0.9, resamples=40)
        attacks.append((found.auc, within.auc, found.true_positive_rate_at(0.01), within.at_1_percent))
    for value, interval in ((0, 1), (2, 3)):
        mean = np.mean([each[value] for each in attacks])
        assert sum(each[interval][0] <= mean <= each[interval][1] for each in attacks) > 64


def test_a_curve_needs_members_and_others():
    with pytest.raises(InvalidArgumentError, match="3 of 3 scores are of members"):
        Roc.of(np.arange(3.0), np.ones(3, dtype=bool))


def _true_area() -> float:
    """For the experiment above, by simulation: a member of one model against a non-member of any."""
    rng = np.random.default_rng(1)
    inside = rng.normal(size=400_000) + rng.normal(0.3, 0.5, size=400_000)
    return float((inside > rng.normal(size=400_000)).mean())


_TRUE_AREA = _true_area()
