"""The game of a canary audit: one training with canaries, each of which is in by a fair coin, and its observer.

The observer scores canaries by the parameters after every step and by what is claimed, and by nothing else. Which
scores they are, `inosgd.audit.canary` says.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.audit.claims import MOST_OWNERS, Claim, claim_of
from inosgd.audit.insertion import CanaryLosses, CanaryModel, Inserted, mixed
from inosgd.audit.practice import Practice
from inosgd.counting import Labels
from inosgd.gradients import ExampleLosses
from inosgd.plan import Plan, Terms
from inosgd.randomness import RandomSource, SeededSource, uniforms
from inosgd.study.study import Study, StudyData
from inosgd.training import StepDiagnostics, TrainingState, fit
from inosgd.units import Units

GRADIENT_NORM = 10.0
"""Of a canary, in units of its owner's threshold: clipping has something to do."""

UNIT_ROWS = 8
"""Of a canary, where the study protects units of several rows."""

FIRST, LAST = 1e6, -1e6
"""Losses that put an inserted example before or behind all others."""


@dataclass(frozen=True, eq=False)
class Game:
    """What is audited: the claims, the practice behind them, and the study.

    Attributes:
        study: Model and settings.
        data: The study's examples.
        claimed: The plan whose guarantee is tested.
        practice: What is really done.
        seed: Of everything.
    """

    study: Study
    data: StudyData
    claimed: Plan
    practice: Practice
    seed: int

    @property
    def owners(self) -> IntArray:
        """The rows of the owners that get canaries: all of them, or a dozen from the strictest to the most liberal."""
        rows = np.flatnonzero(self.claimed.table.sizes > 0)
        rows = rows[np.argsort(self.claimed.table.privacy_ranks[rows])]
        if len(rows) <= MOST_OWNERS:
            return np.sort(rows)
        return rows[np.linspace(0, len(rows) - 1, MOST_OWNERS).round().astype(np.int64)]

    @property
    def learning_rate(self) -> float:
        """Of every training, over the expected batch size; one in noise units is converted by what is claimed."""
        return self.study.config.rate_in_batch_units(self.claimed.phases[0].terms)

    def claim(self, row: int) -> Claim:
        """What is claimed for an owner."""
        return claim_of(self.claimed, np.array([row]), self.claimed.table.names[row])


@dataclass(frozen=True, eq=False)
class Played:
    """The outcome of trainings: one row per training, one column per canary."""

    included: BoolArray
    white: FloatArray
    black: FloatArray

    @classmethod
    def together(cls, parts: Sequence[Played]) -> Played:
        """Several trainings, one after the other."""
        return cls._joined(parts, 0)

    @classmethod
    def side_by_side(cls, parts: Sequence[Played]) -> Played:
        """Trainings with a canary each, as columns."""
        return cls._joined(parts, 1)

    @classmethod
    def _joined(cls, parts: Sequence[Played], axis: int) -> Played:
        names = ("included", "white", "black")
        return cls(*(np.concatenate([getattr(part, name) for part in parts], axis=axis) for name in names))


@dataclass
class Observer:
    """Scores canaries from the parameters after every step, and from nothing else."""

    rates: FloatArray
    multipliers: FloatArray
    unit: float
    baseline: float
    white: FloatArray = field(init=False)
    black: FloatArray = field(init=False)
    _before: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.white, self.black, self._before = (np.zeros(len(self.rates)) for _ in range(3))

    def __call__(self, state: TrainingState, _: StepDiagnostics) -> None:
        """Take in one more step."""
        now = state.model.get_parameter("canaries.weight").detach()[0].double().numpy().copy()
        seen = (self._before - now) * self.unit - self.baseline
        self.white += log_likelihood_ratio(seen, self.rates, self.multipliers)
        self.black += seen
        self._before = now


def log_likelihood_ratio(seen: FloatArray, rates: FloatArray, multipliers: FloatArray) -> FloatArray:
    """log(1 - q + q exp(x / z - 1 / (2 z^2))), for any x."""
    with np.errstate(divide="ignore"):
        ratio: FloatArray = np.logaddexp(
            np.log1p(-rates), np.log(rates) + seen / multipliers - 1 / (2 * multipliers**2)
        )
    return ratio


def train_with(
    game: Game,
    practice: Practice,
    data: StudyData,
    inserted: Inserted,
    rows: IntArray,
    observer: Observer,
    source: RandomSource,
) -> None:
    """Train the study's model on ``data`` and the inserted examples, which belong to ``rows``, under observation."""
    model = _initial_model(game, len(observer.rates))
    optimizer = torch.optim.SGD(model.parameters(), lr=game.learning_rate)
    assignment = np.concatenate([data.owners.assignment, rows])
    inputs, targets = data.examples.all()
    copies = 1 if data.units is None else UNIT_ROWS
    units = None if data.units is None else data.units.followed_by(_canary_units(data.units, len(rows)))
    several = inserted.take(np.repeat(np.arange(len(inserted)), copies))
    examples = mixed(inputs, targets, several, model.canaries.weight.dtype)
    counted = np.append(data.class_numbers, np.zeros(len(several), dtype=np.int64))  # canaries are of the first class
    labels = None if practice.plan.count is None else Labels(data.task.names, counted)
    trainer = practice.trainer(assignment, examples, _with_canaries(data.task.losses), labels, units=units)
    kinds = data.class_numbers if data.units is None else data.class_numbers[data.units.first_rows]
    last = int(kinds.max()) if len(kinds) else -1
    classes = np.concatenate([kinds, last + 1 + inserted.coordinates])  # each canary has its own class
    state = practice.start(trainer, model, optimizer, source, classes)
    fit(trainer, state, callbacks=[observer])


def _canary_units(units: Units, count: int) -> Units:
    """So many units of `UNIT_ROWS` rows each, none of which has the key of one of ``units``."""
    free = np.setdiff1d(np.arange(len(units) + count, dtype=np.uint64), units.keys)[:count]
    rows = np.arange(UNIT_ROWS * count, dtype=units.rows.dtype)
    return dataclasses.replace(units, rows=rows, ends=UNIT_ROWS * np.arange(1, count + 1), keys=free)


@cache
def _with_canaries(losses: ExampleLosses) -> CanaryLosses:
    """Always the same value, so that what was checked of it stays known."""
    return CanaryLosses(losses)


def _initial_model(game: Game, coordinates: int) -> CanaryModel:
    """The model before the first step: always the same object, which the engine has to check once only."""
    key = (game.study, game.seed, coordinates)
    if key not in _MODELS:
        model = CanaryModel(game.study.model(game.data, game.seed), coordinates)
        if len(_MODELS) > 1:
            _MODELS.clear()
        _MODELS[key] = model, copy.deepcopy(model.state_dict())
    model, initial = _MODELS[key]
    model.load_state_dict(initial)
    return model


_MODELS: dict[tuple[Study, int, int], tuple[CanaryModel, dict[str, torch.Tensor]]] = {}


def play(game: Game, rows: IntArray, label: str) -> Played:
    """One training on the study's data; each canary, of the owner in ``rows``, is in by a fair coin."""
    source = SeededSource(game.seed).stream(label)
    included = uniforms(source.stream("coins"), len(rows)) < 0.5
    claimed = game.claimed.phases[0].terms
    present = np.flatnonzero(included)
    norms = GRADIENT_NORM * claimed.clipping_thresholds[rows[present]]
    inserted = Inserted(present, norms, np.full(len(present), FIRST))
    observer = observer_of(claimed, rows, game.learning_rate)
    train_with(game, game.practice, game.data, inserted, rows[present], observer, source)
    return Played(included[None], observer.white[None], observer.black[None])


def observer_of(claimed: Terms, rows: IntArray, learning_rate: float, baseline: float = 0.0) -> Observer:
    """The observer of canaries of the owners in ``rows``, by what is claimed for them."""
    unit = claimed.expected_batch_size / (learning_rate * claimed.noise_scale)
    return Observer(claimed.sampling_rates[rows], claimed.noise_multipliers()[rows], unit, baseline)
