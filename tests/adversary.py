"""An adversary: a search for data on which one example moves the sum of a step by more than its threshold.

What is attacked is the sum that training would release, before noise: `released` runs the code of a step. A model is
mostly one layer with loss <layer(x), d>, and x and d are both part of the example. The adversary thus chooses the
layer's input and output gradient, and can make them whatever floating point can hold.

- `Case`: one attack, as a value. `attacked`: how far it came.
- `search`: draws cases, changes one or the other of their fields as long as that gets further (hill climbing), and
  turns the added example towards what it moved (gradient ascent).
- `Ranked`, `weights_moved`, `search_weights`: the same for importance weights, without a model.

The sums are compared as the library returned them, in float64. A ratio above 1 breaks the guarantee, whatever the true
gradients are; an example alone against the empty batch is compared too, which shows norms that are too small.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence

from inosgd import training
from inosgd.clipping import AutoClipping, Clipping, FlatClipping
from inosgd.errors import InosgdError
from inosgd.examples import TensorStore
from inosgd.gradients import BookkeepingEngine, GradientEngine, ReferenceEngine, invariance
from inosgd.gradients.rules import chain_kernel, sums
from inosgd.importance import BetaTail, FunctionTail, Importance, StepTail, Tail, importance_weights
from inosgd.mechanism import BoundedSum
from inosgd.method import Method
from inosgd.order import ORDERS, Order, by_score
from inosgd.owners import Owners, OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.randomness import SeededSource
from inosgd.streams import Streams
from inosgd.training import Trainer, TrainingState, Under

# Models ---------------------------------------------------------------------------------------------------------------


class First(nn.Module):
    """The first of what a module returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)[0]


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs, inputs, inputs, need_weights=False)[0]


class Positions(nn.Module):
    """A table of positions: every example looks up the same rows."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(places, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.table(torch.arange(inputs.shape[1]).expand(len(inputs), -1))


class Twice(nn.Module):
    """One module on both halves of the input; what it gives to the second is taken away."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        one, other = inputs.unbind(1)
        return torch.stack([self.inner(one), self.inner(other)], 1)


class Scale(nn.Module):
    """A layer without a rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale + self.shift


class Blocks(nn.Module):
    """Parameters without a layer: a product with one matrix per place, a sum by ``einsum``, and a row for everybody."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.matrices, self.shared = nn.Parameter(torch.randn(places, width, width)), nn.Parameter(torch.randn(width))
        self.mixing = nn.Parameter(torch.randn(places, places))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        each = (inputs.transpose(0, 1) @ self.matrices).transpose(0, 1)
        return torch.einsum("btc,ts->bsc", each, self.mixing) + self.shared.expand(len(inputs), 1, -1)


class Normalised(nn.Module):
    """A linear map whose weight is computed from its parameter, on places that are rows of their own."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(height, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weight = self.weight / self.weight.norm(dim=1, keepdim=True)
        return nn.functional.linear(inputs.flatten(0, 1), weight).unflatten(0, inputs.shape[:2])


class Tied(nn.Module):
    """A table of words that is also the weight of the map that tells words."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.table(inputs), self.table.weight)


class Packed(nn.Module):
    """A recurrent layer on packed sequences of words, of which the first says how many there are."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        lengths = 1 + inputs[:, 0] % inputs.shape[1]
        packed = pack_padded_sequence(self.table(inputs), lengths, batch_first=True, enforce_sorted=False)
        last: torch.Tensor = self.inner(packed)[1][0]
        return last


class FirstPlaces(nn.Module):
    """A linear layer on places that come before examples."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, height)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs.transpose(0, 1).contiguous()).transpose(0, 1)


def frozen_batch_norm(channels: int) -> nn.Module:
    """Batch normalisation by statistics that stay as they are."""
    layer = nn.BatchNorm2d(channels)
    layer.running_mean, layer.running_var = torch.randn(channels), torch.rand(channels) + 0.5
    return layer.eval()


@dataclass(frozen=True)
class Layer:
    """A model to attack.

    Attributes:
        build: Makes it.
        shape: Of one example's input.
        places: The dimensions of one example's input and output, if any, over which contributions may cancel.
        words: How many there are, where inputs are words.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    places: tuple[int, ...] = ()
    words: int | None = None


LAYERS = {
    "linear": Layer(lambda: nn.Linear(12, 8), (12,)),
    "linear, wide": Layer(lambda: nn.Linear(150, 100), (150,)),
    "linear, few places": Layer(lambda: nn.Linear(128, 128), (8, 128), (0,)),
    "linear, 400 places": Layer(lambda: nn.Linear(1024, 1024), (400, 1024), (0,)),
    "linear, many places": Layer(lambda: nn.Linear(6, 5), (40, 6), (0,)),
    "chain, kernel": Layer(lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)), (20,)),
    "chain, tanh": Layer(lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2)), (20,)),
    "chain, wide": Layer(lambda: nn.Sequential(nn.Linear(130, 140), nn.ReLU(), nn.Linear(140, 3)), (130,)),
    "words, small table": Layer(lambda: nn.Embedding(12, 6), (30,), (0,), 12),
    "words, large table": Layer(lambda: nn.Embedding(300, 16), (8,), (0,), 300),
    "positions": Layer(lambda: Positions(10, 6), (10, 6)),
    "convolution, few pixels": Layer(lambda: nn.Conv2d(16, 24, 3, padding=1), (16, 4, 4), (1, 2)),
    "convolution, many pixels": Layer(lambda: nn.Conv2d(3, 5, 3), (3, 12, 12), (1, 2)),
    "convolution, some pixels": Layer(lambda: nn.Conv2d(2, 3, 3), (2, 7, 7), (1, 2)),
    "convolution, strides": Layer(lambda: nn.Conv2d(8, 32, 5, stride=2, padding=2), (8, 8, 8), (1, 2)),
    "convolution, groups": Layer(lambda: nn.Conv2d(8, 8, 3, groups=4, padding=1), (8, 5, 5), (1, 2)),
    "convolution, one pixel": Layer(lambda: nn.Conv2d(24, 32, 1), (24, 3, 3), (1, 2)),
    "convolution, 1-D": Layer(lambda: nn.Conv1d(6, 10, 3, dilation=2), (6, 16), (1,)),
    "layer norm": Layer(lambda: nn.LayerNorm(8), (6, 8), (0,)),
    "RMS norm": Layer(lambda: nn.RMSNorm(8), (6, 8), (0,)),
    "group norm": Layer(lambda: nn.GroupNorm(2, 8), (8, 4, 4), (1, 2)),
    "instance norm": Layer(lambda: nn.InstanceNorm2d(6, affine=True), (6, 4, 4), (1, 2)),
    "RNN": Layer(lambda: First(nn.RNN(6, 10, batch_first=True)), (7, 6), (0,)),
    "GRU": Layer(lambda: First(nn.GRU(6, 10, batch_first=True)), (7, 6), (0,)),
    "LSTM": Layer(lambda: First(nn.LSTM(6, 10, batch_first=True)), (7, 6), (0,)),
    "attention": Layer(lambda: SelfAttention(32, 2), (5, 32), (0,)),
    "transformer": Layer(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (6, 8), (0,)),
    "twice, linear": Layer(lambda: Twice(nn.Linear(16, 12)), (2, 16), (0,)),
    "twice, layer norm": Layer(lambda: Twice(nn.LayerNorm(8)), (2, 8), (0,)),
    "twice, words": Layer(lambda: Twice(nn.Embedding(9, 5)), (2, 6), (0, 1), 9),
    "no rule": Layer(lambda: Scale(8), (5, 8), (0,)),
    "blocks and sums": Layer(lambda: Blocks(5, 8), (5, 8), (0,)),
    "normalised weight": Layer(lambda: Normalised(9, 7), (6, 9), (0,)),
    "tied words": Layer(lambda: Tied(14, 6), (9,), (0,), 14),
    "packed words": Layer(lambda: Packed(20, 8), (20,), (), 20),
    "places first": Layer(lambda: FirstPlaces(9, 7), (6, 9), (0,)),
    "frozen batch norm": Layer(lambda: frozen_batch_norm(6), (6, 4, 4), (1, 2)),
}


@cache
def model_of(layer: str, dtype: torch.dtype, kernel: bool = True) -> nn.Module:
    """The model, with the same parameters every time; not the one that engines know with kernels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LAYERS[layer].build().to(dtype)


def _own_losses(model: nn.Module, examples: Any) -> torch.Tensor:
    inputs, gradients, _ = examples
    return (model(inputs) * gradients).flatten(1).sum(1)


def _own_losses_place_first(model: nn.Module, examples: Any) -> torch.Tensor:
    inputs, gradients, _ = examples
    return (model(inputs) * gradients.transpose(0, 1).contiguous().transpose(0, 1)).flatten(1).sum(1)


def _given_losses(model: nn.Module, examples: Any) -> torch.Tensor:
    """The gradients of `_own_losses`, and losses that the adversary chose."""
    values = _own_losses(model, examples)
    return values - values.detach() + examples[2]


LOSSES = {"own": _own_losses, "own, place first": _own_losses_place_first, "given": _given_losses}

# Cases ----------------------------------------------------------------------------------------------------------------

TAILS = {
    "none": None,
    "beta 1 1": BetaTail(),
    "beta .5 .5": BetaTail(0.5, 0.5),
    "beta 8 2": BetaTail(8, 2),
    "steps": StepTail(),
    "one step": StepTail((1.0, 0.0)),
    "function": FunctionTail(lambda c: (1 - c) ** 3, points=64),
}
CLIPPINGS: dict[str, Clipping] = {"flat": FlatClipping(), "auto": AutoClipping()}
ENGINES: dict[str, GradientEngine] = {
    "bookkeeping": BookkeepingEngine(),
    "bookkeeping, split": BookkeepingEngine(physical_batch_size=16),
    "reference": ReferenceEngine(),
}
ALL_ORDERS: dict[str, Order] = {**ORDERS, "score": by_score(lambda candidate: candidate.grad_norm)}

CHOICES: dict[str, Sequence[Any]] = {
    "layer": tuple(name for name in LAYERS if name != "linear, 400 places"),  # which takes a second
    "dtype": (torch.float32,) * 5 + (torch.float64,),
    "engine": ("bookkeeping",) * 4 + ("bookkeeping, split", "reference"),
    "kernel": (True, True, True, False),
    "threads": (1,) * 9 + (2,),
    "losses": ("own", "own", "own, place first", "given"),
    "order": tuple(ALL_ORDERS),
    "tail": ("none", "none", "none", *TAILS),
    "tail_share": (0.1, 0.5, 0.5, 0.9, 2.0),
    "clipping": ("flat", "flat", "flat", "auto"),
    "position": (0.0, 0.5, 1.0),
    "size": (1, 2, 2, 3, 5, 8, 9, 16, 17, 25, 31, 32, 33, 48, 64, 65, 100, 129, 257),
    "ratio": (1.0, 1.0, 10.0, 150.0, 1e3, 1e5),
    "few": (0.0, 0.0, 0.1, 0.5, 1.0),
    "depth": (-1.0, 0.0, 1.0, 1.0, 3.0, 8.0),
    "input_scale": (0.0, 0.0, 0.0, 5.0, -5.0, 10.0, -12.0, 18.0, 19.25, -20.0, 30.0, -38.0, -43.0, 38.0),
    "gradient_scale": (0.0, 0.0, 0.0, 5.0, -5.0, -10.0, 12.0, -19.0, -22.6, 19.0, -30.0, -38.0, -43.0, 38.0),
    "spread": (0.0, 1e-7, 1e-3, 1.0, 1.0),
    "spikes": ("", "", "inputs", "gradients", "inputs, gradients"),
    "wild": (False, False, False, True),
    "cancel": (None, None, -2.0, -4.0, -5.0, -6.0, -7.0, -math.inf),
    "tied": (False, False, True),
    "views": (False, False, True),
}
"""What a case may be, each with its usual draws first."""


@dataclass(frozen=True)
class Case:
    """One attack: a model, the way it is trained, and data.

    Attributes:
        layer, dtype, engine, kernel, threads, losses: What computes gradients; a name in `LAYERS`, `ENGINES`, `LOSSES`.
        order, tail, tail_share, clipping: The method, by names.
        size: Of the larger batch.
        position: Where in it the example is that the smaller one does not have, from 0 to 1.
        ratio: The largest threshold over the smallest, which is that example's.
        few: Which share of the others has the smallest threshold too.
        depth: The decimal logarithm of a typical gradient over the threshold.
        input_scale, gradient_scale: Decimal logarithms of inputs and of output gradients.
        spread: How much examples differ from each other.
        spikes: Which of inputs and output gradients have a single feature that is not 0.
        wild: Whether entries differ by orders of magnitude.
        cancel: The decimal logarithm of what is left of an example's gradient, if its contributions cancel.
        tied: Whether losses are the same but for roundings.
        views: Whether batches are views of the columns of wider tables.
        seed: Of everything that is drawn.
        turned: How often the example was turned towards what it had moved.
    """

    layer: str = "linear"
    dtype: torch.dtype = torch.float32
    engine: str = "bookkeeping"
    kernel: bool = True
    threads: int = 1
    losses: str = "own"
    order: str = "descending-loss"
    tail: str = "none"
    tail_share: float = 0.5
    clipping: str = "flat"
    size: int = 16
    position: float = 0.0
    ratio: float = 1.0
    few: float = 0.0
    depth: float = 1.0
    input_scale: float = 0.0
    gradient_scale: float = 0.0
    spread: float = 1.0
    spikes: str = ""
    wild: bool = False
    cancel: float | None = None
    tied: bool = False
    views: bool = False
    seed: int = 0
    turned: int = 0

    @property
    def added(self) -> int:
        """The row of the example that the smaller batch does not have."""
        return round(self.position * (self.size - 1))

    def __str__(self) -> str:
        shown = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "layer"]
        changed = [f"{name}={value!r}" for name, value in shown if value != getattr(Case(), name)]
        return f"Case({', '.join([repr(self.layer), *changed])})"


def drawn(rng: random.Random, **fixed: Any) -> Case:
    """A random case with these fields fixed."""
    genes = {name: rng.choice(choices) for name, choices in CHOICES.items()}
    return Case(**{**genes, "seed": rng.randrange(2**31), **fixed})


def mutated(case: Case, rng: random.Random, **fixed: Any) -> Case:
    """The case with one to three of its fields drawn again."""
    free = [name for name in (*CHOICES, "seed", "seed") if name not in fixed and name != "layer"]
    names = rng.sample(free, rng.choice((1, 1, 2, 3)))
    again = {name: rng.randrange(2**31) if name == "seed" else rng.choice(CHOICES[name]) for name in names}
    return replace(case, **again)


# Data -----------------------------------------------------------------------------------------------------------------

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Inputs, output gradients and losses, one row per example."""


def data_of(case: Case) -> Batch:
    """The examples of the larger batch."""
    rng, layer = np.random.default_rng(case.seed), LAYERS[case.layer]
    model = model_of(case.layer, case.dtype)
    inputs = _inputs(case, layer, rng)
    with torch.no_grad():
        outputs = model(inputs)
    gradients = _entries(case, "gradients", tuple(outputs.shape[1:]), rng)
    if case.cancel is not None and layer.places:
        kept = 10.0**case.cancel * _entries(case, "gradients", tuple(outputs.shape[1:]), rng)
        gradients = (gradients - gradients.flip([1 + axis for axis in layer.places])) / 2 + kept
    if case.tied and case.losses != "given":
        gradients = _tied(gradients, outputs.double())
    levels = rng.integers(0, 1 if case.tied else 5, case.size)
    with np.errstate(over="ignore"):
        gradients = (gradients * 10.0**case.gradient_scale).to(case.dtype)
    return inputs, gradients, torch.from_numpy(levels).to(case.dtype)


def _inputs(case: Case, layer: Layer, rng: np.random.Generator) -> torch.Tensor:
    if layer.words is not None:
        words = rng.integers(0, layer.words, (case.size, *layer.shape))
        if case.cancel is not None:
            words[:] = words[:, :1] if words.ndim == 2 else words[:, :1, :1]
        return torch.from_numpy(words if case.spread > 0.5 else np.repeat(words[:1], case.size, 0))
    inputs = _entries(case, "inputs", layer.shape, rng)
    if case.cancel is not None and layer.places:
        inputs = inputs + inputs.flip([1 + axis for axis in layer.places])
    return (inputs * 10.0**case.input_scale).to(case.dtype)


def _entries(case: Case, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Numbers of size 1, one row per example; ``kind`` is "inputs" or "gradients"."""
    common, own = rng.normal(size=shape), rng.normal(size=(case.size, *shape))
    entries = own if case.spread == 1 else common * (1 + case.spread * own)
    if case.wild:
        entries = entries * 10.0 ** rng.uniform(-6, 6, size=entries.shape)
    if kind in case.spikes:
        places = LAYERS[case.layer].places
        features = tuple(1 if axis in places else count for axis, count in enumerate(shape))
        spike = np.arange(math.prod(features)) == rng.integers(math.prod(features))
        entries = np.where(spike.reshape(features), entries, 0.0)
    return torch.from_numpy(np.ascontiguousarray(entries))


def _tied(gradients: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Output gradients, changed along the outputs so that all losses are 1 but for roundings."""
    flat, along = gradients.flatten(1), outputs.flatten(1)
    squares = (along * along).sum(1, keepdim=True)
    moved = flat + (1 - (flat * along).sum(1, keepdim=True)) / squares * along
    return torch.where(moved.isfinite().all(1, keepdim=True), moved, flat).view_as(gradients)


def thresholds_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The thresholds of two owners, and whose example each is."""
    smallest = 10.0 ** min(max(case.input_scale + case.gradient_scale - case.depth, -30), 30)
    rng = np.random.default_rng(case.seed + 1)
    owners = (rng.random(case.size) >= case.few).astype(np.int64)
    owners[case.added] = 0
    return np.array([smallest, smallest * case.ratio]), owners


# The mechanism --------------------------------------------------------------------------------------------------------


def trainer_of(case: Case, batch: Batch, settings: Settings) -> Trainer:
    """Training as the case has it: the plan, and all else that is public, does not depend on who is left out."""
    thresholds, assignment = thresholds_of(case)
    sizes = np.bincount(assignment, minlength=2)
    table = OwnerTable(("small", "large"), np.ones(2), np.full(2, 1e-5), sizes)
    terms = Terms.for_owners(table, np.full(2, 0.9), thresholds, float(thresholds[0]))
    plan = Plan(table, (Phase(1, terms),), "none", np.zeros(2))
    shape = settings.tails[case.tail]
    importance = None if shape is None else Importance(shape, share=case.tail_share)
    method = Method("made up", "made up", importance, settings.orders[case.order], CLIPPINGS[case.clipping])
    engine = settings.engines[case.engine]
    store = Views(batch) if case.views else batch
    return Trainer(plan, Owners(table, assignment), store, LOSSES[case.losses], method, engine)


class Views(TensorStore):
    """Examples that come as the last columns of tables with one more."""

    def take(self, indices: np.ndarray) -> Batch:
        """See `TensorStore.take`."""
        inputs, *others = super().take(indices)
        shape = inputs.shape[1:]
        table = torch.cat([inputs.new_zeros(len(inputs), 1), inputs.reshape(len(inputs), shape.numel())], 1)
        return (table[:, 1:].unflatten(1, shape), *others)


def released(trainer: Trainer, model: nn.Module, indices: np.ndarray) -> torch.Tensor:
    """What a step on the examples at ``indices`` would release without noise, by the code of `train_step` itself."""
    nothing = SimpleNamespace(record=lambda *_, **__: None, param_groups=[])  # optimizer and ledger have no part in it
    state = TrainingState(model, nothing, nothing, Streams.of(SeededSource(0)))
    terms = trainer.plan.at(0)
    sampler = SimpleNamespace(draw=lambda _: indices)
    state.under = Under(trainer, terms, sampler, trainer.losses_under(terms, trainer.shares))
    return summed(trainer, state).value.detach().double()


def summed(trainer: Trainer, state: TrainingState) -> BoundedSum:
    """The sum of one `train_step`, taken where it would be released; the model is not updated."""
    found: list[BoundedSum] = []
    seen = lambda total, *_: found.append(total) or total.value  # noqa: E731
    with patch.object(training, "release", seen), patch.object(training, "apply_update"):
        training.train_step(trainer, state)
    return found[0]


@dataclass(frozen=True, eq=False)
class Settings:
    """What the names in a case mean; a mutant means something else by some of them."""

    engines: Mapping[str, GradientEngine] = field(default_factory=lambda: ENGINES)
    orders: Mapping[str, Order] = field(default_factory=lambda: ALL_ORDERS)
    tails: Mapping[str, Any] = field(default_factory=lambda: TAILS)


CORRECT = Settings()


@dataclass(frozen=True)
class Outcome:
    """How far an attack came.

    Attributes:
        ratio: The change of the sum by the added example, or that example alone, over its threshold; above 1, the bound
            is broken.
        excess: What of the change is not the example's own part, over its threshold; 0 with a tail, which moves others.
        refused: Why the step was not taken, if it was not.
    """

    ratio: float
    excess: float = 0.0
    refused: str = ""


def attacked(case: Case, settings: Settings = CORRECT) -> Outcome:
    """The outcome of a case."""
    return reached(case, settings).outcome


class Reached(NamedTuple):
    """The outcome of a case, its data, and the part of the change that was not the added example's own."""

    outcome: Outcome
    batch: Batch
    excess: torch.Tensor | None = None


@lru_cache(maxsize=16)
def reached(case: Case, settings: Settings = CORRECT) -> Reached:
    """The outcome of a case, with the data that it took."""
    with np.errstate(all="ignore"), _threads(case.threads), kernels(case.kernel):
        if not case.turned:
            batch = data_of(case)
        else:
            before = reached(replace(case, turned=case.turned - 1), settings)
            batch = before.batch if before.excess is None else turned(case, before.batch, before.excess)
        try:
            return _moved(case, batch, settings)
        except InosgdError as error:
            return Reached(Outcome(0.0, refused=str(error)), batch)


def _moved(case: Case, batch: Batch, settings: Settings) -> Reached:
    """The sums of both batches, and of the added example alone."""
    model, everyone = model_of(case.layer, case.dtype, case.kernel), np.arange(case.size)
    _warm_up(case.layer, case.dtype, case.losses, case.kernel)
    trainer = trainer_of(case, batch, settings)
    alone = everyone == case.added
    whole, rest, own = (released(trainer, model, everyone[rows]) for rows in (everyone >= 0, ~alone, alone))
    threshold = float(trainer.plan.at(0).clipping_thresholds[0])
    ratio = max(_size(whole - rest), _size(own)) / threshold
    if case.tail != "none":
        return Reached(Outcome(ratio), batch)
    excess = whole - rest - own
    return Reached(Outcome(ratio, _size(excess) / threshold), batch, excess)


def _size(vector: torch.Tensor) -> float:
    """The 2-norm, of numbers of any size."""
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    return largest * float((vector / largest).norm()) if 0 < largest < math.inf else largest


ASCENT = 20
"""How many steps an example takes to turn towards what it moved."""


def turned(case: Case, batch: Batch, excess: torch.Tensor) -> Batch:
    """The batch with its added example changed, by gradient ascent, so that its gradient points along ``excess``."""
    inputs, gradients, losses = (each.clone() for each in batch)
    row, goal = slice(case.added, case.added + 1), excess / max(_size(excess), 1e-300)
    free = [_unit(each[row]) for each in (gradients, inputs) if each.is_floating_point()]
    words = [] if inputs.is_floating_point() else [inputs[row]]
    for _ in range(ASCENT):
        slopes = _slopes(model_of(case.layer, torch.float64), free, words, goal)
        free = [each + 0.3 * slope / max(_size(slope), 1e-9) for each, slope in zip(free, slopes, strict=True)]
    gradients[row] = (free[0] * 10.0**case.gradient_scale).to(case.dtype)
    if not words:
        inputs[row] = (free[1] * 10.0**case.input_scale).to(case.dtype)
    return inputs, gradients, losses


@torch.enable_grad()
def _slopes(
    model: nn.Module, values: Sequence[torch.Tensor], words: Sequence[torch.Tensor], goal: torch.Tensor
) -> Sequence[torch.Tensor]:
    """How the cosine between an example's gradient and ``goal`` changes with its output gradient and its input."""
    free = [each.detach().requires_grad_() for each in values]
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        loss = (model((*free[1:], *words)[0]) * free[0]).sum()
        parts = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        own = torch.cat([part.flatten() for part in parts])
        return torch.autograd.grad(own @ goal / (own.norm() + 1e-9), free, allow_unused=True, materialize_grads=True)


def _unit(values: torch.Tensor) -> torch.Tensor:
    """The values in float64, scaled to a largest one of 1."""
    wide = values.double()
    largest = float(wide.abs().max())
    return wide / largest if 0 < largest < math.inf else torch.ones_like(wide)


@cache
def _warm_up(layer: str, dtype: torch.dtype, losses: str, kernel: bool) -> None:
    """One ordinary batch: engines look at a model's first batches more closely than at others."""
    case = Case(layer, dtype, losses=losses, size=4)
    trainer = trainer_of(case, data_of(case), CORRECT)
    released(trainer, model_of(layer, dtype, kernel), np.arange(case.size))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kernels(wanted: bool) -> Iterator[None]:
    """With compiled kernels, or without them."""
    if wanted:
        yield
        return
    without = patch.object(chain_kernel, "kernel", lambda _: None), patch.object(sums, "kernel", lambda: None)
    with without[0], without[1], patch.object(invariance, "_found", {}):  # what was found with them is not true here
        yield


# The search -----------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a search has found: the worst case and how many were tried, refused, and above 1."""

    worst: Case | None = None
    ratio: float = 0.0
    excess: float = 0.0
    trials: int = 0
    refused: int = 0
    above: int = 0

    def add(self, case: Case, outcome: Outcome) -> None:
        self.trials += 1
        self.refused += bool(outcome.refused)
        self.above += outcome.ratio > 1
        self.excess = max(self.excess, outcome.excess)
        if outcome.ratio > self.ratio:
            self.worst, self.ratio = case, outcome.ratio

    def and_then(self, other: Found) -> Found:
        """What both searches have found."""
        further = max(self, other, key=lambda each: each.ratio)
        counts = self.trials + other.trials, self.refused + other.refused, self.above + other.above
        return Found(further.worst, further.ratio, max(self.excess, other.excess), *counts)


CLIMB = 6
"""How many changes a climb may try in a row without getting higher."""


def search(
    seed: int,
    *,
    seconds: float = math.inf,
    trials: float = math.inf,
    enough: float = math.inf,
    settings: Settings = CORRECT,
    **fixed: Any,
) -> Found:
    """Draw cases, climb from each, and turn the best; until time or trials are up or a ratio is above ``enough``."""
    rng, found, until = random.Random(f"{seed} {fixed}"), Found(), time.monotonic() + seconds

    def attempt(case: Case) -> float:
        outcome = attacked(case, settings)
        found.add(case, outcome)
        return max(outcome.ratio, outcome.excess)

    def going_on() -> bool:
        return found.trials < trials and time.monotonic() < until and found.ratio <= enough

    while going_on():
        case = drawn(rng, **fixed)
        height, failures = attempt(case), 0
        while failures < CLIMB and going_on():
            change = mutated(case, rng, **fixed) if rng.random() < 0.8 else replace(case, turned=case.turned + 1)
            reached = attempt(change)
            case, height, failures = (change, reached, 0) if reached > height else (case, height, failures + 1)
    return found


def simpler(case: Case, settings: Settings = CORRECT) -> Case:
    """A finding with whatever it does not need put back to what is usual, and with as few examples as it needs."""
    usual = {
        each.name: getattr(Case(), each.name) for each in fields(Case) if each.name not in ("layer", "size", "seed")
    }
    smaller = [{"size": size} for size in sorted({*CHOICES["size"]}) if size < case.size]
    for change in [*({name: value} for name, value in usual.items()), *smaller]:
        plainer = replace(case, **change)
        if plainer.size <= case.size and plainer != case and attacked(plainer, settings).ratio > 1:
            case = plainer
    return case


# Weights alone --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked:
    """A batch of which only thresholds and order matter: gradients point wherever they do most harm.

    Attributes:
        shape: The tail's.
        share: The tail's length, of the sum of the larger batch's thresholds.
        aligned: If given, the tail ends where an example of the smaller batch does, but for so many last places.
        size: Of the larger batch.
        ratio: The largest threshold over the smallest, which is that of the added example.
        few: Which share of the others has the smallest threshold too.
        between: Whether the others' thresholds are anywhere between the two.
        position: The added example's rank, from 0 to 1.
        seed: Of everything that is drawn.
    """

    shape: Any = field(default_factory=BetaTail)
    share: float = 0.5
    aligned: int | None = None
    size: int = 16
    ratio: float = 1.0
    few: float = 0.0
    between: bool = False
    position: float = 0.5
    seed: int = 0


def drawn_ranked(rng: random.Random) -> Ranked:
    """A random batch within what plans allow."""
    size = rng.choice((2, 3, 10, 50, 200, 500, 1000, 1500))
    limit = min(1e6, 2.4e12 / size**2)
    return Ranked(
        _drawn_shape(rng),
        rng.choice((0.05, 0.3, 0.5, 0.9, 1.0, 3.0)),
        rng.choice((None, 0, 1, 1, 2, 2, 10, -1)),
        size,
        limit ** rng.choice((0.0, 0.5, 0.9, 1.0, 1.0)),
        rng.choice((0.0, 0.0, 0.1, 0.5)),
        rng.random() < 0.3,
        rng.choice((0.0, 0.5, 0.9, 1.0, rng.random())),
        rng.randrange(2**31),
    )


def _drawn_shape(rng: random.Random) -> Any:
    kind = rng.choice(("beta", "beta", "steps", "function"))
    if kind == "beta":
        values = (0.1, 0.3, 0.5, 1.0, 2.0, 10.0, 50.0, rng.uniform(0.1, 20))
        return BetaTail(rng.choice(values), rng.choice(values))
    if kind == "steps":
        levels = [rng.choice((0.0, 1.0, rng.random())) for _ in range(rng.choice((1, 2, 3, 7, 100)))]
        return StepTail(tuple(sorted(levels, reverse=True)))
    power = rng.uniform(0.2, 8)
    return FunctionTail(lambda c: (1 - c) ** power, points=rng.choice((1, 10, 4096)))


def weights_moved(batch: Ranked, weights: Callable[..., np.ndarray] = importance_weights) -> float:
    """How far the added example can move the sum, over its threshold: own weight, and all changes of others'."""
    thresholds, added = _ranked_thresholds(batch), round(batch.position * (batch.size - 1))
    span = np.array([thresholds.min(), thresholds.max()])
    Terms(np.full(2, 0.9), span, 1.0, 0.9 * batch.size)  # a plan would refuse more than this
    others = np.arange(batch.size) != added
    tail = Tail(batch.shape, _tail_length(batch, thresholds, thresholds[others]))
    whole = weights(tail, thresholds, np.arange(batch.size))
    rest = weights(tail, thresholds[others], np.arange(batch.size - 1))
    clipped = 2 * thresholds * FlatClipping().factors(2 * thresholds, thresholds)
    moved = np.abs(whole[others] - rest) * clipped[others]
    return math.fsum([*moved.tolist(), float(whole[added] * clipped[added])]) / float(thresholds[added])


def _tail_length(batch: Ranked, thresholds: np.ndarray, others: np.ndarray) -> float:
    length = batch.share * float(thresholds.sum())
    if batch.aligned is None or not len(others):
        return length
    ends = np.cumsum(others[::-1])
    return float(ends[min(np.searchsorted(ends, length), len(ends) - 1)]) * (1 + batch.aligned * 2.0**-52)


def _ranked_thresholds(batch: Ranked) -> np.ndarray:
    rng = np.random.default_rng(batch.seed)
    thresholds = np.where(rng.random(batch.size) < batch.few, 1.0, batch.ratio)
    if batch.between:
        thresholds = batch.ratio ** rng.random(batch.size)
    thresholds[round(batch.position * (batch.size - 1))] = 1.0
    return thresholds


GENES = (("shape",), ("share",), ("aligned",), ("size", "ratio"), ("few",), ("between",), ("position",), ("seed",))
"""What of a ranked batch changes together in a climb."""


def search_weights(
    seed: int,
    *,
    seconds: float = math.inf,
    trials: float = math.inf,
    enough: float = math.inf,
    weights: Callable[..., np.ndarray] = importance_weights,
) -> tuple[int, float, Ranked]:
    """The number of batches tried, and the worst of them with how far it came; see `search`."""
    rng, until, count = random.Random(seed), time.monotonic() + seconds, 0
    worst, highest = Ranked(), 0.0
    while count < trials and time.monotonic() < until and highest <= enough:
        here, height, failures = drawn_ranked(rng), 0.0, 0
        while failures < CLIMB and count < trials:
            other = drawn_ranked(rng)
            names = rng.choice(GENES)
            change = replace(here, **{name: getattr(other, name) for name in names}) if height else here
            reached = weights_moved(change, weights)
            here, height, failures = (change, reached, 0) if reached > height else (here, height, failures + 1)
            count += 1
        worst, highest = (here, height) if height > highest else (worst, highest)
    return count, highest, worst
