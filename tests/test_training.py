"""One step is Algorithm 1; special cases are the algorithms it generalises."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from inosgd import (
    DP_SGD,
    IDP_SGD,
    INO_SGD,
    BookkeepingEngine,
    Budget,
    Importance,
    Ledger,
    Owners,
    Plan,
    PlanConfig,
    ReferenceEngine,
    SecureSource,
    SeededSource,
    Trainer,
    TrainingState,
    fit,
    make_plan,
    supervised,
    train_step,
    training,
)
from inosgd.errors import BudgetExceededError, InvalidArgumentError
from inosgd.importance import BetaTail
from inosgd.order import ORDERS
from inosgd.plan import Phase, Terms
from inosgd.training import every
from tests import tiny

LOSSES = supervised(F.cross_entropy)
COUNT = 40


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT, 6, generator=generator, dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def owners(epsilons=(1.0, 8.0)) -> Owners:
    budgets = {name: Budget(epsilon=epsilon, delta=1e-5) for name, epsilon in zip("ab", epsilons, strict=True)}
    return Owners.from_labels(["a"] * 15 + ["b"] * 25, budgets)


def plan_for(who: Owners, rates=(0.4, 0.6), thresholds=(0.2, 0.5), noise=2.0, steps=3) -> Plan:
    terms = Terms.for_owners(who.table, np.array(rates), np.array(thresholds), noise)
    return Plan(who.table, (Phase(steps, terms),), "pld", np.zeros(2))


def parameters_after(who: Owners, plan: Plan, method, *, data=None, seed=5, learning_rate=0.5) -> torch.Tensor:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)
    trainer = Trainer(plan, who, examples() if data is None else data, LOSSES, method)
    fit(trainer, TrainingState.start(trainer, network, optimizer, SeededSource(seed)))
    return nn.utils.parameters_to_vector(network.parameters()).detach()


LAVISH = (1e9, 1e9)


def test_infinite_threshold_no_noise_and_rate_one_is_sgd():
    who = owners((np.inf, np.inf))
    plan = plan_for(who, rates=(1.0, 1.0), thresholds=(np.inf, np.inf), noise=0.0)
    network, (inputs, targets) = model(), examples()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(network.parameters()).detach()
    torch.testing.assert_close(parameters_after(who, plan, DP_SGD), expected, rtol=0, atol=1e-14)


def test_no_tail_is_idp_sgd_to_the_bit():
    who = owners(LAVISH)
    plan = plan_for(who)
    without = dataclasses.replace(INO_SGD, importance=None)
    assert torch.equal(parameters_after(who, plan, without), parameters_after(who, plan, IDP_SGD))
    assert not torch.equal(parameters_after(who, plan, INO_SGD), parameters_after(who, plan, IDP_SGD))


def test_a_tail_too_short_to_matter_changes_nothing_and_a_long_one_does():
    who = owners(LAVISH)
    plan = plan_for(who)
    short = dataclasses.replace(INO_SGD, importance=Importance(BetaTail(), share=None, length=1e-12))
    torch.testing.assert_close(
        parameters_after(who, plan, short), parameters_after(who, plan, IDP_SGD), rtol=0, atol=1e-9
    )


def test_equal_budgets_make_idp_sgd_dp_sgd_to_the_bit():
    who = owners((2.0, 2.0))
    settings = {"steps": 3, "expected_batch_size": 16, "clipping_threshold": 0.3}
    uniform = make_plan(who.table, PlanConfig(variant="uniform", **settings))
    scale = make_plan(who.table, PlanConfig(variant="scale", **settings))
    assert uniform.at(0) == scale.at(0)
    assert torch.equal(parameters_after(who, uniform, DP_SGD), parameters_after(who, scale, IDP_SGD))


@pytest.mark.parametrize("name", ["descending-loss", "ascending-loss", "owner-then-loss"])
def test_a_step_is_algorithm_one(name):
    """Against a direct transcription with a loop over examples."""
    who = owners((np.inf, np.inf))
    plan = plan_for(who, noise=0.0, rates=(1.0, 1.0), steps=1)
    method = dataclasses.replace(INO_SGD, order=ORDERS[name])
    network, (inputs, targets) = model(), examples()
    thresholds = np.array([0.2, 0.5])[who.assignment]
    losses, gradients = [], []
    for x, y in zip(inputs, targets, strict=True):
        loss = F.cross_entropy(network(x[None]), y[None])
        losses.append(float(loss.detach()))
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])
        gradients.append(gradient)
    keys = {
        "descending-loss": lambda i: -losses[i],
        "ascending-loss": lambda i: losses[i],
        "owner-then-loss": lambda i: (who.assignment[i], -losses[i]),
    }
    ranking = sorted(range(COUNT), key=keys[name])
    gamma, total = 0.5 * thresholds.sum(), thresholds.sum()
    expected, start = torch.zeros_like(gradients[0]), 0.0
    for i in ranking:
        grid = np.linspace(start, start + thresholds[i], 2001)
        score = np.minimum(1.0, (total - grid) / gamma)  # the straight tail, Beta(1, 1)
        clipped = gradients[i] / max(1.0, float(gradients[i].norm()) / thresholds[i])
        expected += np.trapezoid(score, grid) / thresholds[i] * clipped
        start += thresholds[i]
    before = nn.utils.parameters_to_vector(network.parameters()).detach()
    after = parameters_after(who, plan, method, learning_rate=1.0)
    torch.testing.assert_close(after, before - expected / COUNT, rtol=0, atol=1e-5)


def test_paired_methods_share_draws_and_noise():
    """Same seed, same plan: the streams of sampling and noise do not depend on what the order draws."""
    who, plan = owners(LAVISH), plan_for(owners(LAVISH))
    random_order = dataclasses.replace(IDP_SGD, order=ORDERS["random"])
    assert torch.equal(parameters_after(who, plan, random_order), parameters_after(who, plan, IDP_SGD))
    assert not torch.equal(parameters_after(who, plan, IDP_SGD, seed=6), parameters_after(who, plan, IDP_SGD, seed=5))


def test_an_empty_batch_adds_noise_and_counts():
    who = owners(LAVISH)
    plan = plan_for(who, rates=(1e-12, 1e-12), steps=2)
    network = model()
    before = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    trainer = Trainer(plan, who, examples(), LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1e-12), SeededSource(0))
    diagnostics = train_step(trainer, state)
    assert diagnostics.batch_size == 0
    assert state.ledger.steps == state.step == 1
    moved = nn.utils.parameters_to_vector(network.parameters()).detach() - before
    assert (moved != 0).all()


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_a_gradient_of_nan_or_infinity_counts_as_zero(strange):
    """The result is that of a zero gradient at the end of the order; the parameters stay finite."""
    who = owners(LAVISH)
    inputs, targets = examples()
    spoiled = inputs.clone()
    spoiled[7] = strange
    plan = plan_for(who, rates=(1.0, 1.0), steps=1)
    network = model()
    trainer = Trainer(plan, who, (spoiled, targets), LOSSES, IDP_SGD)
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=0.5), SeededSource(5))
    assert train_step(trainer, state).not_finite == 1
    after = nn.utils.parameters_to_vector(network.parameters()).detach()
    assert torch.isfinite(after).all()
    without = np.arange(COUNT) != 7
    assert not torch.equal(after, parameters_after(who, plan, IDP_SGD))
    kept = Owners.from_labels(np.array(["a"] * 15 + ["b"] * 25)[without], {n: b for n, b, _ in who.table})
    terms = dataclasses.replace(plan.at(0))
    less = Plan(kept.table, (Phase(1, terms),), "pld", np.zeros(2))
    torch.testing.assert_close(
        after, parameters_after(kept, less, IDP_SGD, data=(inputs[without], targets[without])), rtol=0, atol=1e-12
    )


def test_a_step_that_the_ledger_refuses_changes_nothing():
    who = owners((0.01, 0.01))
    plan = plan_for(who, noise=1.0)
    network = model()
    before = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    trainer = Trainer(plan, who, examples(), LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), SecureSource())
    with pytest.raises(BudgetExceededError):
        fit(trainer, state)
    assert torch.equal(nn.utils.parameters_to_vector(network.parameters()).detach(), before)
    assert state.step == state.ledger.steps == 0


def test_the_ledger_is_written_before_the_update():
    """A model that fails while being updated has already been charged for."""

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("power cut")

    who = owners(LAVISH)
    network = model()
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, Failing(network.parameters(), lr=1.0), SeededSource(0))
    with pytest.raises(RuntimeError, match="power cut"):
        train_step(trainer, state)
    assert state.ledger.steps == 1


def test_a_sum_that_is_bounded_less_tightly_than_it_is_charged_is_not_released(monkeypatch):
    who = owners(LAVISH)
    network = model()
    before = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), SeededSource(0))
    bounded = training.BoundedSum
    monkeypatch.setattr(training, "BoundedSum", lambda value, sensitivity: bounded(value, 1.001 * sensitivity))
    with pytest.raises(InvalidArgumentError, match=r"owner 'a' is charged for a threshold of 0\.2"):
        train_step(trainer, state)
    assert torch.equal(nn.utils.parameters_to_vector(network.parameters()).detach(), before)
    assert state.ledger.steps == 0


def test_what_the_engine_holds_in_memory_is_gone_when_the_sum_is_released(monkeypatch):
    recorded = []

    class Watched(BookkeepingEngine):
        @contextmanager
        def on(self, *given):
            with super().on(*given) as gradients:
                recorded.append(weakref.ref(gradients))
                yield gradients

    def looking(*given, plain=training.release):
        assert [each() for each in recorded] == [None]
        return plain(*given)

    monkeypatch.setattr(training, "release", looking)
    who, network = owners(LAVISH), model()
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD, Watched())
    train_step(
        trainer, TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), 1.0), SeededSource(0))
    )
    assert len(recorded) == 1


def test_a_fingerprint_changes_with_every_step_and_repeats_with_the_streams():
    who = owners(LAVISH)

    def fingerprints(source) -> list[str | None]:
        network = model()
        trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
        state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), source)
        seen = [state.streams.fingerprint()]
        fit(trainer, state, callbacks=[lambda at, _: seen.append(at.streams.fingerprint())])
        return seen

    assert len(set(fingerprints(SeededSource(0)))) == 4
    assert fingerprints(SeededSource(0)) == fingerprints(SeededSource(0))
    assert not set(fingerprints(SecureSource())) & set(fingerprints(SecureSource()))


@pytest.mark.parametrize("build", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_any_optimizer_applies_the_noisy_gradient(build):
    who = owners(LAVISH)
    network = model()
    trainer = Trainer(plan_for(who), who, TensorDataset(*examples()), LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, build(network.parameters(), lr=0.01), SeededSource(0))
    seen = []
    fit(trainer, state, callbacks=[every(2, lambda at: seen.append(at.step))])
    assert seen == [2]
    assert state.step == 3
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_dataset_gives_the_same_as_its_tensors():
    class Lines(Dataset):
        def __len__(self):
            return COUNT

        def __getitem__(self, index):
            return examples()[0][index], int(examples()[1][index])

    who, plan = owners(LAVISH), plan_for(owners(LAVISH), rates=(0.05, 0.05), steps=6)
    assert torch.equal(
        parameters_after(who, plan, INO_SGD, data=Lines()), parameters_after(who, plan, INO_SGD, data=examples())
    )


def test_mismatches_are_refused_by_name():
    who = owners()
    with pytest.raises(InvalidArgumentError, match=r"len\(examples\)=10, len\(owners\)=40"):
        Trainer(plan_for(who), who, tuple(t[:10] for t in examples()), LOSSES, INO_SGD)
    with pytest.raises(InvalidArgumentError, match="made for other owners"):
        Trainer(plan_for(owners((2.0, 3.0))), who, examples(), LOSSES, INO_SGD)
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
    network = model()
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), SeededSource(0))
    with pytest.raises(InvalidArgumentError, match="steps=4: the plan has 3 left"):
        fit(trainer, state, steps=4)


def test_dropout_follows_the_source_and_leaves_torchs_generator_alone():
    """The same source gives the same masks whatever torch was seeded with; another source gives others."""
    who, plan = owners(LAVISH), plan_for(owners(LAVISH), noise=0.5)

    def trained(seed: int, torch_seed: int) -> torch.Tensor:
        network = model()
        network.insert(1, nn.Dropout(0.5))
        trainer = Trainer(plan, who, examples(), LOSSES, IDP_SGD)
        state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=0.5), SeededSource(seed))
        torch.manual_seed(torch_seed)
        expected = torch.get_rng_state()
        fit(trainer, state)
        assert torch.equal(torch.get_rng_state(), expected)
        return nn.utils.parameters_to_vector(network.parameters()).detach()

    assert torch.equal(trained(1, torch_seed=3), trained(1, torch_seed=4))
    assert not torch.equal(trained(1, torch_seed=3), trained(2, torch_seed=3))


def test_a_ledger_for_other_budgets_is_refused():
    who = owners()
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
    network = model()
    lavish = Ledger(owners(LAVISH).table, "pld")
    with pytest.raises(InvalidArgumentError, match="other owners or budgets"):
        TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), SeededSource(0), lavish)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    who = owners()
    trainer = Trainer(plan_for(who), who, examples(), LOSSES, INO_SGD)
    network = model().to(dtype)
    with pytest.raises(InvalidArgumentError, match="train in float32 or float64"):
        TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=1.0), SeededSource(0))


def test_fifty_thousand_owners_train_as_easily_as_two():
    rng = np.random.default_rng(0)
    count = 50_000
    who = Owners.one_each(rng.choice([0.5, 1.0, 2.0, 4.0], count), delta=1e-6)
    plan = make_plan(who.table, PlanConfig(steps=2, variant="scale", expected_batch_size=64, clipping_threshold=1.0))
    data = torch.randn(count, 4), torch.zeros(count, dtype=torch.long)
    network = nn.Linear(4, 2)
    trainer = Trainer(plan, who, data, LOSSES, INO_SGD)
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=0.1), SecureSource())
    fit(trainer, state)
    assert (state.ledger.spent() <= who.table.epsilons).all()


@pytest.mark.parametrize("twice", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_a_state_with_a_secure_source_is_not_copied(twice):
    """Both would release their next sums under the same noise."""
    trainer = tiny.trainer_for(tiny.PLAN)
    model = tiny.model()
    build = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState.start(trainer, model, build, SecureSource())
    before = state.streams.fingerprint()
    with pytest.raises(InvalidArgumentError, match="nor a training state that has one"):
        twice(state)
    assert state.streams.fingerprint() == before
    train_step(trainer, state)


def test_a_state_with_a_seeded_source_is_copied_with_its_noise():
    """The control: what a copy with secure keys would do."""
    trainer = tiny.trainer_for(tiny.PLAN)
    model = tiny.model()
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), SeededSource(0))
    other = copy.deepcopy(state)
    for each in (state, other):
        train_step(trainer, each)
    assert tiny.bits(state.model) == tiny.bits(other.model)


class ClosureOptimizer(torch.optim.SGD):
    """One of a user's own that evaluates the loss itself."""

    def step(self, closure):
        return closure()


@pytest.mark.parametrize("build", [torch.optim.LBFGS, ClosureOptimizer])
def test_an_optimizer_that_needs_closures_is_refused_before_anything_is_charged(build):
    trainer, network, _ = tiny.parts(tiny.PLAN)
    ledger = Ledger.for_plan(trainer.plan)
    with pytest.raises(InvalidArgumentError, match=f"optimizer: {build.__name__} evaluates the loss several times"):
        TrainingState.start(trainer, network, build(network.parameters(), lr=0.1), SeededSource(0), ledger)
    assert ledger.steps == 0


@pytest.mark.parametrize(
    "others",
    [
        lambda network: copy.deepcopy(network).parameters(),
        lambda network: [*network.parameters(), nn.Parameter(torch.zeros(1))],
        lambda network: [nn.Parameter(torch.zeros(1))],
    ],
)
def test_an_optimizer_of_another_model_is_refused_before_anything_is_charged(others):
    trainer, network, _ = tiny.parts(tiny.PLAN)
    ledger, optimizer = Ledger.for_plan(trainer.plan), torch.optim.SGD(others(network), lr=0.1)
    with pytest.raises(InvalidArgumentError, match=r"its parameters are not those of the model.*replace_batchnorm"):
        TrainingState.start(trainer, network, optimizer, SeededSource(0), ledger)
    assert ledger.steps == 0


def test_an_optimizer_of_some_parameters_and_of_frozen_ones_is_fine():
    trainer, network, _ = tiny.parts(tiny.PLAN)
    network[0].requires_grad_(False)
    optimizer = torch.optim.SGD([*network[0].parameters(), network[3].weight], lr=0.1)
    fit(trainer, TrainingState.start(trainer, network, optimizer, SeededSource(0)), steps=1)


@pytest.mark.parametrize("losses", [nn.CrossEntropyLoss(), F.cross_entropy])
def test_a_loss_that_knows_no_model_is_refused(losses):
    with pytest.raises(InvalidArgumentError, match=r"losses: \w+ knows no model; give supervised"):
        dataclasses.replace(tiny.trainer_for(tiny.PLAN), losses=losses)


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(network, mesh):
    return torch.distributed.fsdp.fully_shard(network, mesh=mesh)


def by_tensor(network, mesh):
    return torch.distributed.tensor.distribute_module(network, mesh)


WRAPPED = {
    "by FSDPModule": sharded,
    "in pieces": by_tensor,
    "by DistributedDataParallel": lambda network, _: nn.parallel.DistributedDataParallel(network),
    "by DataParallel": lambda network, _: nn.DataParallel(network),
}


@pytest.mark.parametrize("said", WRAPPED)
def test_a_model_that_is_wrapped_or_in_pieces_is_refused_before_anything_is_charged(said, one_process):
    trainer, network, optimizer = tiny.parts(tiny.PLAN)
    ledger, wrapped = Ledger.for_plan(trainer.plan), WRAPPED[said](network, one_process)
    with pytest.raises(InvalidArgumentError, match=f"{said}.*share the work by peers"):
        TrainingState.start(trainer, nn.Sequential(wrapped), optimizer, SeededSource(0), ledger)
    assert ledger.steps == 0


@pytest.mark.parametrize("engine", [BookkeepingEngine(), ReferenceEngine()], ids=lambda each: type(each).__name__)
def test_examples_on_another_device_than_the_model_are_named(engine):
    trainer, network, optimizer = tiny.parts(tiny.PLAN)
    elsewhere = tuple(tensor.to("meta") for tensor in tiny.examples(len(trainer.owners)))
    away = dataclasses.replace(trainer, examples=elsewhere, engine=engine)
    state = TrainingState.start(away, network, optimizer, SeededSource(0))
    with pytest.raises(InvalidArgumentError, match="on the device 'meta' and the model is on 'cpu'; move one"):
        train_step(away, state)
    assert state.ledger.steps == 0


def test_a_loss_that_is_a_mean_is_refused():
    trainer, network, optimizer = tiny.parts(tiny.PLAN)
    mean = dataclasses.replace(trainer, losses=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    with pytest.raises(InvalidArgumentError, match="return one floating-point loss per example"):
        train_step(mean, TrainingState.start(mean, network, optimizer, SeededSource(0)))


def test_what_steps_have_in_common_belongs_to_their_trainer():
    who = owners()
    trainer = Trainer(plan_for(who, rates=(0.0, 1.0)), who, examples(), LOSSES, IDP_SGD)
    network = model()
    state = TrainingState.start(trainer, network, torch.optim.SGD(network.parameters(), lr=0.1), SeededSource(0))
    assert train_step(trainer, state).batch_size == 25
    swapped = Owners(who.table, np.roll(who.assignment, 15))
    other = dataclasses.replace(trainer, owners=swapped)
    train_step(other, state)
    assert state.under.trainer is other
    np.testing.assert_array_equal(state.under.sampler.draw(SeededSource(0)), np.flatnonzero(swapped.assignment == 1))
