"""Signals: how much of each owner stands out from the noise, and what that means for the paper's condition."""

from __future__ import annotations

import math

from inosgd._arrays import FloatArray
from inosgd.plan import Plan


def signals(plan: Plan, step: int = 0) -> FloatArray:
    """Each owner's signal against the noise, s_n = q_n |D_n| C_n / sigma."""
    terms = plan.at(step)
    return terms.sampling_rates * plan.table.sizes * terms.clipping_thresholds / terms.noise_scale


def signal_ratio(plan: Plan, step: int = 0) -> float:
    """The largest signal of any owner with examples over the smallest."""
    return _ratio(signals(plan, step)[plan.table.sizes > 0])


def signal_ratio_per_example(plan: Plan, step: int = 0) -> float:
    """The same for signals per example, s_n / |D_n|, which fair plans bring close to each other."""
    present = plan.table.sizes > 0
    return _ratio(signals(plan, step)[present] / plan.table.sizes[present])


def _ratio(values: FloatArray) -> float:
    return float(values.max() / values.min()) if values.min() > 0 else math.inf


def widest_angle(plan: Plan, step: int = 0) -> float:
    """Up to which angle between two owners' gradients the paper's condition can hold for any two of them, in degrees.

    Thm. 3.1 needs 1 + cos(angle) s_2 / s_1 > 0 for the largest signal s_2 and the smallest s_1.
    """
    return math.degrees(math.acos(max(-1.0, -1.0 / signal_ratio(plan, step))))
