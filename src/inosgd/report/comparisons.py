"""Reading a folder of ``inosgd compare``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import Finding, findings, shared_findings
from inosgd.compare.results import GroupTerms, Result
from inosgd.plan import Plan
from inosgd.planning import signals
from inosgd.report.extras import read_extras
from inosgd.report.material import Material, MethodRow, OwnerFacts, by_budget, main_labels
from inosgd.study.built_in import STUDIES

SEEDED = (
    "Seeded runs: whoever knows the seed can remove the noise. They are for comparing methods; none of these models "
    "should be released."
)


def read_comparison(folder: Path) -> Material:
    """The material of ``summary.json``, and of the plans and curves beside it."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = tuple(_row(folder, label, fields, summary["seeds"]) for label, fields in summary["methods"].items())
    plan = _plan(folder, rows[0].label, summary["seeds"][0])
    parameters = _parameters(summary["study"])
    return Material(
        kind="compare",
        title=summary["study"],
        description=summary["description"],
        owners=by_budget(owners_of(plan)),
        rows=rows,
        main=main_labels(rows),
        facts=(*_size(parameters), *facts_of(summary["settings"], len(summary["seeds"]))),
        verdict=summary["verdict"],
        classes=tuple((f"class {number}", None) for number in range(len(rows[0].results[0].final.classes))),
        unaccounted=(SEEDED,),
        findings=tuple(found for row in rows for found in _findings(folder, row, parameters)),
        **read_extras(folder, main_labels(rows)),
    )


def _findings(folder: Path, row: MethodRow, parameters: int | None) -> tuple[Finding, ...]:
    plans = [_plan(folder, row.label, seed) for seed in row.seeds]
    found = [findings(result.curve, (), plan, parameters) for result, plan in zip(row.results, plans, strict=True)]
    return shared_findings(found, row.label)


def _parameters(study: str) -> int | None:
    """How large the model is, of studies that come with the program."""
    if study not in STUDIES:
        return None
    return sum(parameter.numel() for parameter in STUDIES[study].model(0).parameters())


def _size(parameters: int | None) -> tuple[tuple[str, str], ...]:
    return () if parameters is None else (("parameters", f"{parameters:,}"),)


def owners_of(plan: Plan) -> list[OwnerFacts]:
    """The owners of a plan."""
    return [OwnerFacts(name, budget.epsilon, budget.delta, int(size)) for name, budget, size in plan.table]


def terms_of(plan: Plan) -> dict[str, dict[str, float]]:
    """Rates, thresholds and signals of a plan's owners at its first step."""
    terms, names = plan.at(0), plan.table.names
    columns = {"rates": terms.sampling_rates, "thresholds": terms.clipping_thresholds, "signals": signals(plan)}
    return {
        quantity: dict(zip(names, (float(each) for each in values), strict=True))
        for quantity, values in columns.items()
    }


def facts_of(settings: Mapping[str, Any], seeds: int) -> tuple[tuple[str, str], ...]:
    """The settings of a study in words."""
    return (
        ("steps", f"{settings['steps']}"),
        ("expected batch", f"{settings['expected_batch_size']:g}"),
        ("learning rate", f"{settings['learning_rate']:g}"),
        ("accountant", str(settings["accountant"]).upper()),
        ("paired seeds", f"{seeds}"),
    )


def _row(folder: Path, label: str, fields: Mapping[str, Any], seeds: list[int]) -> MethodRow:
    results = tuple(_result(folder, label, fields["variant"], seed) for seed in seeds)
    return MethodRow(label, fields["variant"], results, fields["spent"], terms_of(_plan(folder, label, seeds[0])))


def _result(folder: Path, label: str, variant: str, seed: int) -> Result:
    plan = _plan(folder, label, seed)
    points = json.loads((folder / label / f"seed-{seed}" / "metrics.json").read_text(encoding="utf-8"))
    return result_of(plan, [Evaluation.from_json(point) for point in points], label, variant, seed)


def result_of(plan: Plan, curve: list[Evaluation], label: str, variant: str, seed: int) -> Result:
    """A training that was not kept as a `Result`, as one."""
    table = plan.table
    share = float(np.max(plan.spent / table.epsilons))
    return Result(
        key="",
        entrant={"label": label, "method": label, "variant": variant},
        seed=seed,
        curve=tuple(curve),
        epsilons=dict(zip(table.names, table.epsilons.tolist(), strict=True)),
        terms=GroupTerms(**terms_of(plan), spent_share=share),
        noise_scale=plan.at(0).noise_scale,
        seconds=float("nan"),
        scaling="",
    )


def _plan(folder: Path, label: str, seed: int) -> Plan:
    return Plan.from_json((folder / label / f"seed-{seed}" / "plan.json").read_text(encoding="utf-8"))
