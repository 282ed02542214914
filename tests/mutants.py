"""Faults that were once in the library, put back in spirit: the adversary must find each of them.

None of them changes the library. They stand between a training and its engine, order or tail, and see what these see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.engine import Measured
from inosgd.importance import Tail
from inosgd.order import Candidates, Order
from tests.adversary import ALL_ORDERS, CORRECT, Settings

# Engines --------------------------------------------------------------------------------------------------------------

Measure = Callable[[Measured, Any], Measured]
Weigh = Callable[[torch.Tensor, np.ndarray, Any], torch.Tensor]


@dataclass(frozen=True)
class SpoiledEngine:
    """An engine of which measurements, or sums, are replaced by others made from the same examples."""

    measure: Measure | None = None
    weigh: Weigh | None = None

    @contextmanager
    def on(self, model: Any, losses: Any, examples: Any) -> Iterator[Any]:
        with BookkeepingEngine().on(model, losses, examples) as gradients:
            yield _SpoiledGradients(self, gradients, examples)


@dataclass(frozen=True)
class _SpoiledGradients:
    engine: SpoiledEngine
    gradients: Any
    examples: Any

    def measure(self) -> Measured:
        measured = self.gradients.measure()
        return measured if self.engine.measure is None else self.engine.measure(measured, self.examples)

    def weighted_sum(self, coefficients: np.ndarray, *error: float) -> torch.Tensor:
        total = self.gradients.weighted_sum(coefficients, *error)
        return total if self.engine.weigh is None else self.engine.weigh(total, coefficients, self.examples)


def keys_of_their_batch(measured: Measured, _: Any) -> Measured:
    """Losses that differ in their last place in float32 with the size of the batch and the place in it."""
    count = len(measured.losses)
    moved = ((np.arange(count) * 7 + count * 3) % 5 - 2) * 2.0**-24
    return replace(measured, losses=measured.losses * (1 + moved))


def squares_in_float32(measured: Measured, examples: Any) -> Measured:
    """|d|^2 (|a|^2 + 1) of a linear layer on vectors."""
    inputs, outputs, _ = (each.float() for each in examples)
    return replace(measured, grad_norms=_root(outputs.square().sum(1) * (inputs.square().sum(1) + 1)))


def cancellation_without_margin(measured: Measured, examples: Any) -> Measured:
    """The norms of a linear layer on places by Gram matrices in float32, as they come."""
    inputs, outputs, _ = (each.float() for each in examples)
    squares = ((outputs @ outputs.mT) * (inputs @ inputs.mT + 1)).sum((1, 2))
    return replace(measured, grad_norms=_root(squares.clamp_min(0)))


def _root(squares: torch.Tensor) -> np.ndarray:
    return np.sqrt(squares.double().numpy())


def sum_in_float32(_: torch.Tensor, coefficients: np.ndarray, examples: Any) -> torch.Tensor:
    """The sum of a linear layer on places as one product over all of them, place by place."""
    inputs, outputs = (each.float().transpose(0, 1) for each in examples[:2])
    scaled = (outputs * torch.from_numpy(coefficients).float().unsqueeze(1)).flatten(0, 1)
    return torch.cat([(scaled.mT @ inputs.flatten(0, 1)).flatten(), scaled.sum(0)]).double()


# Orders and tails -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnstableOrder(Order):
    """Equal keys are told apart by their place in the batch, in a way that depends on its size."""

    def ranking(self, candidates: Candidates, source: Any) -> np.ndarray:
        count = len(candidates)
        places = np.random.default_rng(count).permutation(count)
        return np.lexsort((places, *reversed(self.keys(candidates, source))))


def inaccurate_weights(tail: Tail | None, thresholds: np.ndarray, ranking: np.ndarray) -> np.ndarray:
    """Weights by differences of a cumulative that is wrong by 3e-9 close to the end of the tail."""
    weights = np.ones(len(thresholds))
    if tail is None:
        return weights

    def kept(amount: np.ndarray) -> np.ndarray:
        end = np.minimum(amount / tail.length, 1.0)
        return tail.kept(amount) - 3e-9 * tail.length * ((end < 1) & (end > 1 - 1e-15))

    ends = np.append(np.cumsum(thresholds[ranking][::-1])[::-1], 0.0)
    tailed = ends[1:] < tail.length
    differences = kept(ends[:-1][tailed]) - kept(ends[1:][tailed])
    weights[ranking[tailed]] = np.clip(differences / thresholds[ranking][tailed], 0.0, 1.0)
    return weights


# All of them ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A fault, and which attacks it can show in.

    Attributes:
        item: The fault's number in the list that it was found in.
        settings: A training that has it.
        fixed: The fields of a case that the fault is limited to.
    """

    item: str
    settings: Settings
    fixed: Mapping[str, Any]


def _with_engine(**faults: Any) -> Settings:
    return replace(CORRECT, engines={"bookkeeping": SpoiledEngine(**faults)})


_FLAT = {"engine": "bookkeeping", "clipping": "flat"}
_PLACES = {**_FLAT, "layer": "linear, few places"}

MUTANTS = {
    "keys that depend on the batch": Mutant(
        "1", _with_engine(measure=keys_of_their_batch), {**_FLAT, "layer": "chain, kernel", "tied": True}
    ),
    "ties told apart by place": Mutant(
        "1",
        replace(CORRECT, orders={name: UnstableOrder(name, order.keys) for name, order in ALL_ORDERS.items()}),
        {"layer": "chain, kernel", "tied": True, "losses": "given"},
    ),
    "squares of norms in float32": Mutant("2", _with_engine(measure=squares_in_float32), {**_FLAT, "layer": "linear"}),
    "no margin for cancellation": Mutant("4", _with_engine(measure=cancellation_without_margin), _PLACES),
    "sums in float32": Mutant("4", _with_engine(weigh=sum_in_float32), _PLACES),
}
"""Each is found by `search`; `inaccurate_weights`, item 5, by `search_weights`."""
