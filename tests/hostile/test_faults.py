"""Models that misbehave: a step happens whole or not at all, and errors name counts and modules, never content."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inosgd import (
    INO_SGD,
    BookkeepingEngine,
    Budget,
    InosgdError,
    Ledger,
    Owners,
    Plan,
    ReferenceEngine,
    SecureSource,
    SeededSource,
    Trainer,
    TrainingState,
    fit,
    train_step,
)
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Phase, Terms

pytestmark = pytest.mark.usefixtures("engine_tries_models")

COUNT, PLANTED = 40, 31337.424242
ENGINES = {
    "bookkeeping": BookkeepingEngine(),
    "split": BookkeepingEngine(physical_batch_size=7),
    "reference": ReferenceEngine(),
}
engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def owners() -> Owners:
    return Owners.from_labels(
        ["a"] * 15 + ["b"] * 25, {"a": Budget(epsilon=1e9, delta=1e-5), "b": Budget(epsilon=1e9, delta=1e-5)}
    )


def plan(steps: int = 5) -> Plan:
    terms = Terms.for_owners(owners().table, np.array([0.9, 0.9]), np.array([0.2, 0.5]), 1.0)
    return Plan(owners().table, (Phase(steps, terms),), "pld", np.zeros(2))


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT, 6, generator=generator, dtype=torch.float64)
    inputs[:, 5] = PLANTED
    return inputs, (inputs[:, 0] > 0).long()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def plain_losses(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, reduction="none")


class Faulty:
    """Losses that are fine for some calls and then do what ``fault`` does."""

    def __init__(self, fault, good_calls: int = 0) -> None:
        self.fault, self.left = fault, good_calls

    def __call__(self, model, batch):
        losses = plain_losses(model, batch)
        if self.left > 0:
            self.left -= 1
            return losses
        return self.fault(losses, batch)


def started(losses, engine, source=None, ledger=None, build=torch.optim.Adam):
    trainer = Trainer(plan(), owners(), examples(), losses, INO_SGD, engine)
    model = network()
    optimizer = build(model.parameters(), lr=0.1)
    return trainer, TrainingState.start(trainer, model, optimizer, source or SeededSource(3), ledger)


def picture(state: TrainingState) -> dict:
    """Everything that a step may change, to be compared bit by bit."""
    parameters = nn.utils.parameters_to_vector(state.model.parameters()).detach().numpy().tobytes()
    moments = [
        (index, key, value.numpy().tobytes() if isinstance(value, torch.Tensor) else value)
        for index, values in state.optimizer.state_dict()["state"].items()
        for key, value in values.items()
    ]
    ledger = (state.ledger.steps, state.ledger.position, tuple(state.ledger.spent()))
    leftovers = [parameter.grad for parameter in state.model.parameters()]
    hooks = [module._forward_hooks for module in state.model.modules() if "forward" in vars(module)]
    return {
        "parameters": parameters, "optimizer": moments, "ledger": ledger, "step": state.step,
        "streams": state.streams.fingerprint(), "gradients": leftovers, "hooks": hooks,
    }  # fmt: skip


def raising(losses, batch):
    raise RuntimeError("the model failed by itself")


FAULTS = {
    "raises": (raising, "the model failed by itself"),
    "one loss for all": (lambda losses, _: losses.mean(), "examples"),
    "too many losses": (lambda losses, _: torch.cat([losses, losses]), "examples"),
    "a loss per class": (lambda losses, _: torch.stack([losses, losses], -1), "examples"),
    "whole numbers": (lambda losses, _: losses.long(), "examples"),
    "losses that mix examples": (lambda losses, _: losses + losses.sum(), "mix"),
}


@engines
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_first_step_leaves_nothing_behind(name, engine):
    fault, message = FAULTS[name]
    trainer, state = started(Faulty(fault), engine)
    before = picture(state)
    with pytest.raises(Exception, match=message) as caught:
        train_step(trainer, state)
    assert picture(state) == before
    assert str(PLANTED) not in str(caught.value)


@engines
@pytest.mark.parametrize("name", ["raises", "too many losses", "whole numbers"])
def test_a_fault_in_a_later_step_leaves_the_steps_before_it(name, engine):
    """Three steps are good; the calls that they take are counted first."""
    counter = Faulty(None, good_calls=10**9)
    trainer, state = started(counter, engine)
    fit(trainer, state, steps=3)
    calls, expected = 10**9 - counter.left, picture(state)
    trainer, state = started(Faulty(FAULTS[name][0], good_calls=calls), engine)
    with pytest.raises((InosgdError, RuntimeError)):
        fit(trainer, state)
    assert state.step == state.ledger.steps == 3
    assert picture(state) == expected


@engines
@pytest.mark.parametrize("source", [SeededSource(3), SecureSource()], ids=["seeded", "secure"])
def test_trying_again_after_a_fault_meets_the_same_batch(engine, source):
    """Otherwise batches with an example that makes the model fail would be rejected, which is not Poisson sampling."""
    seen = []

    def note(losses, batch):
        seen.append(len(batch[0]) if batch[0].dim() > 1 else 1)
        raise RuntimeError("again")

    trainer, state = started(Faulty(note), engine, source)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="again"):
            train_step(trainer, state)
    fingerprints = {state.streams.fingerprint()}
    assert len(fingerprints) == 1
    assert len(set(seen)) == 1


def test_without_keeping_the_streams_trying_again_would_reject_batches(monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr(TrainingState, "unmoved_by_failure", lambda self: nullcontext())
    trainer, state = started(Faulty(raising), BookkeepingEngine())
    before = state.streams.fingerprint()
    with pytest.raises(RuntimeError):
        train_step(trainer, state)
    assert state.streams.fingerprint() != before


@engines
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_losses_that_are_not_finite_count_as_nothing_and_harm_nobody(value, engine):
    """The example's gradient counts as zero and its loss ranks last; the step is an ordinary one."""

    def spoil_one(losses, batch):
        marked = batch[0][..., 0] > 1.5
        return torch.where(marked, losses * value, losses)

    trainer, state = started(Faulty(spoil_one), engine)
    diagnostics = train_step(trainer, state)
    assert diagnostics.not_finite > 0
    assert state.step == state.ledger.steps == 1
    assert torch.isfinite(nn.utils.parameters_to_vector(state.model.parameters())).all()


@engines
def test_negative_losses_are_losses(engine):
    trainer, state = started(Faulty(lambda losses, _: -losses - 5), engine)
    fit(trainer, state)
    assert state.step == state.ledger.steps == 5
    assert torch.isfinite(nn.utils.parameters_to_vector(state.model.parameters())).all()


def test_a_loss_that_differs_per_call_is_noticed_where_it_is_called_twice():
    """In one pass there is nothing to differ from; a batch in pieces passes twice and must be the same."""
    engine, calls = BookkeepingEngine(physical_batch_size=7), [0]

    def different(losses, _):
        calls[0] += 1
        return losses * (1 + 0.5 * calls[0])

    good = Faulty(None, good_calls=10**9)
    train_step(*started(good, engine))
    trainer, state = started(Faulty(different, good_calls=10**9 - good.left - 1), engine)
    before = picture(state)
    with pytest.raises(InosgdError, match="second pass over the same examples gave other losses"):
        fit(trainer, state)
    assert picture(state) == before


@pytest.mark.parametrize("engine", [BookkeepingEngine(), ReferenceEngine()], ids=["bookkeeping", "reference"])
def test_a_sum_that_is_not_finite_is_neither_recorded_nor_released(engine, monkeypatch):
    """Norms that lie: every norm is finite, and what is summed is not."""
    trainer, state = started(plain_losses, engine)
    fit(trainer, state, steps=1)
    before = picture(state)
    with engine.on(state.model, plain_losses, trainer.store.take(np.arange(2))) as gradients:
        kind = type(gradients)  # and the third batch is not compared with its parts
    real = kind.weighted_sum
    monkeypatch.setattr(kind, "weighted_sum", lambda *arguments: real(*arguments) * float("nan"))
    with pytest.raises(InosgdError, match="not finite"):
        train_step(trainer, state)
    assert picture(state) == before


def test_an_error_inside_a_layer_names_the_layer_or_is_the_models_own():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, inputs):
            with torch.autocast("cpu", torch.bfloat16):
                return {"scores": self.inner(inputs.float()).double()}

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.strange_layer = Odd()
            self.head = nn.Linear(6, 2).double()

        def forward(self, inputs):
            return self.head(self.strange_layer(inputs)["scores"])

    trainer = Trainer(plan(), owners(), examples(), plain_losses, INO_SGD)
    model = Wrapped()
    state = TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), SeededSource(0))
    before = picture(state)
    with pytest.raises(InvalidArgumentError, match="strange_layer") as caught:
        train_step(trainer, state)
    assert picture(state) == before
    assert str(PLANTED) not in str(caught.value)


def test_wrong_shapes_are_reported_with_the_number_of_examples():
    trainer, state = started(Faulty(lambda losses, _: torch.cat([losses, losses])), BookkeepingEngine())
    with pytest.raises(InvalidArgumentError, match=r"losses of shape \(\d+,\) .* for \d+ examples"):
        train_step(trainer, state)


def test_an_optimizer_that_fails_has_been_paid_for_and_cannot_be_paid_twice(tmp_path):
    """The release exists, so the ledger keeps it; going on without a checkpoint is refused."""

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("power cut")

    ledger = Ledger.for_plan(plan(), tmp_path / "ledger.jsonl")
    trainer, state = started(plain_losses, BookkeepingEngine(), ledger=ledger, build=Failing)
    with pytest.raises(RuntimeError, match="power cut"):
        train_step(trainer, state)
    assert (state.ledger.steps, state.step) == (1, 0)
    with pytest.raises(InvalidArgumentError, match="next step is 1"):
        train_step(trainer, state)
    ledger.close()
    assert Ledger.read(tmp_path / "ledger.jsonl").steps == 1


def test_a_full_disk_stops_a_step_before_its_release(tmp_path, monkeypatch):
    ledger = Ledger.for_plan(plan(), tmp_path / "ledger.jsonl")
    trainer, state = started(plain_losses, BookkeepingEngine(), ledger=ledger)
    fit(trainer, state, steps=2)
    before = picture(state)

    def no_room(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inosgd.ledger.records.synchronise", no_room)
    with pytest.raises(InosgdError, match="No space left"):
        train_step(trainer, state)
    assert picture(state) == before
    ledger.close()


def test_other_losses_for_the_same_model_are_checked_anew():
    """A model that passed with one loss is no warrant for the next."""
    trainer, state = started(plain_losses, BookkeepingEngine())
    train_step(trainer, state)
    mixing = Trainer(plan(), owners(), examples(), Faulty(lambda losses, _: losses + losses.sum()), INO_SGD)
    again = TrainingState.start(mixing, state.model, torch.optim.SGD(state.model.parameters(), lr=0.1), SeededSource(0))
    before = picture(again)
    with pytest.raises(InvalidArgumentError, match="mix"):
        train_step(mixing, again)
    assert picture(again) == before
