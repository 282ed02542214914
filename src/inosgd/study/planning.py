"""The plan of a study: from its numbers and the table of owners."""

from __future__ import annotations

from collections.abc import Callable

from inosgd.errors import InfeasibleError
from inosgd.method import METHODS
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import Fairness, PlanConfig, make_plan
from inosgd.study.schema import TrainingSection

MOST_STEPS = 100_000


def study_plan(training: TrainingSection, table: OwnerTable) -> Plan:
    """The plan that ``training`` asks for; without steps, as many as its noise scale allows."""
    if training.steps is not None:
        return planned(training, table, training.steps, noise_scale=training.noise_scale)
    steps = _most_steps(lambda count: _needed_noise(training, table, count), training.noise_scale or 0.0)
    return planned(training, table, steps)


def planned(
    training: TrainingSection, table: OwnerTable, steps: int, *, noise_scale: float | None = None, verify: bool = True
) -> Plan:
    """A plan for ``steps`` steps with everything else as ``training`` says."""
    knobs = training.fairness
    return make_plan(
        table,
        PlanConfig(
            steps=steps,
            variant=training.variant or METHODS[training.method].variant,
            expected_batch_size=training.expected_batch_size,
            clipping_threshold=training.clipping_threshold,
            noise_scale=noise_scale,
            accountant=training.accountant,
            fairness=Fairness(knobs.exponent, knobs.max_ratio, knobs.mix),
            profile_margin=training.profile_margin,
        ),
        verify=verify,
    )


def _needed_noise(training: TrainingSection, table: OwnerTable, steps: int) -> float:
    return planned(training, table, steps, verify=False).at(0).noise_scale


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
