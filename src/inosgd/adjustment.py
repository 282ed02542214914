"""Signal-adjusted losses: the prior that unequal signals put into a model is taken out of the loss.

Owner n is heard with the signal s_n = q_n |D_n| C_n. To the loss, the classes of an owner with k times the signal are k
times as frequent, so a model learns class frequencies that the data do not have, and predicts the classes of liberal
owners too often. With p_n(c) the share of class c among owner n's examples (`inosgd.class_shares`), the classes are
heard with the shares h, and should be heard with the shares t of a *target*:

    h(c)  is proportional to  sum_n s_n p_n(c),

    natural   t(c) proportional to sum_n |D_n| p_n(c)    the data's own class shares: for accuracy
    owners    t(c) proportional to sum_n p_n(c)          all owners alike
    classes   t(c) = 1 / K                               all classes alike: for balanced accuracy

Training adds the offset  tau (log h(c) - log t(c))  to the logit of class c. The plain logits, which predictions,
evaluations, saved models and audits use, are then those of a model for the target's class shares. This is logit
adjustment (Menon et al. 2021) with signals in the place of frequencies.

Guarantee:
    An offset is a function of the plan's terms, of sizes and of class shares, which are public or were counted under
    the budgets before. The loss of an example remains a function of this example, of the model and of public values,
    so that sampling, order, sensitivity and accounting are what they are without it.

Shares are mixed with a little of the uniform one, so that a class that no owner declared has a finite offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.class_shares import ClassShares
from inosgd.owners import OwnerTable
from inosgd.plan import Terms

TARGETS = ("natural", "owners", "classes")

UNIFORM_PART = 1e-4
"""How much of the uniform distribution is mixed into shares."""


@dataclass(frozen=True)
class Adjustment:
    """How far the distortion of class shares is taken out, and towards which class shares.

    Attributes:
        tau: 0 leaves the loss as it is, 1 removes the distortion, more goes beyond.
        target: One of `TARGETS`.
    """

    tau: float = 1.0
    target: str = "natural"

    def __post_init__(self) -> None:
        _validate.non_negative(tau=self.tau)
        _validate.one_of(TARGETS, target=self.target)

    def offsets(self, terms: Terms, table: OwnerTable, shares: ClassShares) -> FloatArray:
        """What is added to the logit of each class in a step under ``terms``; their mean is 0.

        Guarantee: a function of public values; see the module.
        """
        rows = shares.rows_for(table.names, table.sizes.tolist())
        heard = _mixed(terms.sampling_rates * table.sizes * terms.clipping_thresholds @ rows)
        offsets = self.tau * (np.log(heard) - np.log(_mixed(self._wanted(table, rows))))
        centred: FloatArray = offsets - offsets.mean()
        return centred

    def _wanted(self, table: OwnerTable, rows: FloatArray) -> FloatArray:
        if self.target == "natural":
            weights = table.sizes.astype(np.float64)
        elif self.target == "owners":
            weights = (table.sizes > 0).astype(np.float64)
        else:
            return np.ones(rows.shape[1])
        wanted: FloatArray = weights @ rows
        return wanted


def class_signals(terms: Terms, table: OwnerTable, shares: ClassShares) -> FloatArray:
    """The signal per example of each class that any owner has: sum_n s_n p_n(c) / sum_n |D_n| p_n(c).

    It lies between the smallest and the largest signal per example of the owners that hold the class. Public.
    """
    rows = shares.rows_for(table.names, table.sizes.tolist())
    examples = table.sizes.astype(np.float64) @ rows
    heard = terms.sampling_rates * table.sizes * terms.clipping_thresholds @ rows
    found: FloatArray = heard[examples > 0] / examples[examples > 0]
    return found


def _mixed(weights: FloatArray) -> FloatArray:
    """Weights as shares that add up to 1, with a little of the uniform ones."""
    total = weights.sum()
    shares = weights / total if total > 0 else np.zeros(len(weights))
    return (1 - UNIFORM_PART) * shares + UNIFORM_PART / len(weights)
