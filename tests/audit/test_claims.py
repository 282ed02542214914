from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import norm

from inosgd import Budget, Owners
from inosgd.accounting.privacy_loss import PrivacyProfile, SampledGaussian, compose
from inosgd.accounting.profile import best_true_positive_rate
from inosgd.audit.claims import MOST_OWNERS, claim_of, highest_auc, highest_curve, subjects_of
from inosgd.plan import Phase, Plan, Terms
from inosgd.study.study import Groups
from tests.audit import tiny


def test_highest_auc_of_a_plain_gaussian_is_the_known_one():
    profile = compose([SampledGaussian(1.0, 1.0, 1)])
    assert highest_auc(profile) == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=6e-4)
    assert highest_auc(profile) >= norm.cdf(1 / np.sqrt(2))


def test_curve_of_few_knots_is_never_below_the_exact_one_and_close():
    profile = claim_of(tiny.PLAN, np.array([0]), "strict").profile
    rates = np.linspace(0, 1, 31)
    exact = np.array([best_true_positive_rate(profile, rate) for rate in rates.tolist()])
    found = highest_curve(profile, rates)
    assert (found >= exact - 1e-12).all()
    assert np.abs(found - exact).max() < 2e-3


def test_a_profile_allows_less_than_its_budget():
    claim = claim_of(tiny.PLAN, np.array([0]), "strict")
    rates = np.linspace(0, 1, 21)
    assert (highest_curve(claim.profile, rates) <= highest_curve(claim.at_budget(), rates) + 1e-9).all()
    assert highest_auc(claim.profile) < highest_auc(claim.at_budget()) - 0.05


def test_no_privacy_allows_everything_and_no_release_nothing():
    assert highest_auc(PrivacyProfile(np.zeros(1), np.zeros(1))) == pytest.approx(0.5, abs=1e-3)
    assert highest_auc(PrivacyProfile(np.array([np.inf]), np.array([0.0]))) == 1.0


def test_claims_follow_the_plan():
    claim = claim_of(tiny.PLAN, np.array([1]), "liberal")
    assert claim.epsilon == 8.0
    assert claim.profile.epsilon(claim.delta) == pytest.approx(claim.spent, rel=1e-3)
    assert claim.with_noise(0.5).epsilon(1e-5) > claim.spent > claim.with_noise(2.0).epsilon(1e-5)


def test_one_subject_per_owner():
    subjects = subjects_of(tiny.PLAN, tiny.DATA)
    assert [each.claim.name for each in subjects] == ["strict", "liberal"]
    together = np.sort(np.concatenate([each.examples for each in subjects]))
    assert together.tolist() == list(range(len(tiny.DATA.examples)))


def test_many_owners_are_told_by_groups_under_the_weakest_claim_among_them():
    count = MOST_OWNERS + 8
    budgets = {f"o{row}": Budget(epsilon=1.0 + row, delta=1e-5) for row in range(count)}
    owners = Owners.from_labels(list(budgets), budgets)
    rates = np.linspace(0.1, 0.3, count)
    terms = Terms.for_owners(owners.table, rates, np.ones(count), 2.0)
    plan = Plan(owners.table, (Phase(5, terms),), "pld", np.linspace(0.5, 1.0, count))
    groups = np.arange(count) % 2
    data = dataclasses.replace(
        tiny.DATA,
        owners=owners,
        groups=Groups(("a", "b"), np.array([1.0, 2.0]), np.full(2, 1e-5)),
        train_groups=groups,
    )
    first, second = subjects_of(plan, data)
    assert first.examples.tolist() == list(range(0, count, 2))
    assert second.claim.mechanisms[0].sampling_rate == rates[-1]
    assert second.claim.spent == 1.0
