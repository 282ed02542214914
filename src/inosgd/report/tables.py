"""Tables: the numbers behind each chart, one row for each thing that is drawn.

A table is a mapping from column names to columns of equal length. Numbers have five digits: more than any chart or
tooltip shows. What was spent is rounded up, and shown as it stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from inosgd.analysis.differences import FEWEST_PAIRS
from inosgd.analysis.intervals import FEW, score_interval
from inosgd.analysis.summary import mean_sd
from inosgd.compare import views
from inosgd.compare.results import Result
from inosgd.compare.views import Rows
from inosgd.report.material import Material, OwnerFacts
from inosgd.shown import rounded_up

Table = dict[str, list[Any]]

MEASURES = {"overall": "overall", "worst": "worst owner", "worst_half": "worse-off half"}
QUANTITIES = {"rates": "sampling rate", "thresholds": "clipping threshold", "signals": "signal against noise"}


def all_tables(material: Material) -> dict[str, Table]:
    """Every table that has a row."""
    made = {name: _columns(maker(material)) for name, maker in TABLES.items()}
    return {name: table for name, table in made.items() if table}


def length(table: Table) -> int:
    """How many rows a table has."""
    return len(next(iter(table.values())))


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The table as a list of rows."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def who(owner: OwnerFacts, *, few: bool = False) -> str:
    """An owner with its budget, as charts call it; marked if its scores are of few held-out examples."""
    return f"{owner.name} (ε {owner.epsilon:g}){' *' if few else ''}"


def spread_name(material: Material) -> str:
    """What stands behind a score: the spread over seeds if they are enough, else the interval of held-out counts."""
    return "mean ± 1 sd of seeds" if material.seeds >= FEWEST_PAIRS else "confidence interval"


def has_few(material: Material) -> bool:
    """Whether some owner is judged by few held-out examples."""
    return any(_few(results, name) for results in material.evaluated.values() for name in results[0].final.owners)


def _few(results: Sequence[Result], name: str) -> bool:
    return any(0 < result.final.owners[name].examples < FEW for result in results if name in result.final.owners)


def _columns(rows: Iterable[Mapping[str, Any]]) -> Table:
    listed = list(rows)
    return {name: [row[name] for row in listed] for name in listed[0]} if listed else {}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _up(value: float, within: float, digits: int = 4) -> float | None:
    """No less than ``value``, with few digits; charts and tables show all of them."""
    return float(rounded_up(value, digits, within=within)) if math.isfinite(value) else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The mean over seeds and their standard deviation; 0 if they are fewer than three."""
    found = mean_sd(values)
    return {name: _short(found.mean), f"{name}_sd": _short(found.sd) if len(values) >= FEWEST_PAIRS else 0.0}


def _within(results: Sequence[Result], name: str) -> dict[str, float | None]:
    """The ends of what a score may be: one standard deviation over seeds, or the interval of held-out counts."""
    score = results[0].final.scoring
    spread = mean_sd([result.final.owners[name].score for result in results])
    ends: tuple[float, float] | None = score_interval(results[0].final.owners[name], score.name)
    if len(results) >= FEWEST_PAIRS:
        ends = (max(score.lowest, spread.mean - spread.sd), min(1.0, spread.mean + spread.sd))
    low, high = (None, None) if ends is None else ends
    return {"low": _short(low), "high": _short(high)}


def _spreads(name: str, by_seed: Sequence[Sequence[float]]) -> list[dict[str, float | None]]:
    """`_spread` for every point of a curve at once: reports of many owners have tens of thousands."""
    values = np.asarray(by_seed, dtype=np.float64)
    spread = values.std(axis=0, ddof=1) if len(values) >= FEWEST_PAIRS else np.zeros(values.shape[1])
    pairs = zip(values.mean(axis=0).tolist(), spread.tolist(), strict=True)
    return [{name: _short(mean), f"{name}_sd": _short(sd)} for mean, sd in pairs]


def _owned(owner: OwnerFacts, results: Sequence[Result] = ()) -> dict[str, Any]:
    return {"owner": owner.name, "who": who(owner, few=_few(results, owner.name)), "epsilon": owner.epsilon}


def _present(material: Material, results: Sequence[Result]) -> list[OwnerFacts]:
    """The owners whose kind of data is among the held-out examples."""
    judged = set(views.judged_owners(results))
    return [owner for owner in material.owners if owner.name in judged]


def _curves(material: Material) -> Rows:
    """The main rows that were evaluated more than once: a single point is no curve."""
    return {label: results for label, results in material.evaluated_main.items() if len(results[0].curve) > 1}


def curve_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Score and loss of every owner over training, from where it joined."""
    for label, results in _curves(material).items():
        for owner in _present(material, results):
            judged = [[point for point in result.curve if owner.name in point.owners] for result in results]
            steps = [point.step for point in judged[0]]
            found = [[point.owners[owner.name] for point in curve] for curve in judged]
            scores = _spreads("score", [[each.score for each in curve] for curve in found])
            losses = _spreads("loss", [[each.loss for each in curve] for curve in found])
            for step, score, loss in zip(steps, scores, losses, strict=True):
                yield {"method": label, **_owned(owner, results), "step": step, **score, **loss}


def progress_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Overall score, the worst owner and the worse-off half over training; of a single owner the first says all."""
    for label, results in _curves(material).items():
        measures = list(MEASURES.items())[: 1 if len(results[0].final.owners) == 1 else None]
        for points in zip(*(result.curve for result in results), strict=True):
            for measure, words in measures:
                values = [getattr(point, measure) for point in points]
                yield {"method": label, "measure": words, "step": points[0].step, **_spread("value", values)}


def end_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Score and loss of every owner at the end."""
    for label, results in material.evaluated_main.items():
        for owner in _present(material, results):
            found = [result.final.owners[owner.name] for result in results]
            yield {
                "method": label,
                **_owned(owner, results),
                **_spread("score", [each.score for each in found]),
                **_within(results, owner.name),
                **_spread("loss", [each.loss for each in found]),
                "held_out": min(each.examples for each in found),
            }


def spending_rows(material: Material) -> Iterator[dict[str, Any]]:
    """What every owner allows and has spent."""
    for row in material.main_rows:
        for owner in material.owners:
            spent = row.spent.get(owner.name)
            if spent is not None:
                yield {
                    "method": row.label,
                    **_owned(owner),
                    "spent": _up(spent, owner.epsilon),
                    "share": _up(spent / owner.epsilon, 1.0, 3),
                }


def change_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Each owner's score minus what IDP-SGD gives it, at the same seeds."""
    evaluated = material.evaluated_main
    partner = {result.seed: result.final for result in evaluated.get(views.BASELINE, ())}
    for label, results in evaluated.items():
        pairs = [(result.final, partner[result.seed]) for result in results if result.seed in partner]
        if label == views.BASELINE or not pairs:
            continue
        for owner in _present(material, results):
            changes = [ours.owners[owner.name].score - theirs.owners[owner.name].score for ours, theirs in pairs]
            yield {"method": label, **_owned(owner), **_spread("change", changes)}


def line_rows(material: Material) -> Iterator[dict[str, Any]]:
    """The two ends of the regression of changes against budgets, over all owners and seeds."""
    for label, stages in views.change_against_budget(material.evaluated_main).items():
        line, epsilons = stages["end"]["line"], stages["end"]["epsilons"]
        if line is None:
            continue
        for epsilon in (min(epsilons), max(epsilons)):
            yield {
                "method": label,
                "epsilon": epsilon,
                "change": _short(line["intercept"] + line["slope"] * epsilon),
                "slope": _short(line["slope"]),
                "correlation": _short(line["correlation"]),
                "p": _short(line["p"]),
            }


def pareto_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Overall score and imbalance of every method and plan, also of those that no other chart shows.

    A single row has nothing to be compared with. Names stand beside their points, towards the middle, and in turn
    above and below on the way down, so that neighbours do not cover each other; points in the same place share one.
    """
    if len(material.evaluated) < 2:
        return
    variants = {row.label: row.variant for row in material.rows}
    points = views.pareto(material.evaluated)
    means = {label: {name: point[name]["mean"] for name in _PARETO} for label, point in points.items()}
    shown = [label for label in material.main if label in points]
    lowest = _lowest_drawn([means[label]["overall"] for label in shown])
    downward = sorted(shown, key=lambda label: -means[label]["overall"])
    places: dict[tuple[float, float], list[str]] = {}
    for label in downward:
        places.setdefault((round(means[label]["overall"], 3), round(means[label]["imbalance"], 3)), []).append(label)
    names = {together[0]: ", ".join(together) for together in places.values()}
    imbalances = [means[label]["imbalance"] for label in points if label in shown or means[label]["overall"] >= lowest]
    middle = (min(imbalances) + max(imbalances)) / 2 if imbalances else 0.0
    for label, point in points.items():
        yield {
            "method": label,
            "plan": variants[label],
            "main": label in material.main,
            "front": not point["dominated_by"],
            "far": means[label]["overall"] < lowest,
            "name": names.get(label, ""),
            "above": label in names and list(names).index(label) % 2 == 0,
            "at_right": means[label]["imbalance"] > middle,
            **{f"{name}{suffix}": _short(point[name][key]) for name in _PARETO for suffix, key in _PARTS},
        }


def _lowest_drawn(overall: Sequence[float]) -> float:
    """Rows that no other chart shows are left out of the Pareto chart if they would squeeze the rest into a corner."""
    return min(overall, default=0.0) - max(0.05, max(overall, default=0.0) - min(overall, default=0.0))


_PARETO = ("overall", "imbalance", "worst")
_PARTS = (("", "mean"), ("_sd", "sd"))


def term_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Rates, thresholds and signals of every owner."""
    for row in material.main_rows:
        for quantity, words in QUANTITIES.items():
            for owner in material.owners:
                value = row.terms.get(quantity, {}).get(owner.name)
                if value is not None:
                    yield {"method": row.label, **_owned(owner), "quantity": words, "value": _short(value)}


def class_rows(material: Material) -> Iterator[dict[str, Any]]:
    """The recall of every class over training, and whose class it is."""
    for label, found in views.class_curves(_curves(material)).items():
        for step, recalls in zip(found["steps"], found["recall"], strict=True):
            for (name, owner), recall in zip(material.classes, recalls, strict=False):
                if recall is not None:
                    shown = name if owner is None else f"{name} ({owner})"
                    yield {"method": label, "class": shown, "owner": owner, "step": step, "recall": _short(recall)}


def condition_rows(material: Material) -> Iterator[dict[str, Any]]:
    """The left side of Thm. 3.1 over training, for the strictest owner against the most liberal one."""
    for label, found in material.condition.items():
        for point in found["points"]:
            yield {
                "method": label,
                "owner": found["owner"],
                "other": found["other"],
                "step": point["step"],
                "left_side": _short(point["left_side"]),
                "angle": _short(point["angle"]),
                "signal_ratio": _short(point["signal_ratio"]),
            }


def weight_rows(material: Material) -> Iterator[dict[str, Any]]:
    """The mean importance weight of every owner over training."""
    for label, found in material.weights.items():
        for owner in material.owners:
            for step, weight in zip(found["steps"], found["owners"].get(owner.name, ()), strict=False):
                yield {"method": label, **_owned(owner), "step": step, "weight": _short(weight)}


ROC_COLUMNS = ("false_positive_rate", "true_positive_rate", "highest")


def roc_rows(material: Material) -> Iterator[dict[str, Any]]:
    """True against false positive rates of an audit, owner by owner, and the highest that its profile allows."""
    for label, by_owner in material.roc.items():
        for owner in material.owners:
            found = by_owner.get(owner.name)
            if found is None:
                continue
            false, true = found["false_positive_rates"], found["true_positive_rates"]
            highest = found.get("highest_true_positive_rates") or [None] * len(false)
            for point in zip(false, true, highest, strict=True):
                rates = dict(zip(ROC_COLUMNS, map(_short, point), strict=True))
                yield {"method": label, **_owned(owner), **rates, "area": _short(found.get("area"))}


TABLES: dict[str, Callable[[Material], Iterator[dict[str, Any]]]] = {
    "curves": curve_rows,
    "progress": progress_rows,
    "ends": end_rows,
    "spending": spending_rows,
    "changes": change_rows,
    "lines": line_rows,
    "pareto": pareto_rows,
    "terms": term_rows,
    "classes": class_rows,
    "condition": condition_rows,
    "weights": weight_rows,
    "roc": roc_rows,
}
