"""Verdicts: one plain sentence on what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.score import Score
from inosgd.analysis.summary import MeanSd, mean_sd
from inosgd.compare import views
from inosgd.compare.results import Result
from inosgd.report.material import Material, MethodRow

CERTAIN = 0.05
"""A difference with a smaller p-value is told as one."""


def with_verdict(material: Material) -> Material:
    """The material with a verdict composed from its numbers."""
    return replace(material, verdict=verdict_of(material))


def verdict_of(material: Material) -> str:
    """What the main rows came to; a single training is described, several are compared."""
    evaluated = material.evaluated_main
    if not evaluated:
        return f"Nothing was measured on held-out examples; {_kept(material)}."
    if len(evaluated) == 1:
        return _single(material)
    score = material.score
    overall = {label: mean_of(results, "overall") for label, results in evaluated.items()}
    worst = {label: mean_of(results, "worst") for label, results in evaluated.items()}
    fairest, best = max(worst, key=lambda each: worst[each].mean), max(overall, key=lambda each: overall[each].mean)
    text = (
        f"{fairest} has the highest {score.name} for its worst owner ({score.shown(worst[fairest].mean)})"
        f"{' and is also' if best == fairest else f', while {best} is'} best overall "
        f"({score.shown(overall[best].mean)})"
    )
    return f"{text}{_against_baseline(material)}; {_kept(material)}."


def mean_of(results: Sequence[Result], measure: str) -> MeanSd:
    """A measure of the last evaluation over seeds, such as ``overall`` or ``worst``."""
    return mean_sd([getattr(result.final, measure) for result in results])


def worst_owner(results: Sequence[Result]) -> str:
    """Whose score is lowest on the mean over seeds; empty if no owner has a score in all of them."""
    names = views.judged_owners(results)
    means = {name: mean_sd([result.final.owners[name].score for result in results]).mean for name in names}
    return min(names, key=lambda name: means[name], default="")


def _single(material: Material) -> str:
    row = next(row for row in material.main_rows if row.results)
    final: Evaluation = row.results[0].final
    score = final.scoring
    worst = (
        f", and {score.shown(final.worst)} for the worst owner ({final.worst_owner})" if len(final.owners) > 1 else ""
    )
    return (
        f"After {final.step} steps {row.label} has {score.name} {score.shown(final.overall)} on held-out examples"
        f"{worst}; {_kept(material)}."
    )


def _against_baseline(material: Material) -> str:
    found = views.differences(material.evaluated_main).get(f"ino-sgd - {views.BASELINE}", {}).get("end")
    if not found:
        return ""
    score = material.score
    words = {"overall": f"overall {score.name}", "worst": "that of the worst owner"}
    parts = [f"{what} by {_change(score, found[name])}" for name, what in words.items()]
    return f"; against {views.BASELINE} at the same budgets, ino-sgd changes {' and '.join(parts)}"


def _change(score: Score, difference: dict[str, float | None]) -> str:
    mean, p = difference["mean"] or 0.0, difference["p"]
    unsure = "" if p is None or p < CERTAIN else " (within chance)"
    return f"{score.change(mean)}{unsure}"


def _kept(material: Material) -> str:
    budgets = {owner.name: owner.epsilon for owner in material.owners}
    exceeded = any(_exceeds(row, budgets) for row in material.main_rows)
    if exceeded:
        return "A BUDGET WAS EXCEEDED, see what was spent"
    return "every owner stayed within its budget" if len(budgets) > 1 else "the owner's budget was kept"


def _exceeds(row: MethodRow, budgets: dict[str, float]) -> bool:
    if any(not spent <= budgets[name] for name, spent in row.spent.items() if name in budgets):
        return True
    return any(not result.terms.spent_share <= 1 for result in row.results)
