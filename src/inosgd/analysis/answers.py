"""Answers: what is asked first about a training, in this order.

1. Are all owners within budget?
2. Is the model any good: against guessing, predicting the majority, and a training without privacy if there is one?
3. Who has low accuracy, owners and classes?
4. What to try next?

Terminal, JSON, card and page show the same answers. A model that is no better than guessing comes before all else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from inosgd._arrays import FloatArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import THE_MODEL, Finding
from inosgd.analysis.intervals import FEW, score_interval
from inosgd.analysis.suggestions import AGAIN, Suggestion, is_below, low_classes, majority
from inosgd.owners import OwnerTable
from inosgd.shown import rounded_up

BUDGETS, QUALITY, LOW, NEXT = "Within budget?", "Any good?", "Low for whom?", "What next?"

USELESS = ("one-answer", "drowned", "at-chance")
"""Findings about the whole model that mean that it is of no use; what is seen most easily first."""

UNEXPLAINED = (
    "No rule tells why the model is of no use. A training with --yardstick-not-private shows whether its inputs can "
    "tell more without privacy; if they can, larger budgets, more examples or larger batches are what is needed."
)
"""Said of such a model if no suggestion is."""

NAMED = 3
"""So many owners or classes are named in an answer."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        question: One of `BUDGETS`, `QUALITY`, `LOW` and `NEXT`.
        text: A few sentences for people.
        good: Whether all is well; None where that is not the question, or cannot be told.
    """

    question: str
    text: str
    good: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**fields)


def answers(
    table: OwnerTable,
    spent: FloatArray,
    final: Evaluation | None,
    findings: Sequence[Finding],
    suggested: Sequence[Suggestion],
    *,
    classes: Sequence[str] = (),
    yardstick: float | None = None,
    named: bool = True,
) -> tuple[Answer, ...]:
    """All answers about a training; a model of no use first, else budgets, unless one was exceeded.

    Args:
        table: Owners and budgets.
        spent: The epsilon of each.
        final: The last evaluation; None without held-out examples.
        findings: About this training.
        suggested: What to try.
        classes: Their names.
        yardstick: The score of a training without privacy; not private.
        named: Whether owners may be named.
    """
    budgets, quality = about_budgets(table, spent, named=named), about_quality(final, findings, yardstick)
    first = (quality, budgets) if quality.good is False and budgets.good else (budgets, quality)
    low = () if final is None or quality.good is False else (about_low(final, findings, classes, named=named),)
    return (*first, *low, about_next(suggested, good=quality.good))


def untold(findings: Sequence[Finding], suggested: Sequence[Suggestion]) -> tuple[Finding, ...]:
    """The findings that are not part of an answer: those about owners and classes, and about the data."""
    improving = [each for each in findings if each.kind == "still-improving"]
    told = [useless(findings), *(improving if any(each.setting == "steps" for each in suggested) else [])]
    return tuple(each for each in findings if each not in told)


def useless(findings: Sequence[Finding]) -> Finding | None:
    """Why the model is of no use; None if no finding says so."""
    found = [each for each in findings if each.kind in USELESS and each.about == THE_MODEL]
    return min(found, key=lambda each: USELESS.index(each.kind), default=None)


def about_budgets(table: OwnerTable, spent: FloatArray, *, named: bool = True) -> Answer:
    """Whether every owner is within its budget, and who has used the largest share."""
    over = [name for name, used, limit in zip(table.names, spent, table.epsilons, strict=True) if not used <= limit]
    if over:
        who = f": {_listed(over)}" if named else ""
        return Answer(BUDGETS, f"NO. {len(over)} of {len(table)} owners exceeded their budgets{who}.", good=False)
    share = float((spent / table.epsilons).max())
    used = f"{rounded_up(100 * share, 3, within=100.0)} %"
    whose = "The owner" if len(table) == 1 else "The largest share of a budget that any owner"
    all_of = "Yes" if len(table) == 1 else f"Yes, all {len(table):,} owners"
    return Answer(BUDGETS, f"{all_of}. {whose} has spent {'is ' if len(table) > 1 else ''}{used}.", good=True)


def about_quality(final: Evaluation | None, findings: Sequence[Finding], yardstick: float | None = None) -> Answer:
    """The score with its interval, what predicting the majority gives, and the yardstick."""
    if final is None:
        return Answer(QUALITY, "Not known: no examples were held out. In a study file, [data.held_out] holds some out.")
    bad = useless(findings)
    plain, shown = majority(final), final.scoring.shown
    parts = [f"{final.scored_by[0].upper()}{final.scored_by[1:]} {with_interval(final)}"]
    if plain is not None:
        parts.append(f"{_CONSTANT.get(final.scored_by, 'predicting the largest class')} gives {shown(plain)}")
    if yardstick is not None:
        parts.append(f"the same model without privacy {shown(yardstick)} (not private)")
    told = "; ".join(parts) + "."
    if bad is not None:
        return Answer(QUALITY, f"No. {bad.text} {told}", good=False)
    better = plain is None or final.overall > plain
    unsure = "" if better else " It is no better than that constant answer."
    return Answer(QUALITY, f"{told}{unsure}", good=better if plain is not None else None)


_CONSTANT = {"R²": "predicting the mean", "balanced accuracy": "predicting one class"}


def about_low(
    final: Evaluation, findings: Sequence[Finding], classes: Sequence[str] = (), *, named: bool = True
) -> Answer:
    """The owners and classes whose score is low, beyond what so few held-out examples leave to chance.

    Rule for owners: at least 0.05 below the score of all held-out examples, with a 95 % interval that lies below it;
    and those for whom a finding says that the model guesses. The rule for classes is that of `low_classes`.
    """
    guessed = {each.about.removeprefix("owner ") for each in findings if each.about.startswith("owner ")}
    owners = [name for name in final.owners if name in guessed or _is_low(final, name)]
    owners.sort(key=lambda name: final.owners[name].score)
    found = list(low_classes(final))
    few = [name for name, each in final.owners.items() if each.examples < FEW]
    parts = []
    if owners:
        shown = [_owner(final, name) for name in owners] if named else []
        parts.append(_counted(len(owners), "owner") + (f": {_listed(shown)}" if shown else ""))
    if found:
        parts.append(_counted(len(found), "class") + f": {_listed([_class(final, classes, each) for each in found])}")
    text = "; ".join(parts) if parts else "No owner and no class is clearly below the others"
    if few:
        whose = f" ({_listed(few)})" if named else ""
        text += f". Too few held-out examples to tell for {_counted(len(few), 'owner')}{whose}, below {FEW}"
    return Answer(LOW, f"{text}.", good=not parts)


def about_next(suggested: Sequence[Suggestion], again: str = AGAIN, *, good: bool | None = None) -> Answer:
    """The suggestions, and what trying ``again`` costs; ``good`` is whether the model is."""
    if not suggested and good is False:
        return Answer(NEXT, UNEXPLAINED)
    if not suggested:
        return Answer(NEXT, "No rule has a suggestion from these results.")
    listed = " ".join(f"({number}) {each}" for number, each in enumerate(suggested, 1))
    return Answer(NEXT, f"{listed if len(suggested) > 1 else suggested[0]} {again}")


def with_interval(final: Evaluation) -> str:
    """A score with its 95 % interval from held-out counts.

    Such as ``83.1 % (78.0 to 87.3 by 240 held-out examples)``.
    """
    within = score_interval(final, final.scored_by)
    counted = f"{final.examples:,} held-out examples"
    if within is None:
        return f"{final.scoring.shown(final.overall)} on {counted}"
    return f"{final.scoring.shown(final.overall)} ({final.scoring.shown_range(*within)} by {counted})"


def _is_low(final: Evaluation, name: str) -> bool:
    quality = final.owners[name]
    return is_below(final, quality.score, score_interval(quality, final.scored_by))


def _owner(final: Evaluation, name: str) -> str:
    return f"{name} ({final.scoring.shown(final.owners[name].score)})"


def _class(final: Evaluation, classes: Sequence[str], number: int) -> str:
    name = classes[number] if number < len(classes) else number
    return f"{name} (recall {100 * (final.classes[number] or 0.0):.1f} %)"


def _counted(count: int, what: str) -> str:
    many = "classes" if what == "class" else f"{what}s"
    return f"{count} {what if count == 1 else many}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(map(str, names[:NAMED])) + (f" and {more} more" if more > 0 else "")
