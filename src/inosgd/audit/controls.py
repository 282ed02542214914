"""Controls: trainings with a known defect, claimed to be correct. An audit that does not catch them proves nothing.

Every control is caught by a canary audit with repeated trainings (`inosgd.audit.canary`); ``caught_by`` names the views
that were seen to do so, within 60 trainings of the breast-cancer study or 128 of the digits one. Membership inference
on real examples (LiRA) is weaker: it sees a defect only if it exposes ordinary examples more than the claim allows to
the most exposed one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import BoolArray, FloatArray, IntArray
from inosgd.audit.practice import Practice, Sampler
from inosgd.clipping import Clipping
from inosgd.errors import InvalidArgumentError
from inosgd.order import Candidates, Order
from inosgd.plan import Terms
from inosgd.randomness import RandomSource
from inosgd.sampling import PoissonSampler

_MARK = 1e-9
"""By how much, relatively, the threshold of an unclipped owner is raised to recognise its examples."""


@dataclass(frozen=True)
class Control:
    """A defect.

    Attributes:
        name: How it is asked for.
        description: What is wrong, in a sentence.
        caught_by: The views of the canary audit that were seen to catch it.
        spoil: From an honest practice to one with the defect.
    """

    name: str
    description: str
    caught_by: tuple[str, ...]
    spoil: Callable[[Practice], Practice]


def with_noise(practice: Practice, factor: float) -> Practice:
    """``factor`` times the noise that is accounted for."""
    terms = practice.terms
    return practice.with_terms(dataclasses.replace(terms, noise_scale=factor * terms.noise_scale))


@dataclass(frozen=True)
class ClippingAllBut:
    """Clips all but the examples whose threshold is exactly ``threshold``."""

    clipping: Clipping
    threshold: float

    def factors(self, grad_norms: FloatArray, thresholds: FloatArray) -> FloatArray:
        """1 for the examples that are left as they are."""
        return np.where(thresholds == self.threshold, 1.0, self.clipping.factors(grad_norms, thresholds))


def unclipped_owner(practice: Practice) -> Practice:
    """The strictest owner's gradients are not clipped."""
    owner, terms = _strictest(practice), practice.terms
    thresholds = terms.clipping_thresholds.copy()
    thresholds[owner] *= 1 + _MARK
    clipping = ClippingAllBut(practice.method.clipping, float(thresholds[owner]))
    marked = practice.with_terms(dataclasses.replace(terms, clipping_thresholds=thresholds))
    return dataclasses.replace(marked, method=dataclasses.replace(practice.method, clipping=clipping))


class RejectingSampler:
    """Batches are drawn again until every class of the data is in them.

    Classes are disjoint and drawn independently, so drawing anew only the missing ones has the same law as drawing
    whole batches until one will do.
    """

    def __init__(self, rates: FloatArray, assignment: IntArray, classes: IntArray) -> None:
        self._whole, self._classes = PoissonSampler(rates, assignment), classes
        self._members = {label: np.flatnonzero(classes == label) for label in np.unique(classes).tolist()}
        self._parts = {label: PoissonSampler(rates, assignment[rows]) for label, rows in self._members.items()}

    def draw(self, source: RandomSource) -> IntArray:
        """One batch in which no class is missing."""
        batch = self._whole.draw(source)
        present = set(self._classes[batch].tolist())
        missing = [self._draw_part(label, source) for label in self._members if label not in present]
        return np.sort(np.concatenate([batch, *missing]))

    def _draw_part(self, label: int, source: RandomSource) -> IntArray:
        rows = self._members[label]
        if len(rows) == 1:
            return rows
        drawn = self._parts[label].draw(source)
        while not len(drawn):
            drawn = self._parts[label].draw(source)
        return rows[drawn]


def rejecting(rates: FloatArray, assignment: IntArray, classes: IntArray) -> Sampler:
    """The maker of `RejectingSampler`."""
    return RejectingSampler(rates, assignment, classes)


@dataclass(frozen=True)
class UnstableOrder(Order):
    """Sorts by the first key alone with a sort that is not stable: equal losses come as the heap leaves them."""

    def ranking(self, candidates: Candidates, source: RandomSource) -> IntArray:
        """The positions of the batch; one more example may move all that are tied."""
        return np.argsort(self.keys(candidates, source)[0], kind="heapsort")


def unstable_order(practice: Practice) -> Practice:
    """Examples with equal losses are ordered by an unstable sort."""
    if practice.method.importance is None:
        raise InvalidArgumentError(
            f"control='unstable-order': {practice.method.name} weights no example by its rank; audit ino-sgd"
        )
    order = practice.method.order
    return dataclasses.replace(
        practice, method=dataclasses.replace(practice.method, order=UnstableOrder(f"unstable-{order.name}", order.keys))
    )


def rows_as_units(practice: Practice) -> Practice:
    """Rows are sampled and clipped one by one, whatever unit they are of."""
    return dataclasses.replace(practice.with_terms(practice.terms), by_row=True)


def another_owners_terms(practice: Practice) -> Practice:
    """The strictest owner is sampled and clipped by the terms of the most liberal one."""
    terms, table = practice.terms, practice.plan.table
    strict, liberal = _strictest(practice), int(np.argmax(table.epsilons))
    swapped = _copied_column(terms, liberal, strict)
    if swapped == terms:
        raise InvalidArgumentError(
            "control='anothers-terms': this plan treats all owners alike; choose an individual method and variant"
        )
    return practice.with_terms(swapped)


def _copied_column(terms: Terms, source: int, target: int) -> Terms:
    rates, thresholds = terms.sampling_rates.copy(), terms.clipping_thresholds.copy()
    rates[target], thresholds[target] = rates[source], thresholds[source]
    return dataclasses.replace(terms, sampling_rates=rates, clipping_thresholds=thresholds)


def _strictest(practice: Practice) -> int:
    """The row of the strictest owner that has examples."""
    table = practice.plan.table
    present: BoolArray = table.sizes > 0
    return int(np.argmin(np.where(present, table.privacy_ranks, len(table))))


_WHITE, _BLACK, _ONE_RUN, _ORDER = "canary white-box", "canary black-box", "canary one-run", "canary order"

CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        Control(
            "no-noise",
            "no noise is added",
            (_WHITE, _BLACK, _ONE_RUN, _ORDER),
            lambda practice: with_noise(practice, 0.0),
        ),
        Control("half-noise", "half the noise is added", (_WHITE,), lambda practice: with_noise(practice, 0.5)),
        Control(
            "unclipped-owner",
            "the strictest owner's gradients are not clipped",
            (_WHITE, _BLACK, _ONE_RUN, _ORDER),
            unclipped_owner,
        ),
        Control(
            "rejection",
            "batches without an example of every class are drawn again",
            (_WHITE, _BLACK, _ONE_RUN),
            lambda practice: dataclasses.replace(practice, sampler=rejecting),
        ),
        Control(
            "unstable-order", "examples with equal losses are ordered by an unstable sort", (_ORDER,), unstable_order
        ),
        Control(
            "anothers-terms",
            "the strictest owner is sampled and clipped by the terms of the most liberal one",
            (_WHITE, _ONE_RUN, _ORDER),
            another_owners_terms,
        ),
        Control(
            "rows-as-units",
            "rows are sampled and clipped one by one, and the claim is for units of several rows",
            (_WHITE, _BLACK),
            rows_as_units,
        ),
    )
}


def control_named(name: str) -> Control:
    """The control called ``name``."""
    _validate.one_of(CONTROLS, control=name)
    return CONTROLS[name]
