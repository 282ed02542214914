"""Suggestions: what to change next, by rules that are written down with their thresholds.

    setup = Setup.of_plan(plan, parameters, learning_rate=0.1)
    suggestions(curve, setup)

A rule goes by held-out examples, the plan and the learning curve: by what a report shows anyway. Where the curve or the
examples are too few, it is silent. What a change costs is said in two parts. `Suggestion.cost` is what the same budgets
then give: noise, time, unspent budget. `AGAIN` holds for all of them: another training spends again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import END_OF_CURVE, FEWEST_POINTS, one_answer, still_improving
from inosgd.analysis.intervals import Interval, score_interval, share_interval
from inosgd.analysis.score import percent
from inosgd.plan import Plan
from inosgd.planning.signals import signals

AGAIN = (
    "Another training on the same examples spends the budgets again, up to twice the ε in total. Trainings on one "
    "account (inosgd account) stay within its budgets together, and inosgd tune --private chooses within them."
)

COMPARED = (
    "Comparing again costs no budget, because nothing of a comparison is published. That settings are chosen by "
    "looking at private examples is not accounted for: inosgd tune --private is the way that is."
)

MOST = 3
"""So many are told, the surest first."""

DIVERGED, FALLEN = 1.2, 0.05
"""A loss this many times its lowest, with a score this far below its highest, is a training that diverged."""

UNSTEADY = 0.02
"""The standard deviation of the score around its line at the end of the curve that calls for an average."""

SMOOTH = 0.1
"""A loss falls smoothly if it strays from its line by less than this share of its fall; it is unsteady if it strays by
more than this share of that of equal probabilities."""

FLAT, FLAT_SINCE, FEWEST_FLAT = 0.005, 0.6, 10
"""A score that gained less than this over this last share of a curve of at least so many points has levelled off."""

FAR_BELOW = 0.05
"""How far an owner's score must be below that of all examples."""

WEAK, NOT_EQUAL = 0.5, 0.8
"""An owner with less of the largest signal per example is held back by its plan; by a loss that is not adjusted."""

UNSPENT = 0.5
"""A budget of which less than this share is spent is mostly unused."""

LARGEST_BATCH = 0.25
"""A batch that is expected to hold this share of all examples is large."""

LOOSE = 0.5
"""If 9 of 10 gradients are shorter than this share of their threshold, noise is scaled to a bound nothing reaches."""

MUCH_BETTER = 0.1
"""How far a training without privacy must be ahead for noise to be what holds a model back."""

TOO_SURE = 1.2
"""A cross-entropy this many times that of equal probabilities is that of a model that is sure of wrong classes."""

UNMOVED = 0.05
"""A cross-entropy this near to that of equal probabilities is that of a model that has hardly been moved."""

LOW_RECALL, FEWEST_MEMBERS = 0.5, 10
"""A class with at least so many members is low from this share of the mean recall of all classes down."""

NORMS = "norm_to_threshold"
"""The measure that `LOOSE` is about: the 90 % quantile of gradient norm over threshold on held-out examples."""


@dataclass(frozen=True)
class Suggestion:
    """One thing to try.

    Attributes:
        setting: ``learning_rate``, ``averaging``, ``steps``, ``variant``, ``expected_batch_size``,
            ``clipping_threshold``, ``adjustment``: keys of a study's training section; or ``shares`` or ``model``.
        text: What to try, for people.
        because: What on this page speaks for it.
        cost: What it costs at the same budgets.
        to: The new value, where there is one.
        evidence: The numbers that the rule went by.
        owner: Whom ``because`` names; None for no owner.
    """

    setting: str
    text: str
    because: str
    cost: str
    to: float | str | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    owner: str | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.because} {self.cost}"

    def unnamed(self) -> Self:
        """The same without the name of an owner, for a card that names none."""
        if self.owner is None:
            return self
        return replace(self, because=self.because.replace(_owned(self.owner), "An owner", 1), owner=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.__dict__, "evidence": dict(self.evidence)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**fields)


@dataclass(frozen=True)
class Setup:
    """How a training was done, as far as rules ask; all of it is public.

    Attributes:
        steps: Of the plan.
        variant: How it plans.
        batch: The expected batch size.
        examples: The units of all owners.
        parameters: How many numbers are trained.
        signals: Of each owner, s_n = q_n |D_n| C_n / sigma.
        sizes: The units of each owner.
        spent_shares: Which share of its budget each owner spends; empty if that is not known owner by owner.
        threshold: The mean clipping threshold.
        learning_rate: None if it is not known.
        averaged: Whether the model is an average of iterates.
        adjusted: How its loss is adjusted by class shares, in words; empty if it is not, None if that is not known.
    """

    steps: int
    variant: str
    batch: float
    examples: int
    parameters: int
    signals: Mapping[str, float]
    sizes: Mapping[str, int]
    spent_shares: Mapping[str, float]
    threshold: float
    learning_rate: float | None = None
    averaged: bool = False
    adjusted: str | None = None

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        parameters: int,
        *,
        learning_rate: float | None = None,
        averaged: bool = False,
        adjusted: str | None = None,
    ) -> Self:
        """The set-up of a training by ``plan``, by the terms of its first step."""
        table, terms = plan.table, plan.at(0)
        named = zip(table.names, signals(plan).tolist(), strict=True)
        return cls(
            steps=plan.steps,
            variant=plan.variant,
            batch=terms.expected_batch_size,
            examples=int(table.sizes.sum()),
            parameters=parameters,
            signals=dict(named),
            sizes=dict(zip(table.names, table.sizes.tolist(), strict=True)),
            spent_shares=dict(zip(table.names, (plan.spent / table.epsilons).tolist(), strict=True)),
            threshold=float(np.average(terms.clipping_thresholds, weights=np.maximum(table.sizes, 1))),
            learning_rate=learning_rate,
            averaged=averaged,
            adjusted=adjusted,
        )

    @property
    def noise_ratio(self) -> float:
        """The norm of a step's noise over the largest that the sum of an expected batch can have."""
        total = sum(self.signals.values())
        return math.sqrt(self.parameters) / total if total > 0 else math.inf


def suggestions(curve: Sequence[Evaluation], setup: Setup, classes: Sequence[str] = ()) -> tuple[Suggestion, ...]:
    """What to try next, the surest first; at most one for each setting, and `MOST` in all. ``classes`` are named."""
    if not curve:
        return ()
    broken = tuple(smaller_rate(curve, setup))
    if broken:  # nothing else that the curve shows is about the plan
        return broken
    found = (
        *too_sure(curve, setup),
        *larger_batch(curve, setup),
        *smaller_model(curve, setup),
        *unmoved(curve, setup),
        *classes_alike(curve, setup, classes),
        *other_plan(curve, setup),
        *class_shares(curve, setup),
        *larger_rate(curve, setup),
        *more_steps(curve, setup),
        *tighter_threshold(curve, setup),
        *steadier(curve, setup),
        *fewer_steps(curve, setup),
    )
    return _surest(found)


def with_yardstick(
    known: Sequence[Suggestion], final: Evaluation, yardstick: float, setup: Setup
) -> tuple[Suggestion, ...]:
    """The suggestions with what a training without privacy adds to them, first; not private."""
    return _surest((*beside_yardstick(final, yardstick, setup), *known))


def _surest(found: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    first = {each.setting: each for each in reversed(found)}
    return tuple(each for each in found if first[each.setting] is each)[:MOST]


def smaller_rate(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A training that diverged.

    Rule: the loss at the end is not finite; or it is more than 1.2 times the lowest of the curve, and the score at the
    end is at least 0.05 below the highest.
    """
    final, losses = curve[-1], [point.loss for point in curve if math.isfinite(point.loss)]
    best = max(curve, key=lambda point: point.overall)
    worse = bool(losses) and final.loss > DIVERGED * min(losses) and final.overall <= best.overall - FALLEN
    if math.isfinite(final.loss) and not worse:
        return
    shown = final.scoring.shown
    yield Suggestion(
        "learning_rate",
        f"Try a third of the learning rate{_from_to(setup.learning_rate, 1 / 3)}.",
        f"The training diverged: {final.scored_by} was {shown(best.overall)} after step {best.step} and is "
        f"{shown(final.overall)} at the end.",
        "Plan and noise stay the same.",
        _times(setup.learning_rate, 1 / 3),
        {"best": best.overall, "best_step": best.step, "end": final.overall},
    )


def larger_rate(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A training that still improves, and does so smoothly: its updates are small rather than noisy.

    Rule: `inosgd.analysis.findings.still_improving` speaks, and over the same end of the curve the loss strays from its
    line by less than a tenth of its fall.
    """
    if not any(still_improving(curve)):
        return
    end = _end(curve)
    fall, stray = _line([point.step for point in end], [-point.loss for point in end])
    if not stray < SMOOTH * fall:
        return
    yield Suggestion(
        "learning_rate",
        f"Try twice the learning rate{_from_to(setup.learning_rate, 2)}.",
        "The loss was still falling at the end, along a smooth line: it strayed by "
        f"{percent(stray / fall, 0)} of its fall since step {end[0].step}.",
        "Plan and noise stay the same.",
        _times(setup.learning_rate, 2),
        {"fall": fall, "strayed": stray},
    )


def too_sure(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """Updates that are too large for what they learn: the model is sure of wrong classes.

    Rule: for classes, the loss at the end is more than 1.2 times that of equal probabilities, log(classes), and strays
    by more than a tenth of that from the line through the last 40 % of a curve of at least 8 points. A loss that rises
    along a smooth line is no sign of large updates: clipping makes models surer of frequent classes.
    """
    final, equal = curve[-1], _equal_loss(curve[-1])
    if len(curve) < 2 * FEWEST_POINTS or not 0 < TOO_SURE * equal < final.loss:
        return
    end = _end(curve)
    _, stray = _line([point.step for point in end], [point.loss for point in end])
    if not stray > SMOOTH * equal:
        return
    yield Suggestion(
        "learning_rate",
        f"Try a third of the learning rate{_from_to(setup.learning_rate, 1 / 3)}.",
        f"The loss on held-out examples is {final.loss:.2f}, and with equal probabilities for all classes it would be "
        f"{equal:.2f}: the model is sure of wrong classes. From one evaluation to the next it goes up and down by "
        f"{stray:.2f}.",
        "Plan and noise stay the same.",
        _times(setup.learning_rate, 1 / 3),
        {"loss": final.loss, "equal_probabilities": equal, "strayed": stray},
    )


def unmoved(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A model that learnt nothing because it was hardly moved.

    Rule: for classes, the model is no better than guessing, or gives one answer, and the loss at the end is within 5 %
    of that of equal probabilities, log(classes).
    """
    final, equal = curve[-1], _equal_loss(curve[-1])
    if not (equal > 0 and abs(final.loss - equal) <= UNMOVED * equal and _learnt_nothing(final)):
        return
    yield Suggestion(
        "learning_rate",
        f"Try four times the learning rate{_from_to(setup.learning_rate, 4)}.",
        f"The loss on held-out examples is {final.loss:.2f}, hardly other than the {equal:.2f} of equal probabilities "
        "for all classes.",
        "Plan and noise stay the same.",
        _times(setup.learning_rate, 4),
        {"loss": final.loss, "equal_probabilities": equal},
    )


def more_steps(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A training that still improves.

    Rule: `inosgd.analysis.findings.still_improving` speaks.
    """
    for found in still_improving(curve):
        yield Suggestion(
            "steps",
            f"Try {2 * setup.steps} steps in place of {setup.steps}.",
            f"Training was still improving when it ended: {_gained(curve[-1], found.evidence)}.",
            "The budgets stay the same; each step then has more noise, at most 1.42 times as much.",
            float(2 * setup.steps),
            {**found.evidence, "noise_factor_at_most": math.sqrt(2)},
        )


def fewer_steps(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A training that levelled off long before its end.

    Rule: the curve has at least 10 points, its score gained less than 0.005 along the line through its last 60 %, the
    score at its end is not below the highest by more than 0.02, and the model is better than guessing.
    """
    final = curve[-1]
    if len(curve) < FEWEST_FLAT or final.guessing is None or final.guessing.at_level:
        return
    end = curve[-math.ceil(FLAT_SINCE * len(curve)) :]
    gained, _ = _line([point.step for point in end], [point.overall for point in end])
    if not -FLAT < gained < FLAT or final.overall < max(point.overall for point in curve) - UNSTEADY:
        return
    fewer = max(1, setup.steps // 2)
    yield Suggestion(
        "steps",
        f"Try {fewer} steps in place of {setup.steps}.",
        f"The score has levelled off: since step {end[0].step} it changed by {final.scoring.change(gained)}.",
        "The budgets stay the same; each step then has less noise, down to 0.7 times as much.",
        float(fewer),
        {"gained": gained, "from_step": end[0].step, "noise_factor_at_least": math.sqrt(0.5)},
    )


def steadier(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A score that goes up and down from one evaluation to the next.

    Rule: over the last 40 % of a curve of at least 8 points the score strays from its line by a standard deviation of
    at least 0.02, and the model is not an average already.
    """
    if setup.averaged or len(curve) < 2 * FEWEST_POINTS:
        return
    end = _end(curve)
    _, stray = _line([point.step for point in end], [point.overall for point in end])
    if not stray >= UNSTEADY:
        return
    yield Suggestion(
        "averaging",
        'Try averaging = "exponential": the model is then an average of the iterates.',
        f"At the end the score goes up and down by {curve[-1].scoring.change(stray).lstrip('+')} between evaluations.",
        "An average is computed from what was released, and costs nothing.",
        "exponential",
        {"strayed": stray},
    )


def other_plan(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """An owner whose plan holds it back, or budgets that a uniform plan leaves unused.

    Rule for ``sample``, ``scale``, ``both`` and ``threshold``: an owner's score is at least 0.05 below that of all
    held-out examples, its 95 % interval lies below that, and its signal per example is less than half of the largest.
    Rule for ``uniform``: some owner spends less than half of its budget.
    """
    if setup.variant == "uniform":
        yield from _unspent(setup)
        return
    if setup.variant == "fair" or len(setup.signals) < 2:
        return
    for name, strength, because in _held_back(curve[-1], setup, WEAK):
        yield Suggestion(
            "variant",
            'Try variant = "fair", with the method ino-sgd-fair or auto.',
            because,
            "No owner spends more than its budget; owners with large budgets then spend less than now.",
            "fair",
            {"score": curve[-1].owners[name].score, "overall": curve[-1].overall, "signal_share": strength},
            name,
        )
        return


def _held_back(final: Evaluation, setup: Setup, below: float) -> Iterator[tuple[str, float, str]]:
    """Owners that are far below, the lowest first, with less than this share of the largest signal per example."""
    strengths, shown = _per_example(setup), final.scoring.shown
    largest = max(strengths.values(), default=0.0)
    for name in sorted(final.owners, key=lambda each: final.owners[each].score):
        strength = strengths.get(name, 0.0) / largest if largest > 0 else 1.0
        if strength < below and is_below(final, final.owners[name].score, _interval(final, name)):
            because = (
                f"{_owned(name)} has {final.scored_by} {shown(final.owners[name].score)}, against "
                f"{shown(final.overall)} over all, and an example of it has {percent(strength, 0)} of the largest "
                "signal."
            )
            yield name, strength, because


def _unspent(setup: Setup) -> Iterator[Suggestion]:
    least = min(setup.spent_shares, key=lambda name: setup.spent_shares[name], default=None)
    if least is not None and setup.spent_shares[least] < UNSPENT:
        yield Suggestion(
            "variant",
            'Try variant = "fair", with the method ino-sgd-fair or auto.',
            f"{_owned(least)} spends {percent(setup.spent_shares[least], 0)} of its budget: the plan treats all owners "
            "as the strictest.",
            "Owners with larger budgets then spend more of them, and none more than its budget.",
            "fair",
            {"spent_share": setup.spent_shares[least]},
            least,
        )


def class_shares(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """Owners with unequal signals, and a loss that is not adjusted to them.

    Rule: for classes and a plain loss, an owner's score is at least 0.05 below that of all held-out examples, its 95 %
    interval lies below that, and its signal per example is less than 0.8 of the largest.
    """
    if setup.adjusted != "" or not curve[-1].members:
        return
    for name, strength, because in _held_back(curve[-1], setup, NOT_EQUAL):
        yield Suggestion(
            "shares",
            "Declare class shares in [shares.owners] if they are public, or have them counted with shares.count = "
            'true; method = "auto" then adjusts the loss by them.',
            because,
            "Declared class shares cost no budget, counted ones a small part of each.",
            evidence={"score": curve[-1].owners[name].score, "signal_share": strength},
            owner=name,
        )
        return


def classes_alike(curve: Sequence[Evaluation], setup: Setup, classes: Sequence[str] = ()) -> Iterator[Suggestion]:
    """A rare class that is hardly recognised, by a loss in which frequent ones count for more.

    Rule: a class of fewer members than the mean is low (`low_classes`), and the loss is not adjusted towards all
    classes alike already.
    """
    final = curve[-1]
    if setup.adjusted is None or "target classes" in setup.adjusted:
        return
    rare = [number for number in low_classes(final) if final.members[number] * len(final.members) < final.examples]
    for number in sorted(rare, key=lambda each: final.classes[each] or 0.0):
        name = classes[number] if number < len(classes) else number
        recall, share = final.classes[number] or 0.0, final.members[number] / final.examples
        yield Suggestion(
            "adjustment",
            'Try target = "classes" in [training.adjustment], with class shares declared or counted.',
            f"Of class {name}, {percent(recall, 0)} are recognised; it has {percent(share, 0)} of held-out examples.",
            "Declared class shares cost nothing; rare classes gain, and overall accuracy may fall.",
            "classes",
            {"recall": recall, "share": share},
        )
        return


def larger_batch(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A model that learnt nothing under noise that a larger batch would make smaller.

    Rule: the model is no better than guessing, or gives one answer, the noise of a step is at least as large as the sum
    of an expected batch can be, and the batch is expected to hold less than a quarter of all examples.
    """
    if not _learnt_nothing(curve[-1]) or not setup.noise_ratio >= 1 or not setup.batch < LARGEST_BATCH * setup.examples:
        return
    larger = min(4 * setup.batch, LARGEST_BATCH * setup.examples)
    yield Suggestion(
        "expected_batch_size",
        f"Try an expected batch of {larger:.4g} in place of {setup.batch:.4g}.",
        f"The noise of a step is {setup.noise_ratio:.1f} times as large as the sum of an expected batch can be.",
        "The budgets stay the same; noise grows less than the batch, and a step takes about "
        f"{larger / setup.batch:.2g} times as long.",
        larger,
        {"noise_ratio": setup.noise_ratio, "batch": setup.batch},
    )


def smaller_model(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A model with more parameters than there are examples, which learnt nothing.

    Rule: the model is no better than guessing, or gives one answer, the noise of a step is at least as large as the sum
    of an expected batch can be, and there are more parameters than examples.
    """
    if not _learnt_nothing(curve[-1]) or not setup.noise_ratio >= 1 or setup.parameters <= setup.examples:
        return
    yield Suggestion(
        "model",
        "Try a smaller model, such as a linear one.",
        f"{setup.parameters:,} parameters are trained on {setup.examples:,} examples, and the noise of a step is "
        f"{setup.noise_ratio:.1f} times as large as the sum of an expected batch can be.",
        "The budgets stay the same; the norm of the noise falls with the square root of the number of parameters.",
        evidence={"noise_ratio": setup.noise_ratio, "parameters": setup.parameters},
    )


def tighter_threshold(curve: Sequence[Evaluation], setup: Setup) -> Iterator[Suggestion]:
    """A threshold that gradients do not reach, while noise is scaled to it.

    Rule: on held-out examples, 9 of 10 gradients of the trained model are shorter than half of their threshold.
    """
    reached = curve[-1].measures.get(NORMS)
    if reached is None or not 0 < reached < LOOSE:
        return
    tighter = reached * setup.threshold
    yield Suggestion(
        "clipping_threshold",
        f"Try a clipping threshold of {tighter:.2g} in place of {setup.threshold:.4g}.",
        f"Of the gradients of held-out examples, 9 of 10 are shorter than {percent(reached, 0)} of their threshold.",
        f"The budgets stay the same; the noise is then {reached:.2g} times what it is.",
        float(f"{tighter:.2g}"),
        {NORMS: reached, "noise_factor": reached},
    )


def beside_yardstick(final: Evaluation, yardstick: float, setup: Setup) -> Iterator[Suggestion]:
    """What a training without privacy says about where to look; it is not private, and neither is this.

    Rule: if the yardstick is better than predicting the majority by less than 0.05, inputs or model are what to change.
    If it is ahead of the private model by at least 0.1, and a batch holds less than a quarter of all examples, it is
    the noise.
    """
    plain, shown = majority(final), final.scoring.shown
    if plain is not None and yardstick < plain + FAR_BELOW:
        yield Suggestion(
            "model",
            "Try other inputs or another model before more budget.",
            f"Without privacy the same model has {final.scored_by} {shown(yardstick)}, and predicting the majority "
            f"{shown(plain)}.",
            "It costs no budget to design a model on public data.",
            evidence={"yardstick": yardstick, "majority": plain},
        )
    elif yardstick >= final.overall + MUCH_BETTER and setup.batch < LARGEST_BATCH * setup.examples:
        larger = min(4 * setup.batch, LARGEST_BATCH * setup.examples)
        yield Suggestion(
            "expected_batch_size",
            f"Try an expected batch of {larger:.4g} in place of {setup.batch:.4g}.",
            f"Without privacy the same model has {final.scored_by} {shown(yardstick)}, so that noise and clipping are "
            "what holds it back.",
            "The budgets stay the same; noise grows less than the batch, and a step takes longer.",
            larger,
            {"yardstick": yardstick, "reached": final.overall},
        )


def majority(final: Evaluation) -> float | None:
    """The score of the best constant answer: the largest class, or the mean of the targets; None for labels."""
    if final.scored_by == "R²":
        return 0.0
    if not final.members or not final.examples:
        return None
    present = sum(size > 0 for size in final.members)
    return max(final.members) / final.examples if final.scored_by == "accuracy" else 1 / present


def is_below(final: Evaluation, score: float, within: Interval | None) -> bool:
    """Whether a score is at least 0.05 below that of all held-out examples, and its interval lies below that."""
    return score <= final.overall - FAR_BELOW and within is not None and within.high < final.overall


def low_classes(final: Evaluation) -> Iterator[int]:
    """The numbers of classes whose recall is low, beyond what so few held-out examples leave to chance.

    Rule: at most half of the mean recall, with a 95 % interval below that mean, on at least 10 members.
    """
    known = [each for each in final.classes if each is not None]
    mean = sum(known) / len(known) if known else 0.0
    for number, (recall, size) in enumerate(zip(final.classes, final.members, strict=False)):
        if recall is None or size < FEWEST_MEMBERS or recall > LOW_RECALL * mean:
            continue
        if share_interval(recall, size).high < mean:
            yield number


def _interval(final: Evaluation, name: str) -> Interval | None:
    return score_interval(final.owners[name], final.scored_by)


def _per_example(setup: Setup) -> dict[str, float]:
    return {name: value / setup.sizes[name] for name, value in setup.signals.items() if setup.sizes.get(name)}


def _learnt_nothing(final: Evaluation) -> bool:
    """Whether the model is no better than guessing, or gives one answer."""
    return (final.guessing is not None and final.guessing.at_level) or any(one_answer(final))


def _equal_loss(final: Evaluation) -> float:
    """The cross-entropy of equal probabilities for all classes; 0 without classes."""
    return math.log(len(final.members)) if final.members else 0.0


def _end(curve: Sequence[Evaluation]) -> Sequence[Evaluation]:
    return curve[-max(FEWEST_POINTS, math.ceil(END_OF_CURVE * len(curve))) :]


def _line(steps: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """What values gain along their line by least squares, and their standard deviation around it."""
    across: FloatArray = np.asarray(steps, dtype=np.float64)
    wanted: FloatArray = np.asarray(values, dtype=np.float64)
    if len(across) < 3 or not np.isfinite(wanted).all():
        return 0.0, 0.0
    slope, start = np.polyfit(across, wanted, 1)
    strayed = wanted - (slope * across + start)
    return float(slope * np.ptp(across)), float(np.sqrt(np.sum(strayed**2) / (len(across) - 2)))


def _owned(name: str) -> str:
    return f"Owner {name}"


def _gained(final: Evaluation, evidence: Mapping[str, float]) -> str:
    change = final.scoring.change(evidence["gained"]).lstrip("+")
    return f"{final.scored_by} rose by {change} from step {evidence['from_step']} to {evidence['to_step']}"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else float(f"{value * factor:.2g}")


def _from_to(value: float | None, factor: float) -> str:
    return "" if value is None else f": {value * factor:.2g} in place of {value:g}"
