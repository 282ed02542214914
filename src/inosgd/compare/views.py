"""Views: what is computed from results, each as plain values for tables, figures and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from inosgd.analysis.differences import Difference, paired_difference, regression
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.summary import mean_sd
from inosgd.compare.results import Result

Rows = Mapping[str, Sequence[Result]]
"""The results of each entrant by its label, seeds in the same order everywhere."""

STAGES = {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "end": 1.0}
"""The shares of training at which the paper reports."""

BASELINE = "idp-sgd"


def most_private(result: Result) -> str:
    """The group with the smallest budget."""
    return min(result.epsilons, key=lambda name: result.epsilons[name])


def judged_owners(results: Sequence[Result]) -> list[str]:
    """The owners with a score in every seed: in some splits an owner may have no held-out example that defines one."""
    return [name for name in results[0].final.owners if all(name in result.final.owners for result in results)]


def _measures(result: Result) -> dict[str, Callable[[Evaluation], float]]:
    strictest = most_private(result)
    return {
        "overall": lambda point: point.overall,
        "worst": lambda point: point.worst,
        "worst_half": lambda point: point.worst_half,
        "most_private": lambda point: point.owners[strictest].score,
        "most_private_loss": lambda point: point.owners[strictest].loss,
        "imbalance": lambda point: point.imbalance,
        "loss": lambda point: point.loss,
    }


def summarize(rows: Rows) -> dict[str, Any]:
    """Per entrant: every measure at the end and at each quarter, the owners, and what training took."""
    return {label: _summary(results) for label, results in rows.items() if results}


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    measures = _measures(results[0])
    at_stage = {
        stage: {
            name: mean_sd([measure(result.at(share)) for result in results]).to_json()
            for name, measure in measures.items()
        }
        for stage, share in STAGES.items()
    }
    return {
        "scored_by": results[0].final.scored_by,
        **at_stage["end"],
        "owners": {name: _owner(results, name) for name in judged_owners(results)},
        "stages": at_stage,
        "last_iterate": _last_iterates(results),
        "variant": results[0].entrant["variant"],
        "seeds": [result.seed for result in results],
        "spent_share": max(result.terms.spent_share for result in results),
        "seconds_per_step": float(np.median([result.seconds / result.final.step for result in results])),
        "terms": {**results[0].terms.__dict__, "noise_scale": results[0].noise_scale},
    }


def _last_iterates(results: Sequence[Result]) -> dict[str, Any] | None:
    """Overall and worst owner of the last iterates, where results are averages; they choose nothing."""
    last = [result.final.last_iterate for result in results]
    known = [each for each in last if each is not None]
    if len(known) < len(last):
        return None
    return {name: mean_sd([getattr(each, name) for each in known]).to_json() for name in ("overall", "worst")}


def _owner(results: Sequence[Result], name: str) -> dict[str, Any]:
    score = mean_sd([result.final.owners[name].score for result in results])
    loss = mean_sd([result.final.owners[name].loss for result in results])
    spent = [result.terms.spent.get(name) for result in results]
    known = None if None in spent else max(each for each in spent if each is not None)
    return {**score.to_json(), "loss": loss.to_json(), "epsilon": results[0].epsilons[name], "spent": known}


def differences(rows: Rows, baseline: str = BASELINE) -> dict[str, Any]:
    """Every entrant minus the baseline with the same seeds, with p-values, at each quarter."""
    if not rows.get(baseline):
        return {}
    others = {label: results for label, results in rows.items() if label != baseline and results}
    return {f"{label} - {baseline}": _difference(results, rows[baseline]) for label, results in others.items()}


def paired(ours: Sequence[Result], theirs: Sequence[Result], measure: str) -> Difference | None:
    """``ours`` minus ``theirs`` in a measure of the last evaluation, with the same seeds; None if they share none."""
    partner = {result.seed: result.final for result in theirs}
    pairs = [(result.final, partner[result.seed]) for result in ours if result.seed in partner]
    if not pairs:
        return None
    return paired_difference(*([getattr(each, measure) for each in side] for side in zip(*pairs, strict=True)))


def _difference(ours: Sequence[Result], theirs: Sequence[Result]) -> dict[str, Any]:
    partner = {result.seed: result for result in theirs}
    pairs = [(result, partner[result.seed]) for result in ours if result.seed in partner]
    if not pairs:
        return {}
    return {
        stage: {
            name: paired_difference(
                [measure(our.at(share)) for our, _ in pairs], [measure(their.at(share)) for _, their in pairs]
            ).to_json()
            for name, measure in _measures(pairs[0][0]).items()
        }
        for stage, share in STAGES.items()
    }


def curves(rows: Rows) -> dict[str, Any]:
    """Learning curves of every entrant: overall, worst owner, and score and loss of every owner, over seeds."""
    return {label: _curve(results) for label, results in rows.items() if results}


def _curve(results: Sequence[Result]) -> dict[str, Any]:
    points = list(zip(*(result.curve for result in results), strict=True))

    def band(measure: Callable[[Evaluation], float]) -> list[dict[str, float]]:
        return [mean_sd([measure(each) for each in point]).to_json() for point in points]

    return {
        "steps": [point[0].step for point in points],
        "overall": band(lambda each: each.overall),
        "loss": band(lambda each: each.loss),
        "worst": band(lambda each: each.worst),
        "worst_half": band(lambda each: each.worst_half),
        "owners": {
            name: {
                "score": band(lambda each, name=name: each.owners[name].score),  # type: ignore[misc]
                "loss": band(lambda each, name=name: each.owners[name].loss),  # type: ignore[misc]
            }
            for name in judged_owners(results)
        },
    }


def class_curves(rows: Rows) -> dict[str, Any]:
    """The mean recall of every class over training, for what happens within an owner."""
    return {
        label: {
            "steps": [point.step for point in results[0].curve],
            "recall": [
                _class_means([result.curve[index] for result in results]) for index in range(len(results[0].curve))
            ],
        }
        for label, results in rows.items()
        if results
    }


def _class_means(points: Sequence[Evaluation]) -> list[float | None]:
    columns = zip(*(point.classes for point in points), strict=True)
    return [None if None in column else float(np.mean(column)) for column in columns]


def change_against_budget(rows: Rows, baseline: str = BASELINE) -> dict[str, Any]:
    """Per entrant and stage: each owner's change in score against its budget, over all seeds, with the line."""
    if not rows.get(baseline):
        return {}
    partner = {result.seed: result for result in rows[baseline]}
    return {
        label: {stage: _changes(results, partner, share) for stage, share in STAGES.items()}
        for label, results in rows.items()
        if label != baseline and results
    }


def _changes(results: Sequence[Result], partner: Mapping[int, Result], share: float) -> dict[str, Any]:
    points = [
        (result.epsilons[name], quality.score - partner[result.seed].at(share).owners[name].score)
        for result in results
        if result.seed in partner
        for name, quality in result.at(share).owners.items()
        if name in partner[result.seed].final.owners
    ]
    epsilons, changes = [point[0] for point in points], [point[1] for point in points]
    line = regression(epsilons, changes)
    return {"epsilons": epsilons, "changes": changes, "line": None if line is None else line.to_json()}


def pareto(rows: Rows) -> dict[str, Any]:
    """Overall score, imbalance and worst owner of every entrant, and whether another is better in the first two."""
    points = {
        label: {
            "overall": mean_sd([result.final.overall for result in results]).to_json(),
            "imbalance": mean_sd([result.final.imbalance for result in results]).to_json(),
            "worst": mean_sd([result.final.worst for result in results]).to_json(),
        }
        for label, results in rows.items()
        if results
    }
    for label, point in points.items():
        point["dominated_by"] = [other for other in points if _dominates(points[other], point) and other != label]  # type: ignore[assignment]
    return points


def _dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    overall = one["overall"]["mean"] - other["overall"]["mean"]
    imbalance = one["imbalance"]["mean"] - other["imbalance"]["mean"]
    return bool(overall >= 0 and imbalance <= 0 and (overall > 0 or imbalance < 0))


def run_time(rows: Rows, baseline: str = BASELINE) -> dict[str, float]:
    """Each entrant's time per training as a ratio to the baseline's with the same seed, the median over seeds."""
    partner = {result.seed: result.seconds for result in rows.get(baseline, ())}
    ratios = {
        label: [result.seconds / partner[result.seed] for result in results if result.seed in partner]
        for label, results in rows.items()
    }
    return {label: float(np.median(values)) for label, values in ratios.items() if values and label != baseline}
