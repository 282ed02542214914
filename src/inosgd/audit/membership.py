"""The LiRA audit of a study: what the attack finds for every owner, beside the best that the claim allows.

Rates are over pairs of a target model and an example. For each example the guarantee bounds the true positive rate
by a concave function of the false positive rate; averages over examples obey the same bound (Jensen). So the highest
curve of `inosgd.audit.claims` holds for the pooled ROC too, and an AUC near it would be remarkable: the bound is for
the worst example of the worst data.

The ROC uses every model in turn as the target, leaving it out of the statistics. The bound on epsilon is stricter:
the last half of the models are targets, scored by the others alone. Their coins and trainings are independent of
the shadow models', each coin enters one training, so that together they are a mechanism that is (ε, δ)-private for
each of the targets' bits, and the guesses are computed from its output: exactly what the theorem behind
`inosgd.audit.bounds.one_run_p_value` asks for, though guesses within a model depend on each other. How many guesses
are made is chosen on the first eighth of the targets' models. The number of right guesses is held against the whole
profile too (`inosgd.audit.bounds.one_run_rejects`).

Beside it stands the empirical epsilon as it is usually reported: Clopper and Pearson's bounds on both rates of the
target models, at a threshold that the shadow models chose. They take all pairs of a model and an example to be
independent trials, which pairs of one model are not, so that no verdict rests on it.

One point (ε, δ) is hard to refute. The advantage, true less false positive rate, is tested too, against what the whole
profile allows: with a threshold chosen on the shadow models, the share of right guesses within a target model has an
expectation of at most (1 + advantage) / 2, however its guesses hang together, and the shares of different targets are
independent. `inosgd.audit.bounds.mean_lower_bound` asks for no more.

What is attacked: sampling, order, weights, clipping, sum, noise and update of `train_step` through ordinary examples,
as `inosgd.audit.batched` computes them for perceptrons (tested to agree with `train_step` draw by draw) and as
`train_step` itself does for other models. Seeds are used, so that `SecureSource` is not.
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
    OneRun,
    best_threshold,
    epsilon_lower_bound,
    mean_lower_bound,
    most_revealing_threshold,
    one_run_bound,
)
from inosgd.audit.claims import Claim, Subject, highest_auc, highest_curve
from inosgd.audit.lira import FORMS, leave_one_out_scores, scores_against
from inosgd.audit.roc import Intervals, Roc, roc_intervals

FEWEST_MODELS = 16
"""Half of the models are targets, and the others must be enough for `inosgd.audit.lira`."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """What LiRA found for an owner (or a group of owners).

    Attributes:
        claim: What is claimed.
        roc: Over all pairs of a model and an example of the owner.
        intervals: Approximate confidence intervals, each by itself.
        highest_auc: The largest AUC that the claimed profile allows to any attack.
        highest_auc_at_budget: The same, knowing only the budget's (ε, δ).
        bound: Guesses, right ones, and the lower bound on epsilon at the claim's delta.
        contradicted: Whether the number of right guesses contradicts the claimed profile.
        advantage: A lower bound on the attack's advantage.
        empirical: The usual lower bound on epsilon, valid if pairs were independent.
    """

    claim: Claim
    roc: Roc
    intervals: Intervals
    highest_auc: float
    highest_auc_at_budget: float
    bound: OneRun
    contradicted: bool
    advantage: float
    empirical: float

    @property
    def highest_advantage(self) -> float:
        """The largest advantage that the claimed profile allows to any attack."""
        return self.claim.profile.delta(0.0)

    @property
    def rejected(self) -> bool:
        """Whether a bound exceeds what is accounted for, or the guesses contradict the claimed profile."""
        above = self.bound.epsilon > self.claim.spent or self.advantage > self.highest_advantage
        return above or self.contradicted

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the ROC at a few points and the highest one beside it."""
        rates, found = self.roc.thinned()
        highest = highest_curve(self.claim.profile, rates)
        return {
            "owner": self.claim.name,
            "budget": self.claim.epsilon if math.isfinite(self.claim.epsilon) else "inf",
            "delta": self.claim.delta,
            "accounted": self.claim.spent,
            "auc": self.roc.auc,
            "auc_interval": list(self.intervals.auc),
            "highest_auc": self.highest_auc,
            "highest_auc_at_budget": self.highest_auc_at_budget,
            "tpr_at_1_percent": self.roc.true_positive_rate_at(0.01),
            "tpr_at_1_percent_interval": list(self.intervals.at_1_percent),
            "tpr_at_1_permille": self.roc.true_positive_rate_at(0.001),
            "tpr_at_1_permille_interval": list(self.intervals.at_1_permille),
            "highest_tpr_at_1_percent": float(highest_curve(self.claim.profile, [0.01])[0]),
            "highest_tpr_at_1_permille": float(highest_curve(self.claim.profile, [0.001])[0]),
            "lower_bound": self.bound.epsilon,
            "empirical_epsilon": self.empirical,
            "advantage_at_least": self.advantage,
            "highest_advantage": self.highest_advantage,
            "guesses": self.bound.guesses,
            "correct": self.bound.correct,
            "rejected": self.rejected,
            "roc": {
                "false_positive_rates": rates.tolist(),
                "true_positive_rates": found.tolist(),
                "highest_true_positive_rates": highest.tolist(),
            },
        }


def attack(
    confidences: FloatArray, members: BoolArray, subjects: Sequence[Subject], form: str, confidence: float
) -> list[Attacked]:
    """What the attack finds for every subject.

    All lower bounds and verdicts of all forms hold together with ``confidence`` (Bonferroni over forms, subjects and
    the two tests of each), so that it does not matter which form is looked at, or that both are.
    """
    _validate.open_unit(confidence=confidence)
    _validate.whole(FEWEST_MODELS, models=len(confidences))
    each = 1 - (1 - confidence) / bounds_of(len(subjects))
    scores = leave_one_out_scores(confidences, members, form)
    first = len(confidences) - len(confidences) // 2
    known = leave_one_out_scores(confidences[:first], members[:first], form)
    apart = scores_against(confidences[:first], members[:first], confidences[first:], form)
    found = []
    for subject in subjects:
        columns = subject.examples
        shadows = _Pairs(known[:, columns], members[:first, columns])
        targets = _Pairs(apart[:, columns], members[first:, columns])
        all_examples = _Pairs(scores[:, columns], members[:, columns])
        found.append(_attacked(subject.claim, all_examples, shadows, targets, confidence, each))
    return found


def bounds_of(subjects: int) -> int:
    """Over how many bounds an audit's confidence is split: two tests for each form and subject."""
    return 2 * len(FORMS) * subjects


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Scores and membership of models (rows) and examples of one subject (columns)."""

    scores: FloatArray
    members: BoolArray

    def usable(self) -> tuple[FloatArray, BoolArray]:
        """All pairs that have a score."""
        there = np.isfinite(self.scores)
        return self.scores[there], self.members[there]


def _attacked(
    claim: Claim, all_examples: _Pairs, shadows: _Pairs, targets: _Pairs, confidence: float, each: float
) -> Attacked:
    bound = _bound(targets.scores, targets.members, claim.delta, each)
    return Attacked(
        claim,
        Roc.of(*all_examples.usable()),
        roc_intervals(all_examples.scores, all_examples.members, confidence),
        highest_auc(claim.profile),
        highest_auc(claim.at_budget()),
        bound,
        bound.rejects(claim.profile, each),
        _advantage(targets.scores, targets.members, best_threshold(*shadows.usable()), each),
        _empirical(shadows, targets, claim.delta, confidence),
    )


def _empirical(shadows: _Pairs, targets: _Pairs, delta: float, confidence: float) -> float:
    threshold = most_revealing_threshold(*shadows.usable(), delta, confidence)
    return epsilon_lower_bound(Counts.at(threshold, *targets.usable()), delta, confidence)


def _advantage(scores: FloatArray, members: BoolArray, threshold: float, confidence: float) -> float:
    """From the share of right guesses within each target model; a pair without a score is guessed to be out."""
    right = ((np.nan_to_num(scores, nan=-np.inf) >= threshold) == members).mean(axis=1)
    return max(2 * mean_lower_bound(right, confidence) - 1, 0.0)


def _bound(scores: FloatArray, members: BoolArray, delta: float, confidence: float) -> OneRun:
    """Guesses on target models; pairs without a score are bits that are never guessed."""
    calibrating = np.broadcast_to((np.arange(len(scores)) < math.ceil(len(scores) / 8))[:, None], scores.shape)
    return one_run_bound(scores.ravel(), members.ravel(), calibrating.ravel(), delta, confidence)


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
