"""Findings: what to know about a training before anything else.

Each is computed by a rule that is written down with its thresholds, from evaluations on held-out examples, the learning
curve and the plan. A rule is silent where the examples or the points of a curve are too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import stats

from inosgd._arrays import FloatArray, IntArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.guessing import Guessing, class_guessing
from inosgd.analysis.score import percent
from inosgd.plan import Plan, Terms

ONE_ANSWER = 0.98
"""A model that predicts one class for at least this share of examples gives one answer."""

OTHERS, FEWEST_OTHERS = 0.05, 10
"""Unless the other classes have less than this share of the examples, or are fewer than so many examples."""

PASSED_OVER = 0.2
"""And unless the others are predicted more than this share as often as they occur."""

NO_SPREAD = 0.05
"""Predictions of a number that vary less than this, relative to the targets, are one answer."""

END_OF_CURVE = 0.4
"""The share of a curve's points that says whether a training is still improving."""

FEWEST_POINTS = 4
"""At the end of a curve; a line through fewer leaves nothing to judge it by."""

WORTH_MORE_STEPS = 0.02
"""What the score must have gained over the end of the curve: 2 points of accuracy."""

CERTAIN = 0.01
"""The one-sided level at which slopes of score and loss must both differ from 0."""

DROWNED = 1.0
"""Noise drowns a sum from this ratio of their norms on."""

THE_MODEL = "the model"

LISTED = 10
"""So many classes are named in a text; the evidence has all."""


@dataclass(frozen=True)
class Finding:
    """One thing to know.

    Attributes:
        kind: ``drowned``, ``one-answer``, ``at-chance``, ``still-improving`` or ``repeated-ids``.
        about: "the model", "classes", or "owner ..." with its name.
        text: A sentence or two for people.
        evidence: The numbers that the rule went by.
    """

    kind: str
    about: str
    text: str
    evidence: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": self.kind, "about": self.about, "text": self.text, "evidence": dict(self.evidence)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(fields["kind"], fields["about"], fields["text"], dict(fields["evidence"]))


def findings(
    curve: Sequence[Evaluation], classes: Sequence[str] = (), plan: Plan | None = None, parameters: int | None = None
) -> tuple[Finding, ...]:
    """All findings about a training, the gravest first; what follows from another finding is left out.

    Args:
        curve: Evaluations in the order of their steps; the last one with its measures (``measure=True``).
        classes: The names of the classes.
        plan: What was trained by; without it, and without ``parameters``, nothing is said about noise.
        parameters: How many numbers are trained.
    """
    if not curve:
        return ()
    noise = () if plan is None or parameters is None else tuple(drowned(curve, plan, parameters))
    same = tuple(one_answer(curve[-1], classes))
    chance = tuple(at_chance(curve[-1], classes))
    if noise or same:
        chance = tuple(each for each in chance if each.about.startswith("owner ") and not noise)
    return (*noise, *same, *chance, *still_improving(curve))


def one_answer(final: Evaluation, classes: Sequence[str] = ()) -> Iterator[Finding]:
    """A model that says (nearly) the same of all examples.

    Rule for classes: one class is predicted for at least 98 % of held-out examples, although the others have at least
    5 % of them and at least 10 examples, and are predicted at most a fifth as often as they occur. Rule for numbers:
    the standard deviation of predictions is less than 5 % of that of the targets. Labels have no such rule: predicting
    none of several rare labels is often right.
    """
    spread = final.measures.get("prediction_spread")
    if spread is not None and spread < NO_SPREAD:
        text = (
            "The model predicts nearly the same value for all examples: its predictions vary "
            f"{percent(spread)} as much as the targets."
        )
        yield Finding("one-answer", THE_MODEL, text, {"prediction_spread": spread})
    if not final.predicted or not final.examples:
        return
    most = int(np.argmax(final.predicted))
    share, others = final.predicted[most] / final.examples, final.examples - final.members[most]
    passed_over = final.examples - final.predicted[most] <= PASSED_OVER * others
    if share >= ONE_ANSWER and passed_over and others >= max(OTHERS * final.examples, FEWEST_OTHERS):
        name, actual = _class_name(classes, most), final.members[most] / final.examples
        every = "every held-out example" if share == 1 else f"{percent(share)} of held-out examples"
        text = f"The model predicts class {name} for {every}, although only {percent(actual)} of them belong to it."
        yield Finding("one-answer", THE_MODEL, text, {"predicted_share": share, "actual_share": actual})


def at_chance(final: Evaluation, classes: Sequence[str] = ()) -> Iterator[Finding]:
    """The model as a whole, or else owners and classes, for which it is no better than guessing.

    Rule: `inosgd.analysis.guessing.Guessing.at_level`, which also says what guessing is and takes into account how few
    the examples are. The recall of a class is compared with the share of all examples that are predicted as it: a class
    is at chance if its own members are not predicted as it more often than others. All such classes are one finding.
    """
    if final.guessing is not None and final.guessing.at_level:
        yield _no_better(THE_MODEL, "The model", final.guessing, final.examples)
        return
    for name, quality in final.owners.items():
        if quality.guessing is not None and quality.guessing.at_level:
            yield _no_better(f"owner {name}", f"For owner {name} the model", quality.guessing, quality.examples)
    unrecognised = list(_classes_at_chance(final))
    if unrecognised:
        names = [_class_name(classes, number) for number in unrecognised]
        listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        several = len(names) > 1
        many = f"{len(names)} classes are not recognised" if several else "One class is not recognised"
        whose = "Their" if several else "Its"
        text = f"{many}: {listed}. {whose} examples are not predicted as such more often than those of other classes."
        recalls = {name: final.classes[number] or 0.0 for name, number in zip(names, unrecognised, strict=True)}
        yield Finding("at-chance", "classes", text, recalls)


def _classes_at_chance(final: Evaluation) -> Iterator[int]:
    by_class = zip(final.classes, final.members, final.predicted, strict=False)
    for number, (recall, size, predicted) in enumerate(by_class):
        found = None if recall is None else class_guessing(recall, size, predicted / final.examples)
        if found is not None and found.at_level:
            yield number


def still_improving(curve: Sequence[Evaluation]) -> Iterator[Finding]:
    """A training whose score still rose, and whose loss still fell, when its steps ended.

    Rule: lines by least squares through overall score and loss over the last 40 % of the curve's points, at least 4.
    The score must have gained at least 0.02 along its line, and both slopes must differ from 0 at the one-sided level
    0.01 (t-test, which noisy or flat curves do not pass). Curves of fewer than 8 points say nothing: their last 40 %
    reach into the steep beginning.
    """
    count = max(FEWEST_POINTS, math.ceil(END_OF_CURVE * len(curve)))
    if len(curve) < 2 * FEWEST_POINTS:
        return
    end = curve[-count:]
    steps = np.array([point.step for point in end], dtype=np.float64)
    gained, sure = _rise(steps, np.array([point.overall for point in end]))
    fallen, surely = _rise(steps, -np.array([point.loss for point in end]))
    if gained >= WORTH_MORE_STEPS and sure and fallen > 0 and surely:
        scoring, first, last = end[-1].scoring, int(steps[0]), int(steps[-1])
        text = (
            f"Training was still improving when it ended: {scoring.name} rose by {scoring.change(gained).lstrip('+')} "
            f"from step {first} to {last}. A plan with more steps may reach more at the same budgets."
        )
        yield Finding("still-improving", THE_MODEL, text, {"gained": gained, "from_step": first, "to_step": last})


def drowned(curve: Sequence[Evaluation], plan: Plan, parameters: int) -> Iterator[Finding]:
    """A training that learnt nothing because of its noise.

    Rule: in every phase of the plan the expected norm of the noise, noise_scale sqrt(parameters), is at least the
    largest norm that the sum of an expected batch can have, the sum over owners of q_n |D_n| C_n; and the model is no
    better than guessing on all held-out examples (`Guessing.at_level`), or, where the curve begins at step 0, its score
    did not rise and its loss did not fall. Noise alone is no alarm: it averages out over steps and coordinates, and
    large models learn under ratios far above 1.
    """
    ratio = min(noise_ratio(phase.terms, plan.table.sizes, parameters) for phase in plan.phases)
    if ratio < DROWNED or not _learnt_nothing(curve):
        return
    text = (
        f"The noise drowned what there was to learn: in each step its norm is {ratio:.1f} times the largest that the "
        "sum of an expected batch can have, and the model did not improve. A larger expected batch, larger budgets, "
        "fewer steps or a smaller model make the ratio smaller."
    )
    yield Finding("drowned", THE_MODEL, text, {"noise_ratio": ratio, "parameters": parameters})


def noise_ratio(terms: Terms, sizes: IntArray, parameters: int) -> float:
    """noise_scale sqrt(parameters) / (sum over owners of q_n |D_n| C_n)."""
    largest = float(np.sum(terms.sampling_rates * sizes * terms.clipping_thresholds))
    return terms.noise_scale * math.sqrt(parameters) / largest if largest > 0 else math.inf


def shared_findings(by_seed: Sequence[Sequence[Finding]], label: str) -> tuple[Finding, ...]:
    """The findings that more than half of the seeds of a row have in common, in the words of the first of them."""
    counts: dict[tuple[str, str], list[Finding]] = {}
    for found in by_seed:
        for each in found:
            counts.setdefault((each.kind, each.about), []).append(each)
    shared = [found for found in counts.values() if 2 * len(found) > len(by_seed)]
    seeds = len(by_seed)
    return tuple(
        Finding(
            found[0].kind,
            found[0].about,
            f"{label}{f' ({len(found)} of {seeds} seeds)' if seeds > 1 else ''}: {found[0].text}",
            found[0].evidence,
        )
        for found in shared
    )


def _learnt_nothing(curve: Sequence[Evaluation]) -> bool:
    first, final = curve[0], curve[-1]
    if final.guessing is not None and final.guessing.at_level:
        return True
    return first.step == 0 and len(curve) > 1 and final.overall <= first.overall and not final.loss < first.loss


def _no_better(about: str, subject: str, found: Guessing, examples: int) -> Finding:
    values = (found.reached, found.level)
    reached, level = (percent(value) if "accuracy" in found.measure else f"{value:.2f}" for value in values)
    text = (
        f"{subject} is no better than guessing: {found.measure} {reached} on {examples} held-out examples, where "
        f"guessing gives {level}."
    )
    return Finding("at-chance", about, text, _numbers(found, examples))


def _numbers(found: Guessing, examples: int) -> dict[str, float]:
    return {"reached": found.reached, "guessing": found.level, "standard_error": found.error, "examples": examples}


def _rise(steps: FloatArray, values: FloatArray) -> tuple[float, bool]:
    """What values gained along their line, and whether it rises for certain."""
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return 0.0, False
    line = stats.linregress(steps, values, alternative="greater")
    return float(line.slope * np.ptp(steps)), bool(line.pvalue < CERTAIN)


def _class_name(classes: Sequence[str], number: int) -> str:
    return str(classes[number]) if number < len(classes) else str(number)
