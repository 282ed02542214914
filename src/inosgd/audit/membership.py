"""The LiRA audit of a study: what the attack finds for every owner, beside the best that the claim allows.

Rates are over pairs of a target model and an example. For each example the guarantee bounds the true positive rate
by a concave function of the false positive rate; averages over examples obey the same bound (Jensen). So the highest
curve of `inosgd.audit.claims` holds for the pooled ROC too, and an AUC near it would be remarkable: the bound is for
the worst example of the worst data.

The ROC uses every model in turn as the target, leaving it out of the statistics. The bound on epsilon is stricter:
the last quarter of the models are targets, scored by the others alone. Their coins and trainings are independent of
the shadow models', each coin enters one training, so that together they are a mechanism that is (ε, δ)-private for
each of the targets' bits, and the guesses are computed from its output: exactly what the theorem behind
`inosgd.audit.bounds.one_run_p_value` asks for, though guesses within a model depend on each other. How many guesses
are made is chosen on the first eighth of the targets' models.

One point (ε, δ) is hard to refute. The advantage, true less false positive rate, is tested too, against what the whole
profile allows: with a threshold chosen on the shadow models, the share of right guesses within a target model has an
expectation of at most (1 + advantage) / 2, however its guesses hang together, and the shares of different targets are
independent. `inosgd.audit.bounds.mean_lower_bound` asks for no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray
from inosgd.audit.bounds import OneRun, best_threshold, mean_lower_bound, one_run_bound
from inosgd.audit.claims import Claim, Subject, highest_auc, highest_curve
from inosgd.audit.lira import leave_one_out_scores, scores_against
from inosgd.audit.roc import Roc, auc_interval


@dataclass(frozen=True, eq=False)
class Attacked:
    """What LiRA found for an owner (or a group of owners).

    Attributes:
        claim: What is claimed.
        roc: Over all pairs of a model and an example of the owner.
        interval: An approximate confidence interval of the AUC.
        highest_auc: The largest AUC that the claimed profile allows to any attack.
        highest_auc_at_budget: The same, knowing only the budget's (ε, δ).
        bound: Guesses, right ones, and the lower bound on epsilon at the claim's delta.
        advantage: A lower bound on the attack's advantage.
    """

    claim: Claim
    roc: Roc
    interval: tuple[float, float]
    highest_auc: float
    highest_auc_at_budget: float
    bound: OneRun
    advantage: float

    @property
    def highest_advantage(self) -> float:
        """The largest advantage that the claimed profile allows to any attack."""
        return self.claim.profile.delta(0.0)

    @property
    def rejected(self) -> bool:
        """Whether a bound exceeds what is accounted for."""
        return self.bound.epsilon > self.claim.spent or self.advantage > self.highest_advantage

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the ROC at a few points and the highest one beside it."""
        rates, found = self.roc.thinned()
        return {
            "owner": self.claim.name,
            "budget": self.claim.epsilon if math.isfinite(self.claim.epsilon) else "inf",
            "delta": self.claim.delta,
            "accounted": self.claim.spent,
            "auc": self.roc.auc,
            "auc_interval": list(self.interval),
            "highest_auc": self.highest_auc,
            "highest_auc_at_budget": self.highest_auc_at_budget,
            "tpr_at_1_percent": self.roc.true_positive_rate_at(0.01),
            "tpr_at_1_permille": self.roc.true_positive_rate_at(0.001),
            "highest_tpr_at_1_percent": float(highest_curve(self.claim.profile, [0.01])[0]),
            "highest_tpr_at_1_permille": float(highest_curve(self.claim.profile, [0.001])[0]),
            "lower_bound": self.bound.epsilon,
            "advantage_at_least": self.advantage,
            "highest_advantage": self.highest_advantage,
            "guesses": self.bound.guesses,
            "correct": self.bound.correct,
            "rejected": self.rejected,
            "roc": {"false_positive_rates": rates.tolist(), "true_positive_rates": found.tolist()},
        }


def attack(
    confidences: FloatArray, members: BoolArray, subjects: Sequence[Subject], form: str, confidence: float
) -> list[Attacked]:
    """What the attack finds for every subject; all lower bounds hold together with ``confidence``."""
    _validate.open_unit(confidence=confidence)
    each = 1 - (1 - confidence) / (2 * len(subjects))
    scores = leave_one_out_scores(confidences, members, form)
    first = len(confidences) - len(confidences) // 4
    shadows, present = confidences[:first], members[:first]
    known = leave_one_out_scores(shadows, present, form)
    apart = scores_against(shadows, present, confidences[first:], form)
    thresholds = [_threshold(known[:, subject.examples], present[:, subject.examples]) for subject in subjects]
    return [
        _attacked(subject, scores, members, apart, members[first:], threshold, each)
        for subject, threshold in zip(subjects, thresholds, strict=True)
    ]


def _threshold(scores: FloatArray, members: BoolArray, pairs: int = 2000) -> float:
    """The best threshold for the shadow models, from some of their pairs."""
    usable = np.flatnonzero(np.isfinite(scores))
    chosen = usable[:: max(1, len(usable) // pairs)]
    return best_threshold(scores.ravel()[chosen], members.ravel()[chosen])


def _attacked(
    subject: Subject,
    scores: FloatArray,
    members: BoolArray,
    apart: FloatArray,
    apart_members: BoolArray,
    threshold: float,
    confidence: float,
) -> Attacked:
    columns, claim = subject.examples, subject.claim
    mine, present = scores[:, columns], members[:, columns]
    usable = np.isfinite(mine)
    return Attacked(
        claim,
        Roc.of(mine[usable], present[usable]),
        auc_interval(mine, present, confidence),
        highest_auc(claim.profile),
        highest_auc(claim.at_budget()),
        _bound(apart[:, columns], apart_members[:, columns], claim.delta, confidence),
        _advantage(apart[:, columns], apart_members[:, columns], threshold, confidence),
    )


def _advantage(scores: FloatArray, members: BoolArray, threshold: float, confidence: float) -> float:
    """From the share of right guesses within each target model; a pair without a score is guessed to be out."""
    right = ((np.nan_to_num(scores, nan=-np.inf) >= threshold) == members).mean(axis=1)
    return max(2 * mean_lower_bound(right, confidence) - 1, 0.0)


def _bound(scores: FloatArray, members: BoolArray, delta: float, confidence: float) -> OneRun:
    """Guesses on target models; pairs without a score are bits that are never guessed."""
    calibrating = np.broadcast_to((np.arange(len(scores)) < math.ceil(len(scores) / 8))[:, None], scores.shape)
    usable = np.isfinite(scores)
    return one_run_bound(scores[usable], members[usable], calibrating[usable], delta, confidence)


def verdict(found: Sequence[Attacked], confidence: float) -> str:
    """One sentence."""
    guilty = [each.claim.name for each in found if each.rejected]
    if guilty:
        return f"REJECTED at {confidence:.0%} confidence: {', '.join(guilty)} lost more than is accounted for."
    most = max(found, key=lambda each: each.roc.auc)
    return (
        f"Nothing is refuted at {confidence:.0%} confidence; the attack does best on {most.claim.name}, AUC "
        f"{most.roc.auc:.3f} where {most.highest_auc:.3f} is possible."
    )
