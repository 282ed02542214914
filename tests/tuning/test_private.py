"""Tuning on private data: what it costs every owner, that it fits, and that only the best is ever seen."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from inosgd.accounting.selection import NegativeBinomialTrials, PoissonTrials, trials_named
from inosgd.errors import InfeasibleError, InosgdError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.parallel.runner import Failure
from inosgd.parallel.workers import Workers
from inosgd.planning import PlanConfig, make_plan
from inosgd.randomness import SeededSource
from inosgd.tuning import Space, price_tuning, private, tune_on_private_data
from inosgd.tuning.pricing import fitted, tuning_epsilons
from inosgd.tuning.private import described, price_list
from tests.studies import written_study

SPACE = Space({"learning_rate": (0.5, 2.0), "variant": ("scale", "fair")})
DELTA = 1e-5


def table(*epsilons):
    return OwnerTable(
        tuple("abcdef"[: len(epsilons)]), np.array(epsilons), np.full(len(epsilons), DELTA), [40] * len(epsilons)
    )


def planned(owners, variant="scale", steps=20):
    return make_plan(
        owners,
        PlanConfig(steps=steps, variant=variant, expected_batch_size=16.0, clipping_threshold=0.5, accountant="rdp"),
        verify=False,
    )


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    study = written_study(tmp_path_factory.mktemp("study"))
    return price_tuning(study, SPACE, PoissonTrials(3.0))


# The price ---------------------------------------------------------------------------------------------------------


def test_every_owner_keeps_to_its_budget_and_gets_most_of_it(priced):
    assert (priced.tuning <= priced.table.epsilons).all()
    assert (priced.tuning >= 0.95 * priced.table.epsilons).all()
    assert (priced.one_trial < priced.tuning).all()
    assert len(priced.candidates) == len(priced.plans) == 4
    assert priced.plans[0] is priced.plans[1]  # learning rates share a plan
    for plan in priced.plans:
        assert (plan.spent <= priced.one_trial * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["poisson", "geometric", "logarithmic"])
def test_more_trials_leave_less_for_each(name):
    owners = table(1.0, 4.0)
    ones = []
    for mean in (1.5, 4.0, 16.0):
        _, one, tuning = fitted(owners, lambda part, _: [planned(part)], trials_named(name, mean))
        assert (tuning <= owners.epsilons).all()
        ones.append(one)
    assert (np.diff(ones, axis=0) < 0).all()


def test_planning_trials_for_whole_budgets_does_not_fit():
    """The control: charging the tuning as one training would be wrong."""
    owners = table(1.0, 4.0)
    for name in ("poisson", "geometric", "logarithmic"):
        one, tuning = tuning_epsilons([planned(owners)], owners.deltas, trials_named(name, 4.0))
        assert (one <= owners.epsilons).all()
        assert (tuning > 1.15 * owners.epsilons).all()


def test_the_worst_candidate_counts():
    owners = table(1.0, 4.0)
    fair, scale = planned(owners, "fair"), planned(owners)
    for trials in (PoissonTrials(4.0), NegativeBinomialTrials.geometric(4.0)):
        both = tuning_epsilons([fair, scale], owners.deltas, trials)
        for alone in ([fair], [scale]):
            for ours, theirs in zip(both, tuning_epsilons(alone, owners.deltas, trials), strict=True):
                assert (ours >= theirs * (1 - 1e-9)).all()


def test_owners_without_examples_pay_nothing():
    owners = OwnerTable(("a", "b"), np.array([1.0, 2.0]), np.full(2, DELTA), [40, 0])
    plan = planned(owners)
    rates = plan.at(0).sampling_rates.copy()
    rates[1] = 0.0
    terms = dataclasses.replace(plan.at(0), sampling_rates=rates)
    idle = dataclasses.replace(plan, phases=(dataclasses.replace(plan.phases[0], terms=terms),))
    one, tuning = tuning_epsilons([idle], owners.deltas, PoissonTrials(4.0))
    assert one[1] == tuning[1] == 0 < tuning[0]


def test_dp_accounting_finds_the_same_price(priced):
    """Its divergences of the base, with the theorem written out here a second time."""
    orders = np.array([1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256])
    trials = NegativeBinomialTrials.geometric(3.0)
    _, ours = tuning_epsilons(priced.plans, priced.table.deltas, trials)
    for owner in range(len(priced.table)):
        base = np.zeros(len(orders))
        for plan in priced.plans:
            accountant = RdpAccountant(orders.tolist())
            terms = plan.at(0)
            step = dp_accounting.PoissonSampledDpEvent(
                float(terms.sampling_rates[owner]),
                dp_accounting.GaussianDpEvent(float(terms.noise_multipliers()[owner])),
            )
            accountant.compose(dp_accounting.SelfComposedDpEvent(step, plan.steps))
            base = np.maximum(base, accountant._rdp)
        other = min((1 - 1 / order) * rdp + math.log(3) / order for order, rdp in zip(orders, base, strict=True))
        whole = base + 2 * other + math.log(3) / (orders - 1)
        theirs = min(
            rdp + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
            for order, rdp in zip(orders, whole, strict=True)
        )
        assert ours[owner] <= theirs * (1 + 1e-6)
        assert ours[owner] >= theirs * 0.97


def test_budgets_that_cannot_carry_a_tuning_name_their_owner():
    stubborn = planned(table(1.0, 4.0))
    with pytest.raises(InfeasibleError, match=r"owner 'a': tuning costs it .* ask for fewer trials, tune on public"):
        fitted(table(1e-3, 4.0), lambda *_: [stubborn], PoissonTrials(4.0))


def test_many_owners_are_priced_by_their_divergences():
    epsilons = np.linspace(1.0, 3.0, 250)
    owners = OwnerTable(tuple(f"o{n}" for n in range(250)), epsilons, np.full(250, DELTA), [4] * 250)
    plan = planned(owners)
    _, coarse = tuning_epsilons([plan], owners.deltas, PoissonTrials(4.0))
    few = OwnerTable(owners.names[:2], epsilons[:2], owners.deltas[:2], owners.sizes[:2])
    terms = dataclasses.replace(
        plan.at(0),
        sampling_rates=plan.at(0).sampling_rates[:2],
        clipping_thresholds=plan.at(0).clipping_thresholds[:2],
    )
    part = dataclasses.replace(
        plan, table=few, phases=(dataclasses.replace(plan.phases[0], terms=terms),), spent=plan.spent[:2]
    )
    _, fine = tuning_epsilons([part], few.deltas, PoissonTrials(4.0))
    assert (coarse[:2] > fine).all()


def test_a_seeded_study_is_refused(tmp_path):
    study = written_study(tmp_path, ("steps = 12", "steps = 12\nseed = 3"))
    with pytest.raises(InvalidArgumentError, match=r"training\.seed = 3: any party that knows it"):
        price_tuning(study, SPACE, PoissonTrials(3.0))


def test_a_study_without_held_out_examples_is_refused(tmp_path):
    study = written_study(tmp_path, ("fraction = 0.25", "fraction = 0.0"))
    with pytest.raises(InvalidArgumentError, match="judged by held-out examples"):
        price_tuning(study, SPACE, PoissonTrials(3.0))


# The selection -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FakeTrial:
    value: float

    def score(self, by):
        return self.value


def with_outcomes(monkeypatch, outcomes):
    """Trials whose scores come one after the other from ``outcomes``; what was asked for is noted."""
    asked = []

    def fake(function, tasks, *, names, workers):
        asked.append(tasks)
        for index in range(len(tasks)):
            yield index, outcomes(index)

    monkeypatch.setattr(private, "run_all", fake)
    return asked


def test_the_best_trial_is_chosen(priced, monkeypatch):
    asked = with_outcomes(monkeypatch, lambda index: FakeTrial([0.2, 0.9, 0.5][index % 3]))
    source = SeededSource(1)
    sizes = []
    for _ in range(60):
        chosen = tune_on_private_data(priced, source)
        count = len(asked[-1])
        sizes.append(count)
        if count == 0:
            assert chosen is None
        else:
            assert chosen.trial.value == (0.9 if count > 1 else 0.2)
            assert chosen.candidate in priced.candidates
    assert 2 < np.mean(sizes) < 4  # the mean is 3
    assert 0 in sizes
    rows = [priced.candidates.index(task.candidate) for tasks in asked for task in tasks]
    assert np.bincount(rows, minlength=4).min() > 0.15 * len(rows)
    for tasks in asked:
        for task in tasks:
            assert task.plan is priced.plans[priced.candidates.index(task.candidate)]
            assert task.seed is None


def test_ties_are_broken_at_random(priced, monkeypatch):
    asked = with_outcomes(monkeypatch, lambda index: FakeTrial(0.5))
    monkeypatch.setattr(private, "draw_trials", lambda *_: 4)
    source, winners = SeededSource(2), []
    for _ in range(200):
        chosen = tune_on_private_data(priced, source)
        winners.append(next(i for i, task in enumerate(asked[-1]) if task.candidate is chosen.candidate))
    assert np.bincount(winners, minlength=4).max() < 190


def chance_of_good(priced, monkeypatch, rare):
    """How often the best trial is a good one, where a trial is with probability ``rare``."""
    draws = np.random.default_rng(0)
    with_outcomes(monkeypatch, lambda index: FakeTrial(float(draws.random() < rare)))
    source = SeededSource(5)
    found = [tune_on_private_data(priced, source) for _ in range(4000)]
    return np.mean([chosen is not None and chosen.trial.value == 1.0 for chosen in found])


def test_the_selection_is_the_one_that_is_accounted_for(priced, monkeypatch):
    """Its distribution is f(F) with the f of Poisson trials; the control, a fixed number of them, is told apart."""
    expected = 1 - math.exp(-3.0 * 0.3)
    tolerance = 4 * math.sqrt(expected * (1 - expected) / 4000)
    assert abs(chance_of_good(priced, monkeypatch, 0.3) - expected) < tolerance
    monkeypatch.setattr(private, "draw_trials", lambda *_: 3)
    assert abs(chance_of_good(priced, monkeypatch, 0.3) - expected) > tolerance


def test_a_trial_that_fails_ends_the_tuning(priced, monkeypatch):
    with_outcomes(monkeypatch, lambda index: Failure("learning_rate 2", "OSError: full"))
    monkeypatch.setattr(private, "draw_trials", lambda *_: 2)
    with pytest.raises(InosgdError, match="a trial failed, and nothing is kept: learning_rate 2: OSError: full"):
        tune_on_private_data(priced, SeededSource(0))


def test_rankings_are_checked(priced):
    with pytest.raises(InvalidArgumentError, match="by='luck': choose one of overall, worst"):
        tune_on_private_data(priced, SeededSource(0), by="luck")


def test_numbers_below_a_bound_are_uniform():
    source = SeededSource(0)
    counts = np.bincount([private._below(3, source) for _ in range(3000)], minlength=3)
    assert abs(counts - 1000).max() < 130
    beyond = SimpleNamespace(left=[2**64 - 1, 7], words=lambda _: np.array([beyond.left.pop(0)], dtype=np.uint64))
    assert private._below(3, beyond) == 1  # 2^64 - 1 is beyond the last whole multiple of 3


def test_from_price_to_model(priced, monkeypatch):
    monkeypatch.setattr(private, "draw_trials", lambda *_: 2)
    chosen = tune_on_private_data(priced, SeededSource(0), by="worst", workers=Workers(jobs=1))
    records = [json.loads(line) for line in chosen.trial.ledger.splitlines()]
    assert [record["step"] for record in records if "step" in record] == list(range(12))
    model, description = described(priced, chosen)
    for key, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), chosen.trial.weights[key].numpy())
    privacy = description["privacy"]
    assert privacy["epsilon"] == [1.0, 8.0]
    assert "Papernot" in privacy["guarantee"]
    assert not [line for line in privacy["not_covered"] if "while settings were tried out" in line]
    assert [line for line in privacy["not_covered"] if "they decided, exactly, which training was kept" in line]
    assert privacy["tuning"] == price_list(priced)


def test_the_account_says_nothing_about_how_many_trials_there_were(priced):
    """Everything in it is known before the first trial."""
    assert set(price_list(priced)) == {"trials", "candidates", "owners"}
    assert price_list(priced)["trials"] == {"family": "poisson", "mean": 3.0}
