"""Findings: what a canary audit concludes about each owner from the scores of its canaries.

Guarantee:
    All bounds of one audit hold together with its confidence (Bonferroni over owners, views and bounds). Correct code
    is rejected with probability at most 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray
from inosgd.audit.bounds import (
    Counts,
    best_threshold,
    epsilon_lower_bound,
    epsilon_within_family,
    one_run_bound,
    rates_reject,
    rejects,
)
from inosgd.audit.claims import Claim
from inosgd.audit.game import Game, Played


@dataclass(frozen=True)
class Finding:
    """What one view of the audit says about one owner.

    Attributes:
        owner: Its name.
        view: "white-box", "black-box", "one-run white-box", "one-run black-box" or "order".
        budget: The owner's epsilon.
        accounted: The accountant's upper bound.
        delta: At which delta.
        lower_bound: On epsilon, without assumptions.
        lower_bound_of_noise: On epsilon, if only the amount of noise is in doubt.
        rejected: Whether the claim is refuted.
        trials: On how many trials or bits it rests.
    """

    owner: str
    view: str
    budget: float
    accounted: float
    delta: float
    lower_bound: float
    lower_bound_of_noise: float
    rejected: bool
    trials: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.__dict__, "budget": self.budget if math.isfinite(self.budget) else "inf"}


def findings(game: Game, played: dict[str, Played], confidence: float) -> list[Finding]:
    """What trainings of each kind say about every owner; all bounds hold together with ``confidence``."""
    _validate.open_unit(confidence=confidence)
    rows = game.owners.tolist()
    each = 1 - (1 - confidence) / bounds_of(len(rows), "order" in played)
    found = []
    for column, row in enumerate(rows):
        claim = game.claim(row)
        repeated, single = _column(played["data"], column), _block(played["one-run"], column, len(rows))
        found += [
            repeated_finding(claim, "white-box", repeated.included, repeated.white, each),
            repeated_finding(claim, "black-box", repeated.included, repeated.black, each),
            one_run_finding(claim, "one-run white-box", single.included, single.white, each),
            one_run_finding(claim, "one-run black-box", single.included, single.black, each),
        ]
        if "order" in played:
            order = _column(played["order"], column)
            found.append(repeated_finding(claim, "order", order.included, order.white, each))
    return found


def bounds_of(owners: int, order: bool) -> int:
    """Over how many bounds an audit's confidence is split.

    A repeated view has two for each owner, one from right guesses and one from both rates. A one-run view has one: all
    that is concluded from its number of right guesses is wrong only if that number is as rare as the confidence says.
    """
    return (2 * 2 + 2 + (2 if order else 0)) * owners


def repeated_finding(claim: Claim, view: str, included: BoolArray, scores: FloatArray, confidence: float) -> Finding:
    """From independent trainings: a third chooses the threshold, the others are counted."""
    first = len(scores) // 3
    threshold = best_threshold(scores[:first], included[:first])
    counts = Counts.at(threshold, scores[first:], included[first:])
    plain = epsilon_lower_bound(counts, claim.delta, confidence)
    of_noise = epsilon_within_family(
        claim.with_noise, lambda profile: rejects(profile, counts, confidence), claim.delta
    )
    rejected = (
        rejects(claim.profile, counts, confidence)
        or rates_reject(claim.profile, counts, confidence)
        or plain > claim.spent
    )
    return _finding(claim, view, plain, of_noise, rejected, len(scores) - first)


def one_run_finding(claim: Claim, view: str, included: BoolArray, scores: FloatArray, confidence: float) -> Finding:
    """From one training with many canaries: a quarter of them chooses how many are guessed."""
    calibrating = np.arange(len(scores)) < len(scores) // 4
    bound = one_run_bound(scores, included, calibrating, claim.delta, confidence)
    of_noise = epsilon_within_family(claim.with_noise, lambda profile: bound.rejects(profile, confidence), claim.delta)
    rejected = bound.rejects(claim.profile, confidence) or bound.epsilon > claim.spent
    return _finding(claim, view, bound.epsilon, of_noise, rejected, bound.bits)


def _finding(claim: Claim, view: str, plain: float, of_noise: float, rejected: bool, trials: int) -> Finding:
    return Finding(claim.name, view, claim.epsilon, claim.spent, claim.delta, plain, of_noise, rejected, trials)


def _column(played: Played, column: int) -> Played:
    return Played(played.included[:, column], played.white[:, column], played.black[:, column])


def _block(played: Played, block: int, blocks: int) -> Played:
    """The canaries of one owner in a single training."""
    size = played.included.shape[1] // blocks
    where = slice(block * size, (block + 1) * size)
    return Played(played.included[0, where], played.white[0, where], played.black[0, where])


def verdict(found: Sequence[Finding], confidence: float) -> str:
    """One sentence."""
    guilty = [each for each in found if each.rejected]
    if guilty:
        owners = ", ".join(dict.fromkeys(each.owner for each in guilty))
        views = ", ".join(dict.fromkeys(each.view for each in guilty))
        return f"REJECTED at {confidence:.0%} confidence: the claim for {owners} is refuted ({views})."
    largest = max(max(each.lower_bound, each.lower_bound_of_noise) / max(each.accounted, 1e-300) for each in found)
    return (
        f"Nothing is refuted at {confidence:.0%} confidence: every lower bound is below what is accounted for; the "
        f"closest comes to {largest:.0%} of it."
    )
