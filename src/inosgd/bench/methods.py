"""The ways to train that are measured: each turns a model and a batch into a function that does one step."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from inosgd._arrays import FloatArray
from inosgd.averaging import Averaging, RunningAverage
from inosgd.clipping import FlatClipping
from inosgd.errors import InvalidArgumentError
from inosgd.examples import TensorStore
from inosgd.gradients import (
    BookkeepingEngine,
    ExampleLosses,
    Examples,
    GradientEngine,
    Measured,
    ReferenceEngine,
    supervised,
    trainable_parameters,
)
from inosgd.gradients.units import UnitBatch, UnitLosses, gradients_on
from inosgd.importance import BetaTail, Tail, importance_weights
from inosgd.order import DESCENDING_LOSS, Candidates
from inosgd.plan import Terms
from inosgd.randomness import SeededSource
from inosgd.rounding import Room
from inosgd.units import Units

Step = Callable[[], None]
Weights = Callable[[Measured], FloatArray]
"""From losses and norms to the examples' importance."""

LEARNING_RATE = 0.01
_NOISE_AT_ONCE = 1 << 16
"""How many numbers of noise are drawn at once: few enough to stay in the processor's cache."""

_LOSSES = supervised(functional.cross_entropy)


def plain(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """Forward, backward, SGD: no privacy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def plain_channels_last(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """The plain step with images in the other memory format."""
    if inputs.dim() != 4:
        raise InvalidArgumentError("channels_last: this model has no images")
    layout = torch.channels_last
    return plain(model.to(memory_format=layout), inputs.contiguous(memory_format=layout), targets)  # type: ignore[call-overload]


def private(
    engine: GradientEngine,
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    weights: Weights,
    losses: ExampleLosses = _LOSSES,
    batch: Callable[[], Examples] | None = None,
    units: int | None = None,
) -> Step:
    """Norms, weights, clipping, weighted sum, noise, update: the whole private step.

    With ``batch``, it also takes the examples of the step, or of so many ``units``, out of the data.
    """
    trained = list(trainable_parameters(model).values())
    flat = [parameter.detach().view(-1) for parameter in trained]  # they share the parameters' memory
    sizes = [len(parameter) for parameter in flat]
    count = len(inputs) if units is None else units
    thresholds, clipping, room = np.ones(count), FlatClipping(), _room(count, flat[0].dtype)

    def step() -> None:
        examples = (inputs, targets) if batch is None else batch()
        with gradients_on(engine, model, losses, examples) as gradients:
            measured = gradients.measure()
            factors = clipping.factors(measured.grad_norms, thresholds)
            total = gradients.weighted_sum(weights(measured) * factors, room.error)
        noisy = torch.empty_like(total, dtype=flat[0].dtype)
        pairs = zip(*[torch.split(each, _NOISE_AT_ONCE) for each in (noisy, total)], strict=True)
        for part, exact in pairs if len(total) > _NOISE_AT_ONCE else [(noisy, total)]:
            part.copy_(exact).add_(torch.randn_like(part))
        torch._foreach_add_(flat, noisy.split_with_sizes(sizes), alpha=-LEARNING_RATE / count)

    return step


def _room(count: int, dtype: torch.dtype) -> Room:
    """What a plan with this expected batch size, sampled at a rate of 1 %, leaves for roundings."""
    return Room.of(Terms(np.full(1, 0.01), np.ones(1), 1.0, float(count)), np.full(1, 100 * count), dtype)


def all_equal(measured: Measured) -> FloatArray:
    """IDP-SGD: every example counts fully."""
    return np.ones(len(measured.losses))


def ordered(measured: Measured) -> FloatArray:
    """INO-SGD: examples with small losses, a fifth of the batch, fade out."""
    count = len(measured.losses)
    rows = np.arange(count)
    candidates = Candidates(rows, np.zeros(count, dtype=np.int64), measured.losses, measured.grad_norms)
    ranking = DESCENDING_LOSS.ranking(candidates, SeededSource(0))
    return importance_weights(Tail(BetaTail(), 0.2 * count), np.ones(count), ranking)


def _by(engine: GradientEngine) -> Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]:
    return lambda model, inputs, targets: private(engine, model, inputs, targets, all_equal)


def _opacus(mode: str) -> Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]:
    def build(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
        opacus: Any = importlib.import_module("opacus")
        validators: Any = importlib.import_module("opacus.validators")
        model = validators.ModuleValidator.fix(model)
        optimizer = torch.optim.SGD(trainable_parameters(model).values(), lr=LEARNING_RATE)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=len(inputs))
        made = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        wrapped, private_optimizer = made[0], made[1]
        criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

        def step() -> None:
            private_optimizer.zero_grad()
            criterion(wrapped(inputs), targets).backward()
            private_optimizer.step()

        return step

    return build


def _quiet(
    build: Callable[[nn.Module, torch.Tensor, torch.Tensor], Step],
) -> Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]:
    """The same without warnings about the performance of what is compared to."""

    def quiet(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = build(model, inputs, targets)

        def silent() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step()

        return silent

    return quiet


METHODS: dict[str, Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]] = {
    "plain": plain,
    "plain-channels-last": plain_channels_last,
    "engine": _by(BookkeepingEngine()),
    "reference": _quiet(_by(ReferenceEngine())),
    "opacus-hooks": _quiet(_opacus("hooks")),
    "opacus-functorch": _quiet(_opacus("functorch")),
    "opacus-ghost": _quiet(_opacus("ghost")),
}


def without_additions(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, losses: ExampleLosses = _LOSSES
) -> Step:
    """A step of INO-SGD that takes its examples out of the data."""
    store, every = TensorStore((inputs, targets)), np.arange(len(inputs))
    return private(BookkeepingEngine(), model, inputs, targets, ordered, losses, lambda: store.take(every))


def _averaged(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    average, step = RunningAverage(Averaging("exponential"), steps=1), without_additions(model, inputs, targets)

    def both() -> None:
        step()
        average.update(model)

    return both


def _adjusted(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    classes = model(inputs[:1]).shape[1]
    return without_additions(model, inputs, targets, _LOSSES.with_offsets(np.linspace(-1.0, 1.0, classes)))


def _in_units(rows: int) -> Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]:
    """The same rows, so many to a unit."""

    def build(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
        store, units = TensorStore((inputs, targets)), Units.of(np.arange(len(inputs)) // rows)
        every, count = np.arange(len(units)), len(units)

        def batch() -> UnitBatch:
            return UnitBatch.of(units.draw(every, np.uint64(1)), store.take)

        return private(BookkeepingEngine(), model, inputs, targets, ordered, UnitLosses(_LOSSES), batch, count)

    return build


ADDITIONS: dict[str, Callable[[nn.Module, torch.Tensor, torch.Tensor], Step]] = {
    "the same code twice": without_additions,
    "averaging": _averaged,
    "adjusted loss": _adjusted,
    "units of 1 row": _in_units(1),
    "units of 4 rows": _in_units(4),
}
"""What may be added to a step `without_additions`, beside nothing at all: how far that is from 1 is what the machine
adds."""


def available_methods() -> list[str]:
    """All methods, those of Opacus only where it is installed."""
    has_opacus = importlib.util.find_spec("opacus") is not None
    return [name for name in METHODS if has_opacus or not name.startswith("opacus")]
