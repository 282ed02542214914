"""Without compiled kernels, as where there is no compiler: the same steps, the same trainings, the same bounds."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from inosgd import IDP_SGD, INO_SGD, Owners, OwnerTable, Plan, SeededSource, Trainer, TrainingState, fit
from inosgd.clipping import FlatClipping
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, trainable_parameters
from inosgd.gradients.compiling import SWITCH, compiled
from inosgd.gradients.rules import chain_kernel, sums
from inosgd.plan import Phase, Terms
from inosgd.training import train_step
from tests import tiny
from tests.adversary import CHOICES, LOSSES, Case, data_of, model_of, search, thresholds_of
from tests.gradients.gradient_oracle import by_loop


def _forget() -> None:
    for found in (compiled, chain_kernel.kernel, sums.kernel):
        found.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _no_kernels():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SWITCH, "0")
        _forget()
        yield
    _forget()


def test_there_are_none():
    assert compiled(chain_kernel.SOURCE) is None
    assert chain_kernel.kernel(torch.float64) is None
    assert sums.kernel() is None


@pytest.mark.parametrize("layer", CHOICES["layer"])
def test_a_step_is_that_of_autograd_on_each_example(layer):
    """Everybody is in the batch and nothing is added to the sum, which is then a sum over batches of one."""
    case = Case(layer, torch.float64, size=5, ratio=3.0, few=0.5)
    batch, (thresholds, assignment) = data_of(case), thresholds_of(case)
    table = OwnerTable(("small", "large"), np.full(2, np.inf), np.full(2, 1e-5), np.bincount(assignment, minlength=2))
    terms = Terms.for_owners(table, np.ones(2), thresholds, 0.0)
    plan = Plan(table, (Phase(1, terms),), "rdp", np.full(2, np.inf))
    model = copy.deepcopy(model_of(layer, torch.float64))
    trainer = Trainer(plan, Owners(table, assignment), batch, LOSSES["own"], IDP_SGD)
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=1.0), SeededSource(0))

    norms = by_loop(model, batch, LOSSES["own"]).norms
    factors = FlatClipping().factors(norms, terms.thresholds_of(assignment))
    expected = by_loop(model, batch, LOSSES["own"], factors).total / terms.expected_batch_size
    assert 0 < factors.min() < 1, "the test would pass without clipping"
    before = _flat(model)
    assert train_step(trainer, state).batch_size == case.size
    np.testing.assert_allclose(before - _flat(model), expected, atol=1e-4 * np.abs(expected).max())


def _flat(model: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(trainable_parameters(model).values()).detach().numpy().copy()


def test_a_training_is_that_of_the_reference_engine():
    trained = []
    for engine in (BookkeepingEngine(), ReferenceEngine()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
        owners = tiny.owners_of(tiny.PLAN.table)
        inputs, targets = tiny.examples(len(owners))
        trainer = Trainer(tiny.PLAN, owners, (inputs.double(), targets), tiny.LOSSES, INO_SGD, engine)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = fit(trainer, TrainingState.start(trainer, model, optimizer, SeededSource(3)))
        assert state.ledger.steps == tiny.STEPS
        trained.append(_flat(model))
    np.testing.assert_allclose(trained[0], trained[1], atol=1e-6)


@pytest.mark.parametrize("layer", ["chain, kernel", "linear, few places"])
def test_no_example_moves_the_sum_by_more_than_its_threshold(layer):
    found = search(0, trials=15, layer=layer, threads=1)
    assert found.ratio <= 1, found.worst
