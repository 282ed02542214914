"""The configuration of a training: a method, a plan's configuration and an optimizer. It holds no data."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from inosgd import _validate
from inosgd.adjustment import Adjustment
from inosgd.augmentation import Augmentation
from inosgd.averaging import Averaging
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.importance import Importance
from inosgd.method import Method, method_named
from inosgd.optimizers import CorrectedAdam
from inosgd.owners import OwnerTable
from inosgd.plan import Plan, Terms
from inosgd.plan_config import Fairness, PlanConfig, steps_of_epochs
from inosgd.planning import Rooms, make_plan
from inosgd.schedules import SCHEDULES, scheduled
from inosgd.training import LEARNING_RATE_UNITS

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adam-corrected": CorrectedAdam,
}

MOST_STEPS = 100_000


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        method: How a batch becomes a weighted sum; its variant is the plan's.
        plan: What the plan is asked for.
        learning_rate: Of the optimizer.
        learning_rate_unit: ``batch`` or ``noise``, see `inosgd.training.Trainer`.
        averaging: The model is this average of the iterates; None for the last iterate.
        optimizer: One of `OPTIMIZERS`.
        momentum: Torch's default if None.
        weight_decay: Torch's default if None.
        epochs: If given, as many steps are taken as draw all units so often on the mean; those of ``plan`` do not count
            until `inosgd.study.shares.settled` knows how many units there are.
        schedule: How the learning rate changes with the steps, one of `inosgd.schedules.SCHEDULES`.
        warmup: In how many steps it rises first.
        until_noise: If given, as many steps are taken as need no more noise than this; those of ``plan`` do not count.
        seed: Where a repeatable training begins, which is not private; None for one with secure randomness.
        count_classes: Whether the classes of owners without declared shares are counted, if the method needs them.
        augmentation: Copies of each image that stand for it; None for the images as they are.
    """

    method: Method
    plan: PlanConfig
    learning_rate: float
    optimizer: str = "sgd"
    momentum: float | None = None
    weight_decay: float | None = None
    until_noise: float | None = None
    seed: int | None = None
    count_classes: bool = False
    learning_rate_unit: str = "batch"
    averaging: Averaging | None = None
    augmentation: Augmentation | None = None
    epochs: float | None = None
    schedule: str = "constant"
    warmup: int = 0

    def __post_init__(self) -> None:
        _validate.finite_positive(learning_rate=self.learning_rate)
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        _validate.one_of(OPTIMIZERS, optimizer=self.optimizer)
        _validate.one_of(LEARNING_RATE_UNITS, learning_rate_unit=self.learning_rate_unit)
        if self.learning_rate_unit == "noise" and self.optimizer != "sgd":
            raise InvalidArgumentError(
                f"learning_rate_unit='noise': {self.optimizer} rescales gradients; choose 'batch', or the optimizer sgd"
            )
        if self.method.variant != self.plan.variant:
            raise InvalidArgumentError(
                f"plan.variant={self.plan.variant!r}: the method plans by {self.method.variant!r}; give both the same"
            )

    def by(self, method: Method, fairness: Fairness | None = None) -> TrainingConfig:
        """The same with another method, which brings its variant, and other knobs of fair plans if they are given."""
        plan = dataclasses.replace(self.plan, variant=method.variant, fairness=fairness or self.plan.fairness)
        return dataclasses.replace(self, method=method, plan=plan)

    def changed(self, changes: Mapping[str, Any]) -> TrainingConfig:
        """The same with other values, named by the keys that they have in the training section of a study file."""
        config = self
        for key, value in changes.items():
            if key in _CHANGES:
                config = _CHANGES[key](config, value)
            else:
                config = dataclasses.replace(config, plan=config.plan.changed({key: value}))
        return config

    def rate_in_batch_units(self, terms: Terms) -> float:
        """The learning rate that means under ``terms`` what this one does: eta b / sigma if it is in noise units."""
        if self.learning_rate_unit == "batch":
            return self.learning_rate
        return self.learning_rate * terms.expected_batch_size / terms.noise_scale

    def to_json(self) -> dict[str, Any]:
        """Plain values: everything that makes a training differ from another."""
        return {
            **self.method.to_json(),
            "plan": self.plan.to_json(),
            **{name: getattr(self, name) for name in _OF_UPDATES},
            "averaging": None if self.averaging is None else self.averaging.to_json(),
            "until_noise": self.until_noise,
            "seed": self.seed,
            "count_classes": self.count_classes,
        } | self._unusual()

    def _unusual(self) -> dict[str, Any]:
        """What few trainings have; absent from the JSON of the others, which stays what it was."""
        found: dict[str, Any] = {}
        if self.augmentation is not None:
            found["augmentation"] = dataclasses.asdict(self.augmentation)
        if self.epochs is not None:
            found["epochs"] = self.epochs
        if (self.schedule, self.warmup) != ("constant", 0):
            found |= {"schedule": self.schedule, "warmup": self.warmup}
        return found

    def for_units(self, units: int) -> TrainingConfig:
        """The same with the steps that its epochs are for so many units; itself if it counts steps."""
        if self.epochs is None:
            return self
        if self.plan.expected_batch_size is None:
            raise InvalidArgumentError(f"epochs={self.epochs:g}: they need an expected_batch_size; give it, or steps")
        steps = steps_of_epochs(self.epochs, units, self.plan.expected_batch_size)
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, steps=steps), epochs=None)


_OF_UPDATES = ("learning_rate", "learning_rate_unit", "optimizer", "momentum", "weight_decay")


def _by_name(config: TrainingConfig, name: str) -> TrainingConfig:
    return config.by(method_named(name))


def _with_variant(config: TrainingConfig, variant: str) -> TrainingConfig:
    return config.by(dataclasses.replace(config.method, variant=variant))


def _with_adjustment(name: str) -> Callable[[TrainingConfig, Any], TrainingConfig]:
    def changed(config: TrainingConfig, value: Any) -> TrainingConfig:
        adjustment = dataclasses.replace(config.method.adjustment or Adjustment(), **{name: value})
        return dataclasses.replace(config, method=dataclasses.replace(config.method, adjustment=adjustment))

    return changed


def _with_tail_share(config: TrainingConfig, share: float) -> TrainingConfig:
    importance = config.method.importance
    if importance is None:
        raise InvalidArgumentError(f"tail.share={share:g}: {config.method.name} has no tail; choose ino-sgd")
    method = dataclasses.replace(config.method, importance=Importance(importance.shape, share))
    return dataclasses.replace(config, method=method)


def _with_field(name: str) -> Callable[[TrainingConfig, Any], TrainingConfig]:
    return lambda config, value: dataclasses.replace(config, **{name: value})


def _with_averaging(config: TrainingConfig, kind: str) -> TrainingConfig:
    return dataclasses.replace(config, averaging=None if kind == "none" else Averaging(kind))


def _with_averaging_by(name: str) -> Callable[[TrainingConfig, float], TrainingConfig]:
    def changed(config: TrainingConfig, value: float) -> TrainingConfig:
        if config.averaging is None:
            raise InvalidArgumentError(f"averaging_{name}={value:g}: nothing is averaged; choose an averaging first")
        by: dict[str, Any] = {name: value}
        return dataclasses.replace(config, averaging=dataclasses.replace(config.averaging, **by))

    return changed


def _with_steps(config: TrainingConfig, steps: int) -> TrainingConfig:
    """As many steps as asked for, also where the study counts epochs or trains until its noise is reached."""
    plan = dataclasses.replace(config.plan, steps=steps)
    return dataclasses.replace(config, plan=plan, until_noise=None, epochs=None)


_CHANGES: dict[str, Callable[[TrainingConfig, Any], TrainingConfig]] = {
    "method": _by_name,
    "variant": _with_variant,
    **{name: _with_field(name) for name in _OF_UPDATES},
    "schedule": _with_field("schedule"),
    "warmup": _with_field("warmup"),
    "tail.share": _with_tail_share,
    "adjustment.tau": _with_adjustment("tau"),
    "adjustment.target": _with_adjustment("target"),
    "averaging": _with_averaging,
    "averaging_decay": _with_averaging_by("decay"),
    "averaging_share": _with_averaging_by("share"),
    "steps": _with_steps,
}
"""What is not a field of the plan's configuration alone."""


def plan_for(config: TrainingConfig, table: OwnerTable, *, verify: bool = True, rooms: Rooms | None = None) -> Plan:
    """The plan of a training with the owners of ``table``, within the ``rooms`` of their accounts if there are any."""
    if config.until_noise is None:
        return make_plan(table, config.plan, verify=verify, rooms=rooms)
    steps = _most_steps(lambda count: _needed_noise(config.plan, table, count, rooms), config.until_noise)
    return make_plan(table, dataclasses.replace(config.plan, steps=steps), verify=verify, rooms=rooms)


_PLANS: deque[tuple[TrainingConfig, bool, Plan]] = deque(maxlen=64)


def plan_once(config: TrainingConfig, table: OwnerTable, *, verify: bool = True) -> Plan:
    """The same plan, kept for trainings of this process that ask for it again.

    Guarantee: a plan that was not verified is not given to who asks for one that is.
    """
    for other, verified, plan in _PLANS:
        asked = (other.plan, other.until_noise) == (config.plan, config.until_noise) and plan.table == table
        if asked and (verified or not verify):
            return plan
    _PLANS.append((config, verify, plan_for(config, table, verify=verify)))
    return _PLANS[-1][2]


def optimizer_for(config: TrainingConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a training; what is not given is torch's default."""
    options = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    given = {key: value for key, value in options.items() if value is not None}
    return OPTIMIZERS[config.optimizer](model.parameters(), lr=config.learning_rate, **given)


def schedule_for(config: TrainingConfig, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR | None:
    """The schedule of a training's learning rate; None if it stays the same."""
    if (config.schedule, config.warmup) == ("constant", 0):
        return None
    return scheduled(optimizer, config.schedule, steps, warmup=config.warmup)


def _needed_noise(config: PlanConfig, table: OwnerTable, steps: int, rooms: Rooms | None) -> float:
    return make_plan(table, dataclasses.replace(config, steps=steps), verify=False, rooms=rooms).at(0).noise_scale


def _most_steps(needed_noise: Callable[[int], float], noise_scale: float) -> int:
    """The largest number of steps that needs no more noise than ``noise_scale``; noise grows with steps.

    >>> _most_steps(lambda steps: steps**0.5, 4.0)
    16
    """
    if not needed_noise(1) <= noise_scale:
        raise InfeasibleError(
            f"training.noise_scale={noise_scale:g}: a single step needs {needed_noise(1):.4g}; give at least that, a "
            "smaller clipping_threshold, or ask for larger budgets"
        )
    fits, fails = 1, 2
    while fails <= MOST_STEPS and needed_noise(fails) <= noise_scale:
        fits, fails = fails, 2 * fails
    if fails > MOST_STEPS:
        return fits
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if needed_noise(middle) <= noise_scale else (fits, middle)
    return fits
