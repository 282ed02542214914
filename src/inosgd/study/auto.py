"""Auto: plan, adjustment of the loss and averaging of iterates, chosen from public facts alone.

The rule:

    plan         fair, with its usual exponent and cap: liberal owners are heard up to twice as loudly as the strictest
    tail         none: the adjusted loss does what a tail is for, and takes no signal away
    adjustment   if class shares are declared or counted: tau 1.5, towards all owners alike
    averaging    exponential, over a tenth of the steps and at most ten of them: decay 1 - 1 / h, h = min(10, T / 10)

It looks at the task, at whether there are class shares, and at nothing of the examples. So it costs no privacy, and
what was counted has no say in rates, thresholds, noise or the number of steps (`inosgd.counting`).
"""

from __future__ import annotations

import dataclasses

from inosgd.analysis.task import Task
from inosgd.averaging import Averaging
from inosgd.method import AUTO
from inosgd.study.config import TrainingConfig

HORIZON = 10
LONG = HORIZON * HORIZON
"""How many iterates are averaged, and from how many steps on."""


def choose(config: TrainingConfig, task: Task, *, shares: bool) -> TrainingConfig:
    """The configuration with what ``auto`` leaves open; any other method is left as it is.

    Args:
        config: What was asked for. An adjustment or an averaging that it gives stays.
        task: What the model is for.
        shares: Whether there are class shares, or will be before the first step.
    """
    if config.method.name != AUTO.name:
        return config
    method, averaging = config.method, config.averaging or _averaging(config)
    if task.kind != "classification" or not shares:
        method = dataclasses.replace(method, adjustment=None)
    return dataclasses.replace(config, method=method, averaging=averaging)


def _averaging(config: TrainingConfig) -> Averaging:
    steps = LONG if config.until_noise is not None else config.plan.steps
    return Averaging("exponential", 1 - 1 / max(min(HORIZON, steps / HORIZON), 1))


def in_words(config: TrainingConfig) -> str:
    """What was chosen and why, in a sentence."""
    adjustment = config.method.adjustment
    loss = (
        "a plain loss, because no class shares are declared or counted"
        if adjustment is None
        else f"a loss from which unequal signals are taken out (tau {adjustment.tau:g}, target {adjustment.target})"
    )
    cap = config.plan.fairness.max_ratio
    return (
        f"auto: a {config.plan.variant} plan, so that liberal owners add to what is learnt and are heard at most "
        f"{cap:g} times as loudly as the strictest; no tail, {loss}, and an average of the last iterates, which is free"
    )
