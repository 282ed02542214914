"""Materials of any size, made up: what charts look like does not depend on where numbers come from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from inosgd.analysis.evaluation import Evaluation, OwnerQuality
from inosgd.compare.comparison import compare, summarize, verdict
from inosgd.compare.entrant import entrants
from inosgd.compare.results import GroupTerms, Result
from inosgd.method import method_named
from inosgd.parallel.workers import Workers
from inosgd.report.material import Material, MethodRow, OwnerFacts, main_labels
from inosgd.report.verdicts import with_verdict
from inosgd.study.built_in import DIGITS

METHODS = ("dp-sgd", "idp-sgd", "ino-sgd", "ino-sgd-fair", "another")


def owner_facts(count: int) -> tuple[OwnerFacts, ...]:
    return tuple(OwnerFacts(f"owner {number + 1}", 0.5 + number / 10, 1e-5, 100) for number in range(count))


def material_of(
    owners: int = 3,
    methods: int = 4,
    seeds: int = 2,
    points: int = 5,
    *,
    extras: bool = True,
    names: tuple[str, ...] = (),
) -> Material:
    facts = owner_facts(owners)
    if names:
        facts = tuple(OwnerFacts(name, 1.0 + number, 1e-5, 10) for number, name in enumerate(names))
    rows = tuple(_row(label, number, facts, seeds, points) for number, label in enumerate(METHODS[:methods]))
    steps = [10 * (point + 1) for point in range(points)]
    condition = {
        row.label: {
            "owner": facts[0].name,
            "other": facts[-1].name,
            "points": [
                {"step": step, "left_side": number - 50 / step, "angle": 100.0, "signal_ratio": 3.0} for step in steps
            ],
        }
        for number, row in enumerate(rows)
    }
    weights = {
        rows[-1].label: {
            "steps": steps,
            "owners": {owner.name: [1 - owner.epsilon / 20 * step / 100 for step in steps] for owner in facts},
        }
    }
    rates = np.linspace(0, 1, 11)
    roc = {
        rows[0].label: {
            owner.name: {
                "false_positive_rates": rates.tolist(),
                "true_positive_rates": (rates**0.9).tolist(),
                "highest_true_positive_rates": np.minimum(1.0, rates * np.exp(owner.epsilon)).tolist(),
                "area": 0.526,
            }
            for owner in facts
        }
    }
    return with_verdict(
        Material(
            kind="compare",
            title="made up",
            description="numbers that nobody measured",
            owners=facts,
            rows=rows,
            main=main_labels(rows),
            facts=(("steps", str(steps[-1])),),
            classes=tuple((f"class {number}", None) for number in range(3)),
            unaccounted=("Seeded runs: not for release.",),
            condition=condition if extras else {},
            weights=weights if extras else {},
            roc=roc if extras else {},
        )
    )


def _row(label: str, number: int, owners: tuple[OwnerFacts, ...], seeds: int, points: int) -> MethodRow:
    results = tuple(_result(label, number, owners, seed, points) for seed in range(seeds))
    spent = {owner.name: owner.epsilon * (0.9999 - 0.1 * number) for owner in owners}
    terms = {
        "rates": {owner.name: 0.01 * owner.epsilon for owner in owners},
        "thresholds": {owner.name: 0.1 for owner in owners},
        "signals": {owner.name: 3.0 * owner.epsilon for owner in owners},
    }
    return MethodRow(label, "sample", results, spent, terms)


def _result(label: str, number: int, owners: tuple[OwnerFacts, ...], seed: int, points: int) -> Result:
    generator = np.random.default_rng([number, seed])
    curve = tuple(_point(point, points, number, owners, generator) for point in range(points))
    names = [owner.name for owner in owners]
    nothing = dict.fromkeys(names, 0.0)
    return Result(
        key="",
        entrant={"label": label, "variant": "sample"},
        seed=seed,
        curve=curve,
        epsilons={owner.name: owner.epsilon for owner in owners},
        terms=GroupTerms(nothing, nothing, nothing, 0.9999),
        noise_scale=1.0,
        seconds=1.0,
        scaling="",
    )


def _point(
    point: int, points: int, number: int, owners: tuple[OwnerFacts, ...], generator: np.random.Generator
) -> Evaluation:
    share = (point + 1) / points
    most = max(owner.epsilon for owner in owners)
    qualities = {}
    for owner in owners:
        recall = share * (0.6 + 0.05 * number + 0.2 * owner.epsilon / most) + 0.03 * generator.random()
        qualities[owner.name] = OwnerQuality(float(recall), float(2.2 * (1 - recall)))
    overall = float(np.mean([quality.recall for quality in qualities.values()]))
    classes = tuple(float(overall * factor) for factor in (0.9, 1.0, 1.1))
    return Evaluation(10 * (point + 1), overall, qualities, 2.2 * (1 - overall), classes)


def write_comparison(folder: Path) -> Path:
    """What ``inosgd compare`` writes, of the digits study with six steps and two methods."""
    study = dataclasses.replace(DIGITS, settings=dataclasses.replace(DIGITS.settings, steps=6, accountant="rdp"))
    entered = entrants([method_named(name) for name in ("idp-sgd", "ino-sgd")], "sample")
    runs = list(compare(study, entered, range(2), folder, Workers(jobs=1)))
    summaries = summarize(runs)
    summary = {
        "study": study.name,
        "description": study.description,
        "settings": study.settings.to_json(),
        "seeds": [0, 1],
        "methods": {
            entrant.label: {"variant": entrant.method.variant, **summaries[entrant.label].to_json()}
            for entrant in entered
        },
        "verdict": verdict(summaries),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
