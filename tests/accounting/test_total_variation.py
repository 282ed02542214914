"""At a delta that covers the total-variation distance, epsilon is 0; below it, it is not."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from inosgd.accounting import ACCOUNTANTS, Exposures, epsilons
from inosgd.accounting.privacy_loss import GaussianMixture, SampledGaussian, compose
from inosgd.accounting.total_variation import composed_distance, shift_distance

CASES = [(1e-12, 0.1, 685), (1e-7, 3.0, 10), (0.3, 0.5, 2), (1.0, 40.0, 3), (1e-15, 1e-3, 1)]


def exact(phases) -> mpmath.mpf:
    """In 50 digits."""
    with mpmath.workdps(50):
        agree = mpmath.mpf(1)
        for q, z, steps in phases:
            agree *= (1 - mpmath.mpf(q) * mpmath.erf(1 / (mpmath.mpf(z) * mpmath.sqrt(8)))) ** steps
        return 1 - agree


@pytest.mark.parametrize("phases", [[case] for case in CASES] + [CASES])
def test_the_distance_is_rounded_up_and_hardly(phases):
    distances = [np.array([q * shift_distance(np.ones(1), np.array([z]))[0]]) for q, z, _ in phases]
    found, true = composed_distance(distances, [steps for *_, steps in phases])[0], exact(phases)
    assert true <= found <= true * (1 + 2e-12)


def test_without_noise_the_distance_is_the_chance_to_be_sampled_at_all():
    assert shift_distance(np.array([1.0, 0.0, 1.0]), np.array([0.0, 0.0, np.inf])).tolist() == [1.0, 0.0, 0.0]
    assert composed_distance([np.array([1.0])], [3])[0] == 1.0


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_epsilon_is_0_from_the_distance_on_and_not_below(accountant):
    """The issue's plan read 30.3; with two phases the distances of both count."""
    once = [Exposures(np.array([1e-12]), np.array([0.1]), 685)]
    twice = [*once, Exposures(np.array([3e-12]), np.array([0.2]), 100)]
    assert epsilons(once, np.array([1.07e-9]), accountant)[0] == 0
    for exposures in (once, twice):
        distance = float(exact([(float(q[0]), float(z[0]), steps) for q, z, steps in exposures]))
        assert epsilons(exposures, np.array([distance * (1 + 1e-11)]), accountant)[0] == 0
        assert epsilons(exposures, np.array([distance * 0.5]), accountant)[0] > 5


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_owner_sampled_without_noise_has_its_delta_alone(accountant):
    bare = [Exposures(np.array([1e-9, 1e-9]), np.zeros(2), 100)]
    assert epsilons(bare, np.array([1.1e-7, 0.9e-7]), accountant).tolist() == [0.0, np.inf]


def test_no_delta_of_a_profile_exceeds_the_distance():
    profile = compose([SampledGaussian(1e-12, 0.1, 685)])
    assert profile.delta(0.0) <= float(exact([(1e-12, 0.1, 685)])) * (1 + 2e-12)
    mixture = GaussianMixture((0.0, 1.0, 2.0), (0.9, 0.06, 0.03), 5.0, 2)  # 0.01 may lose everything
    single = float(np.array([0.06, 0.03]) @ shift_distance(np.array([1.0, 2.0]), np.full(2, 5.0)))
    assert compose([mixture]).delta(0.0) <= (1 - (1 - 0.01 - single) ** 2) * (1 + 1e-9)
