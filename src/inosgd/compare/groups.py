"""Groups of examples: what the guarantee of single examples amounts to for several of one owner."""

from __future__ import annotations

from inosgd.accounting.privacy_loss import SampledGaussian
from inosgd.analysis.guarantees import epsilons_by_size
from inosgd.compare.common import Common
from inosgd.compare.results import Result

MOST_OWNERS = 40


def group_epsilons(result: Result, common: Common) -> dict[str, dict[str, float]]:
    """For each owner the epsilon of groups of its examples, by size; empty where groups are not owners, or are many."""
    if not result.terms.spent or len(result.terms.spent) > MOST_OWNERS:
        return {}
    return {
        name: epsilons_by_size([_exposure(result, name)], delta, examples)
        for name, _, delta, examples in common.owners
        if examples > 0
    }


def _exposure(result: Result, name: str) -> SampledGaussian:
    multiplier = result.noise_scale / result.terms.thresholds[name]
    return SampledGaussian(result.terms.rates[name], multiplier, result.steps)
