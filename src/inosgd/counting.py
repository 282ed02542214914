"""Counting: one noisy histogram of classes for each owner, under its budget, before the first step.

An example belongs to one owner and is of one class, so it moves one count by 1. A unit of several rows
(`inosgd.units`) moves the counts of its classes by their shares of its rows, which add up to 1. With noise of standard
deviation z_n on owner n's counts, the release is a Gaussian mechanism of noise multiplier z_n for each of its units.
In a plan and in a ledger this is one release with rate 1, threshold 1 / z_n and noise scale 1.

Why privacy-loss distributions may account for the count and the training together: they compose mechanisms whose noise,
rates and number are fixed in advance, and these are in the plan, which is made before the count. What was counted
changes the loss alone, that is, which vectors are clipped and summed, and the sampled Gaussian mechanism has its
guarantee for any vectors. So counts may decide on losses, tails and averages, and on nothing that the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inosgd import _validate
from inosgd._arrays import FloatArray, RowArray
from inosgd.class_shares import ClassShares
from inosgd.errors import InvalidArgumentError, LedgerError
from inosgd.ledger.ledger import Ledger
from inosgd.mechanism import BoundedSum, release
from inosgd.owners import Owners
from inosgd.plan import Plan, Terms
from inosgd.randomness import RandomSource
from inosgd.units import Units

STREAM = "counts"

_LESS = 1 - 2.0**-20
"""Histograms are scaled by this, so that roundings of h / z_n, below 2^-52 h, cannot move them by more than 1 / z_n."""


_PARTS = 1 << 20
"""Into so many parts a unit is divided among the classes of its rows: sums of them are exact."""


@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """The class of each example, as a number among ``classes``. Sensitive, but for the names of the classes."""

    classes: tuple[str, ...]
    numbers: RowArray

    def __post_init__(self) -> None:
        numbers = np.asarray(self.numbers)
        object.__setattr__(self, "numbers", numbers)
        if len(self.classes) < 2 or numbers.ndim != 1:
            raise InvalidArgumentError(
                f"labels of shape {numbers.shape} for {len(self.classes)} classes: give one number per example, of at "
                "least two classes"
            )
        if not (np.issubdtype(numbers.dtype, np.integer) and ((numbers >= 0) & (numbers < len(self.classes))).all()):
            raise InvalidArgumentError(
                f"labels of type {numbers.dtype}: give a class number from 0 to {len(self.classes) - 1} for each"
            )

    def __len__(self) -> int:
        return len(self.numbers)


def count_classes(
    ledger: Ledger, plan: Plan, owners: Owners, labels: Labels, source: RandomSource, units: Units | None = None
) -> ClassShares:
    """Count the classes of the owners that ``plan.count`` says, with noise; the ledger has it first.

    Guarantee:
        For each unit of owner n, what is returned is a function of one Gaussian mechanism of noise multiplier
        ``plan.count.noise_multipliers()[n]``, and of nothing else of that unit. The count is in the ledger before
        noise is drawn; if the ledger refuses it, nothing is released.

    Args:
        ledger: Of the training that follows, without a step yet. One that has counts gives the same shares again.
        plan: Made with `inosgd.plan_config.Counting`.
        owners: Whose each unit is.
        labels: Of which class each example is.
        source: Randomness; of the training that follows, whose streams do not overlap with the one used here.
        units: Which examples are one unit; None for each by itself.
    """
    terms = plan.count
    if terms is None:
        raise InvalidArgumentError("plan: it plans no count; ask for one with PlanConfig(counting=...)")
    if ledger.history.count is not None:
        return counted_shares(ledger, labels.classes)
    if units is None:
        _validate.same_length(labels=labels, owners=owners)
    elif units.row_count != len(labels):
        raise _validate.fail("labels", len(labels), f"units have {units.row_count} rows; give the class of each")
    sensitivity = terms.clipping_thresholds
    scaled = _histograms(owners, labels, terms, units) * sensitivity[:, None] * _LESS
    ledger.record_count(terms, sensitivity=sensitivity)
    total = BoundedSum(torch.from_numpy(scaled.ravel()), sensitivity)
    noisy = release(total, terms.noise_scale, source.stream(STREAM))
    counts = noisy.numpy().reshape(scaled.shape) / (sensitivity[:, None] * _LESS)
    ledger.mark_counts(np.where(terms.sampling_rates[:, None] > 0, counts, 0.0))
    return counted_shares(ledger, labels.classes)


def counted_shares(ledger: Ledger, classes: Sequence[str]) -> ClassShares:
    """The shares that follow from what was counted; owners that were not counted have no row.

    Raises:
        LedgerError: If a count was recorded and its outcome was lost.
    """
    counts = ledger.history.counts
    if counts is None:
        raise LedgerError(
            "the count of classes is in the ledger and its outcome is not, because the process was killed between the "
            "two; a second count would cost the budgets again, so train anew",
            record=None,
            fault="lost",
        )
    if counts.shape[1] != len(classes):
        raise _validate.fail("classes", tuple(classes), f"{counts.shape[1]} classes were counted; give the same")
    count = ledger.history.count
    counted = [] if count is None else np.flatnonzero(count.sampling_rates[: len(counts)] > 0).tolist()
    return ClassShares.counted([ledger.table.names[row] for row in counted], classes, counts[counted])


def take_counts(ledger: Ledger, plan: Plan, counts: FloatArray) -> None:
    """Record in a process's own ledger in memory what the first process has counted; nothing is released."""
    if ledger.history.count is None and plan.count is not None:
        ledger.record_count(plan.count, sensitivity=plan.count.clipping_thresholds)
        ledger.mark_counts(counts)


def _histograms(owners: Owners, labels: Labels, terms: Terms, units: Units | None) -> FloatArray:
    """A row per owner; zero for owners that are not counted."""
    if units is not None:
        shares = units.shares_of(labels.numbers, len(labels.classes), owners, _PARTS) / _PARTS
        return shares * terms.sampling_rates[:, None]
    shape = len(owners.table), len(labels.classes)
    cells = owners.assignment.astype(np.int64) * shape[1] + labels.numbers
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    histograms: FloatArray = counts * terms.sampling_rates[:, None]
    return histograms
