"""Verdicts: what the numbers mean, in one plain sentence, and the answers to what is asked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inosgd.analysis.answers import (
    BUDGETS,
    QUALITY,
    Answer,
    about_low,
    about_next,
    about_quality,
    useless,
)
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.intervals import Interval, score_interval
from inosgd.analysis.score import Score
from inosgd.analysis.suggestions import COMPARED
from inosgd.analysis.summary import MeanSd, mean_sd
from inosgd.compare import views
from inosgd.compare.results import Result
from inosgd.report.material import Material, MethodRow

CERTAIN = 0.05
"""A difference with a smaller p-value is told as one."""


def with_verdict(material: Material) -> Material:
    """The material with a verdict, and for a comparison answers, composed from its numbers."""
    told = replace(material, answers=_compared(material)) if material.kind == "compare" else material
    return replace(told, verdict=verdict_of(material))


def verdict_of(material: Material) -> str:
    """What the main rows came to; a single training is described, several are compared."""
    evaluated = material.evaluated_main
    if not evaluated:
        return f"Nothing was measured on held-out examples; {_kept(material)}."
    if len(evaluated) == 1:
        return _single(material)
    return f"{_leading(material)}. {_sentence(_kept(material))}{_against_baseline(material)}"


def _leading(material: Material) -> str:
    """Which row is ahead for its worst owner and overall, or which are tied."""
    evaluated, score = material.evaluated_main, material.score
    worst, overall = leaders(evaluated, "worst"), leaders(evaluated, "overall")
    if len(worst) == len(overall) == len(evaluated):
        return f"No method is ahead of the others in {score.name} beyond chance, overall or for its worst owner"
    if worst == overall and len(worst) == 1:
        (best,) = worst
        shown = [score.shown(mean_of(evaluated[best], measure).mean) for measure in ("worst", "overall")]
        return f"{best} has the highest {score.name}, for its worst owner ({shown[0]}) and overall ({shown[1]})"
    return f"{_ahead(material, worst, 'worst')}. {_ahead(material, overall, 'overall')}"


def _ahead(material: Material, tied: Sequence[str], measure: str) -> str:
    evaluated, score = material.evaluated_main, material.score
    what = f"{score.name} of the worst owner" if measure == "worst" else f"overall {score.name}"
    if len(tied) == len(evaluated):
        return f"In {what} no method is ahead beyond chance"
    shown = [f"{label} ({score.shown(mean_of(evaluated[label], measure).mean)})" for label in tied]
    if len(tied) == 1:
        return f"{shown[0]} has the highest {what}"
    return f"{', '.join(shown[:-1])} and {shown[-1]} are tied for the highest {what}"


def leaders(rows: views.Rows, measure: str) -> list[str]:
    """The row with the highest mean of a measure, and those that are not below it beyond chance; the highest first.

    With at least three paired seeds, by the p-value of their differences (0.05). With fewer, by whether the 95 %
    intervals from held-out counts overlap; where there are none, nothing tells the rows apart, and all are tied.
    """
    means = {label: mean_of(results, measure).mean for label, results in rows.items()}
    ranked = sorted(means, key=lambda label: -means[label])
    return [label for label in ranked if label == ranked[0] or _tied(rows[ranked[0]], rows[label], measure)]


def _tied(best: Sequence[Result], other: Sequence[Result], measure: str) -> bool:
    difference = views.paired(best, other, measure)
    if difference is not None and difference.p is not None:
        return not difference.p < CERTAIN
    ours, theirs = (held_out_interval(results[0].final, measure) for results in (best, other))
    return ours is None or theirs is None or theirs.high >= ours.low


def held_out_interval(final: Evaluation, measure: str) -> Interval | None:
    """The 95 % interval of ``overall`` or ``worst`` by the number of held-out examples; None where none is known."""
    worst = final.worst_owner
    if measure == "worst" and worst is not None:
        return score_interval(final.owners[worst], final.scored_by)
    return score_interval(final, final.scored_by)


def fairest(rows: Sequence[MethodRow]) -> MethodRow:
    """The row whose worst owner has the highest score."""
    return max(rows, key=lambda row: mean_of(row.results, "worst").mean)


def mean_of(results: Sequence[Result], measure: str) -> MeanSd:
    """A measure of the last evaluation over seeds, such as ``overall`` or ``worst``."""
    return mean_sd([getattr(result.final, measure) for result in results])


def worst_owner(results: Sequence[Result]) -> str:
    """Whose score is lowest on the mean over seeds; empty if no owner has a score in all of them."""
    names = views.judged_owners(results)
    means = {name: mean_sd([result.final.owners[name].score for result in results]).mean for name in names}
    return min(names, key=lambda name: means[name], default="")


def _compared(material: Material) -> tuple[Answer, ...]:
    """The answers about the row whose worst owner has the highest score, by its first seed."""
    evaluated = [row for row in material.main_rows if row.results]
    if not evaluated:
        return ()
    row = fairest(evaluated)
    final = row.results[0].final
    found = row.results[0].findings
    kept = Answer(BUDGETS, _sentence(_kept(material)), good=not _exceeded(material))
    quality = about_quality(final, found)
    told = f"{row.label}{', first seed' if len(row.results) > 1 else ''}: {quality.text}"
    low = about_low(final, found, [name for name, _ in material.classes])
    return (
        kept,
        Answer(QUALITY, told, quality.good),
        replace(low, text=f"By {row.label}: {low.text}"),
        about_next(material.suggestions, COMPARED, good=quality.good),
    )


def _single(material: Material) -> str:
    row = next(row for row in material.main_rows if row.results)
    bad = useless(material.findings)
    if bad is not None:
        return f"{bad.text} {_sentence(_kept(material))}"
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
    if not found or found["overall"]["p"] is None:  # too few seeds to say anything
        return ""
    score = material.score
    words = {"overall": f"overall {score.name}", "worst": "that of the worst owner"}
    parts = [f"{what} by {_change(score, found[name])}" for name, what in words.items()]
    return f" Against {views.BASELINE} at the same budgets, ino-sgd changes {' and '.join(parts)}."


def _change(score: Score, difference: dict[str, float | None]) -> str:
    mean, p = difference["mean"] or 0.0, difference["p"]
    unsure = "" if p is None or p < CERTAIN else " (within chance)"
    return f"{score.change(mean)}{unsure}"


def _exceeded(material: Material) -> bool:
    budgets = {owner.name: owner.epsilon for owner in material.owners}
    return any(_exceeds(row, budgets) for row in material.main_rows)


def _kept(material: Material) -> str:
    if _exceeded(material):
        return "A BUDGET WAS EXCEEDED, see what was spent"
    return "every owner stayed within its budget" if len(material.owners) > 1 else "the owner's budget was kept"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _exceeds(row: MethodRow, budgets: dict[str, float]) -> bool:
    if any(not spent <= budgets[name] for name, spent in row.spent.items() if name in budgets):
        return True
    return any(not result.terms.spent_share <= 1 for result in row.results)
