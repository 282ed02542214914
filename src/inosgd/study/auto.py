"""Auto: plan, adjustment of the loss and averaging of iterates, chosen from public facts alone.

The rule:

    plan         declared class shares: the most total signal with which no class has more than three times the signal
                 per example of another. This is SCALE if SCALE is such a plan; otherwise fair, with its usual exponent
                 and the weakest of a few caps
                 counted ones: fair with cap 3, which keeps to this whatever the count will say
                 none: fair with cap 2
    tail         none: the adjusted loss does what a tail is for, and takes no signal away
    adjustment   if class shares are declared or counted: tau 1.5, towards all owners alike
    averaging    exponential, over a tenth of the steps and at most ten of them: decay 1 - 1 / h, h = min(10, T / 10)

The signal per example of class c is  sum_n s_n p_n(c) / sum_n |D_n| p_n(c),  with signals s_n = q_n |D_n| C_n and class
shares p_n (`inosgd.adjustment`). It is a mean over the owners that hold the class, so a cap on owners is a cap on
classes. Where owners hold similar data, liberal ones have examples of the strict ones' classes too,
and no cap is needed.

The rule looks at budgets, sizes, the task and declared class shares, and at nothing of the examples. So it costs no
privacy, and what was counted has no say in rates, thresholds, noise or the number of steps (`inosgd.counting`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from inosgd.adjustment import class_signals
from inosgd.averaging import Averaging
from inosgd.class_shares import ClassShares
from inosgd.errors import InfeasibleError
from inosgd.method import AUTO
from inosgd.owners import OwnerTable
from inosgd.plan_config import Fairness, PlanConfig
from inosgd.study.config import TrainingConfig, plan_once
from inosgd.study.study import StudyData

HORIZON = 10
LONG = HORIZON * HORIZON
"""How many iterates are averaged, and from how many steps on."""

MAX_RATIO = 3.0
"""How many times the signal per example of another class one may have."""

CAPS = (math.inf, 6.0, 4.0)
"""The caps of fair plans that are tried before `MAX_RATIO` itself, which is always enough."""


def choose(config: TrainingConfig, data: StudyData, planned: PlanConfig | None = None) -> TrainingConfig:
    """The configuration with what ``auto`` leaves open; any other method is left as it is.

    Args:
        config: What was asked for. A cap, an adjustment or an averaging that it gives stays.
        data: The study's data. Task, owners and declared shares decide, the examples do not.
        planned: The plan that a training has begun with, if it has: the choice was made then.
    """
    if config.method.name != AUTO.name:
        return config
    adjustable = data.task.kind == "classification" and (data.shares is not None or config.count_classes)
    if not adjustable and config.method.adjustment == AUTO.adjustment:  # one that was asked for is refused in `settled`
        config = dataclasses.replace(config, method=dataclasses.replace(config.method, adjustment=None))
    if planned is not None:
        config = _planned_as(config, planned.variant, planned.fairness)
    elif config.method.adjustment is not None and _leaves_plan_open(config):
        config = _with_plan(config, data)
    return dataclasses.replace(config, averaging=config.averaging or _averaging(config))


def _leaves_plan_open(config: TrainingConfig) -> bool:
    return (config.plan.variant, config.plan.fairness) == (AUTO.variant, Fairness())


def _averaging(config: TrainingConfig) -> Averaging:
    steps = LONG if config.until_noise is not None else config.plan.steps
    return Averaging("exponential", 1 - 1 / max(min(HORIZON, steps / HORIZON), 1))


def _with_plan(config: TrainingConfig, data: StudyData) -> TrainingConfig:
    """The same by the plan of the rule."""
    table, shares = data.owners.table, data.shares
    holders = {name for name, _, size in table if size > 0}
    if shares is None or (config.count_classes and not holders <= set(shares.owners)):
        return _planned_as(config, "fair", Fairness(max_ratio=MAX_RATIO))
    return next(each for each in _candidates(config) if _balanced(each, table, shares))


def _candidates(config: TrainingConfig) -> Iterator[TrainingConfig]:
    """Plans of less and less total signal; the last one is always balanced."""
    yield _planned_as(config, "scale", config.plan.fairness)
    for cap in (*CAPS, MAX_RATIO):
        yield _planned_as(config, "fair", Fairness(max_ratio=cap))


def _balanced(config: TrainingConfig, table: OwnerTable, shares: ClassShares) -> bool:
    """Whether the plan is possible and gives no class too much signal."""
    if config.plan.variant == "fair" and config.plan.fairness.max_ratio <= MAX_RATIO:
        return True
    try:
        plan = plan_once(config, table, verify=False)
    except InfeasibleError:  # another plan may be possible; if none is, planning says why
        return False
    signals = class_signals(plan.at(0), table, shares)
    return bool(np.max(signals) <= MAX_RATIO * np.min(signals))


def _planned_as(config: TrainingConfig, variant: str, fairness: Fairness) -> TrainingConfig:
    method = dataclasses.replace(config.method, variant=variant)
    return config.by(method, fairness)


def in_words(config: TrainingConfig) -> str:
    """What was chosen and why, in a sentence."""
    adjustment, cap = config.method.adjustment, config.plan.fairness.max_ratio
    loss = (
        "a plain loss, because no class shares are declared or counted"
        if adjustment is None
        else f"a loss from which unequal signals are taken out (tau {adjustment.tau:g}, target {adjustment.target})"
    )
    why = (
        f"without a cap on liberal owners, since no class has more than {MAX_RATIO:g} times the signal of another"
        if config.plan.variant != "fair" or math.isinf(cap)
        else f"in which liberal owners have at most {cap:g} times the signal per example of the strictest"
    )
    return (
        f"auto: a {config.plan.variant} plan {why}; no tail, {loss}, and an average of the last iterates, which is free"
    )
