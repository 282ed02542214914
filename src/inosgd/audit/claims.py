"""Claims: what the accountant says about every owner, and the best attack that it allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.accounting.privacy_loss import PrivacyProfile, SampledGaussian, compose
from inosgd.plan import Plan
from inosgd.study.study import StudyData

MOST_OWNERS = 12
"""With more owners than this, audits are told by the study's groups."""


@dataclass(frozen=True, eq=False)
class Claim:
    """What is claimed for the examples of an owner, or of a group of owners.

    Attributes:
        name: Of the owner or the group.
        epsilon: The budget; of a group, the largest.
        delta: Of the budget.
        spent: The accounted upper bound on epsilon at ``delta``.
        mechanisms: What one example takes part in; of a group, the most revealing rate and noise of any owner.
    """

    name: str
    epsilon: float
    delta: float
    spent: float
    mechanisms: tuple[SampledGaussian, ...]

    @cached_property
    def profile(self) -> PrivacyProfile:
        """The claimed upper bound on delta at every epsilon."""
        return compose(self.mechanisms)

    def with_noise(self, factor: float) -> PrivacyProfile:
        """The profile that ``factor`` times the noise would have."""
        _validate.finite_positive(factor=factor)
        return _with_noise(self.mechanisms, factor)

    def at_budget(self) -> PrivacyProfile:
        """All that the single point (epsilon, delta) says."""
        return PrivacyProfile(np.array([self.epsilon]), np.array([self.delta]))


@lru_cache(maxsize=32)
def _with_noise(mechanisms: tuple[SampledGaussian, ...], factor: float) -> PrivacyProfile:
    """Kept for a while: all views of an owner ask for the same factors."""
    return compose(
        SampledGaussian(each.sampling_rate, each.noise_multiplier * factor, each.steps) for each in mechanisms
    )


def claim_of(plan: Plan, rows: IntArray, name: str) -> Claim:
    """The claim for the owners in ``rows`` of the plan's table together."""
    table = plan.table
    mechanisms = tuple(
        SampledGaussian(
            float(phase.terms.sampling_rates[rows].max()),
            float(phase.terms.noise_multipliers()[rows].min()),
            phase.steps,
        )
        for phase in plan.charges
    )
    return Claim(
        name,
        float(table.epsilons[rows].max()),
        float(table.deltas[rows].max()),
        float(plan.spent[rows].max()),
        mechanisms,
    )


@dataclass(frozen=True, eq=False)
class Subject:
    """Whose examples are attacked together, and what is claimed for them."""

    claim: Claim
    examples: IntArray


def subjects_of(plan: Plan, data: StudyData) -> list[Subject]:
    """One subject per owner with examples; with many owners, one per group of the study."""
    assignment = data.owners.assignment
    owners = np.unique(assignment)
    if len(owners) <= MOST_OWNERS:
        each = [(plan.table.names[row], np.array([row]), np.flatnonzero(assignment == row)) for row in owners.tolist()]
    else:
        members = [np.flatnonzero(data.train_groups == row) for row in range(len(data.groups.names))]
        each = [
            (name, np.unique(assignment[rows]), rows)
            for name, rows in zip(data.groups.names, members, strict=True)
            if len(rows)
        ]
    return [Subject(claim_of(plan, rows, name), examples) for name, rows, examples in each]


_MOST_KNOTS = 1000


def highest_curve(profile: PrivacyProfile, false_positive_rates: Sequence[float] | FloatArray) -> FloatArray:
    """The largest true positive rate of any attack at each false positive rate.

    `inosgd.accounting.profile.best_true_positive_rate` for many rates at once. Every knot of a profile is a bound of
    its own, so that leaving knots out only raises the curve; at most a thousand are used.
    """
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    _validate.closed_unit(false_positive_rates=rates)
    useful = max(int((profile.deltas > 1e-9).sum()) + 1, 1)
    knots = np.unique(np.linspace(0, min(useful, len(profile.deltas)) - 1, _MOST_KNOTS).round().astype(np.int64))
    growth = np.exp(np.minimum(profile.epsilons[knots], 700.0))[:, None]
    deltas = profile.deltas[knots][:, None]
    direct = growth * rates + deltas
    mirrored = 1 - (1 - rates - deltas) / growth
    curve: FloatArray = np.minimum(np.minimum(direct, mirrored).min(axis=0), 1.0)
    return curve


def highest_auc(profile: PrivacyProfile, points: int = 2000) -> float:
    """The largest area under the ROC curve of any attack; rounded up by at most 1 / ``points``.

    For one point (ε, 0) it is e^ε / (1 + e^ε); a whole profile allows much less.

    >>> import numpy as np
    >>> round(highest_auc(PrivacyProfile(np.array([1.0]), np.array([0.0]))), 2)
    0.73
    """
    rates = np.linspace(0.0, 1.0, points + 1)
    return float(highest_curve(profile, rates[1:]).mean())
