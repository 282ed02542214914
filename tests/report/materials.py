"""Materials of any size, made up: what charts look like does not depend on where numbers come from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from inosgd.analysis.evaluation import Evaluation, OwnerQuality, judged
from inosgd.analysis.task import Task, classification
from inosgd.compare.common import Common
from inosgd.compare.comparison import compare, open_store
from inosgd.compare.entrant import entrants
from inosgd.compare.results import GroupTerms, Result
from inosgd.method import method_named
from inosgd.parallel.workers import Workers
from inosgd.report.material import Material, MethodRow, OwnerFacts, main_labels
from inosgd.report.verdicts import with_verdict
from inosgd.study.built_in import STUDIES

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
    task: Task | None = None,
) -> Material:
    facts = owner_facts(owners)
    if names:
        facts = tuple(OwnerFacts(name, 1.0 + number, 1e-5, 10) for number, name in enumerate(names))
    rows = tuple(_row(label, number, facts, seeds, points, task) for number, label in enumerate(METHODS[:methods]))
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
            unaccounted=("Seeded runs: not for publication.",),
            condition=condition if extras else {},
            weights=weights if extras else {},
            roc=roc if extras else {},
        )
    )


def _row(
    label: str, number: int, owners: tuple[OwnerFacts, ...], seeds: int, points: int, task: Task | None
) -> MethodRow:
    results = tuple(_result(label, number, owners, seed, points, task) for seed in range(seeds))
    spent = {owner.name: owner.epsilon * (0.9999 - 0.1 * number) for owner in owners}
    terms = {
        "rates": {owner.name: 0.01 * owner.epsilon for owner in owners},
        "thresholds": {owner.name: 0.1 for owner in owners},
        "signals": {owner.name: 3.0 * owner.epsilon for owner in owners},
    }
    return MethodRow(label, "sample", results, spent, terms)


def _result(
    label: str, number: int, owners: tuple[OwnerFacts, ...], seed: int, points: int, task: Task | None
) -> Result:
    generator = np.random.default_rng([number, seed])
    made = _point if task is None else partial(_judged, task)
    curve = tuple(made(point, points, number, owners, generator) for point in range(points))
    names = [owner.name for owner in owners]
    nothing = dict.fromkeys(names, 0.0)
    return Result(
        key="",
        entrant={"label": label, "variant": "sample"},
        seed=seed,
        curve=curve,
        findings=(),
        epsilons={owner.name: owner.epsilon for owner in owners},
        terms=GroupTerms(nothing, nothing, nothing, {}, 0.9999),
        noise_scale=1.0,
        steps=10 * points,
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
        score = share * (0.6 + 0.05 * number + 0.2 * owner.epsilon / most) + 0.03 * generator.random()
        qualities[owner.name] = OwnerQuality(float(score), float(2.2 * (1 - score)))
    overall = float(np.mean([quality.score for quality in qualities.values()]))
    classes = tuple(float(overall * factor) for factor in (0.9, 1.0, 1.1))
    return Evaluation(10 * (point + 1), overall, qualities, 2.2 * (1 - overall), classes)


def _judged(
    task: Task, point: int, points: int, number: int, owners: tuple[OwnerFacts, ...], generator: np.random.Generator
) -> Evaluation:
    """An evaluation of made-up outputs; at the first point they are far off, and the last has all measures."""
    count = 20 * len(owners)
    targets = generator.normal(size=(count, task.outputs))
    if task.kind == "multi-label":
        targets = (targets > 0.5).astype(np.float64)
    outputs = targets + (3 if point == 0 else 0.8 - 0.1 * number) * generator.normal(size=targets.shape)
    names = tuple(owner.name for owner in owners)
    arguments = (outputs, np.ones(count), targets, np.arange(count) % len(owners), names, 10 * (point + 1))
    return judged(task, *arguments, measure=point == points - 1)


def write_comparison(folder: Path) -> Path:
    """What ``inosgd compare`` writes, of the digits study with six steps and two methods."""
    study = STUDIES["digits"].changed({"steps": 6, "accountant": "rdp"})
    entered = entrants([method_named(name) for name in ("idp-sgd", "ino-sgd")], ["sample"])
    list(compare(study, entered, range(2), open_store(study, folder), workers=Workers(jobs=1)))
    return folder


def common_of(material: Material) -> Common:
    """What a comparison with these owners would have in common."""
    plan = {"steps": 50, "variant": "sample", "expected_batch_size": 10, "accountant": "rdp"}
    return Common(
        study="a-study",
        data="",
        description="made up",
        model="perceptron",
        parameters=10,
        config={"plan": plan, "learning_rate": 1.0, "learning_rate_unit": "batch", "averaging": None},
        task=classification([name for name, _ in material.classes]),
        held_out="test data",
        owners=tuple((owner.name, owner.epsilon, 1e-5, 100) for owner in material.owners),
        classes=material.classes,
    )
