"""Reading a run folder of ``inosgd train``, finished or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from inosgd.analysis.answers import answers
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import findings
from inosgd.analysis.suggestions import Setup, Suggestion, suggestions, with_yardstick
from inosgd.compare.results import GroupTerms, Result
from inosgd.plan import Plan
from inosgd.planning.signals import signals
from inosgd.report.extras import read_extras
from inosgd.report.material import Material, MethodRow, OwnerFacts, by_budget
from inosgd.report.verdicts import with_verdict
from inosgd.runs.folder import RunFolder
from inosgd.study.description import SEEDED
from inosgd.study.judging import curve_of
from inosgd.study.yardstick import NOT_PRIVATE, read_yardstick

STOPPED = "Stopped before its plan was done: what is shown is where it stands."


def read_training(folder: Path) -> Material:
    """The material of a run: its current plan, its ledger, and its results on held-out examples."""
    run = RunFolder.open(folder)
    ledger, plan, description = run.read_ledger(), run.plan(), run.description()
    model = _model_fields(folder)
    label, variant = description.get("method", "training"), plan.variant
    curve = curve_of(run)
    spent = dict(zip(ledger.table.names, ledger.spent().tolist(), strict=True))
    results = (result_of(plan, curve, label, variant, 0),) if curve else ()
    found = findings(curve, _names(model), plan, model.get("parameters")) if ledger.steps == plan.steps else ()
    yardstick = read_yardstick(folder)
    suggested = _suggested(plan, curve, model, yardstick)
    final = curve[-1] if curve else None
    material = Material(
        kind="train",
        title=description.get("study", folder.name),
        description=_sentence(plan, model),
        owners=by_budget(
            [OwnerFacts(name, budget.epsilon, budget.delta, int(size)) for name, budget, size in plan.table]
        ),
        rows=(MethodRow(label, variant, results, spent, terms_of(plan)),),
        main=(label,),
        facts=(*_facts(plan, ledger.steps, description, model), *_last_iterate(curve)),
        classes=_classes(model, curve),
        unaccounted=_unaccounted(description, model, ledger.steps < plan.steps, yardstick),
        unit=plan.table.unit,
        findings=found,
        suggestions=suggested,
        answers=answers(
            ledger.table, ledger.spent(), final, found, suggested, classes=_names(model), yardstick=yardstick
        ),
        **read_extras(folder, [label]),
    )
    return with_verdict(material)


def _suggested(
    plan: Plan, curve: list[Evaluation], model: dict[str, Any], yardstick: float | None
) -> tuple[Suggestion, ...]:
    """What the model says is to be tried next, with owners by name, and what a yardstick adds; none before the end."""
    if not curve or curve[-1].step != plan.steps or "parameters" not in model:
        return ()
    told = model.get("privacy", {})
    setup = Setup.of_plan(
        plan,
        model["parameters"],
        learning_rate=float(told["learning_rate"].split()[0]),
        averaged=bool(told["averaging"]),
        adjusted=told["adjustment"] or "",
    )
    found = suggestions(curve, setup, _names(model))
    return found if yardstick is None else with_yardstick(found, curve[-1], yardstick, setup)


def terms_of(plan: Plan) -> dict[str, dict[str, float]]:
    """Rates, thresholds and signals of a plan's owners at its first step."""
    terms, names = plan.at(0), plan.table.names
    columns = {"rates": terms.sampling_rates, "thresholds": terms.clipping_thresholds, "signals": signals(plan)}
    return {
        quantity: dict(zip(names, (float(each) for each in values), strict=True))
        for quantity, values in columns.items()
    }


def result_of(plan: Plan, curve: list[Evaluation], label: str, variant: str, seed: int) -> Result:
    """A training that was not kept as a `Result`, as one."""
    table = plan.table
    return Result(
        key="",
        entrant={"label": label, "method": label, "variant": variant},
        seed=seed,
        curve=tuple(curve),
        findings=(),
        epsilons=dict(zip(table.names, table.epsilons.tolist(), strict=True)),
        terms=GroupTerms(**terms_of(plan), spent={}, spent_share=float(np.max(plan.spent / table.epsilons))),
        noise_scale=plan.at(0).noise_scale,
        steps=plan.steps,
        seconds=float("nan"),
        scaling="",
    )


def _model_fields(folder: Path) -> dict[str, Any]:
    path = folder / "model" / "model.json"
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return fields


def _sentence(plan: Plan, model: dict[str, Any]) -> str:
    table = plan.table
    owned = f"{int(table.sizes.sum()):,} {table.units} of {len(table)} owner{'s' if len(table) != 1 else ''}"
    architecture = model.get("architecture", {}).get("name")
    return f"{owned}" + (f", model {architecture}" if architecture else "")


def _facts(plan: Plan, done: int, description: dict[str, Any], model: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    told = model.get("privacy", {})
    updates = [(name.replace("_", " "), told[name]) for name in ("learning_rate", "averaging") if told.get(name)]
    counted = () if plan.count is None else (("classes", f"counted for {int(plan.count.sampling_rates.sum())} owners"),)
    return (
        ("steps", f"{done}" if done == plan.steps else f"{done} of {plan.steps}"),
        ("expected batch", f"{plan.at(0).expected_batch_size:.4g}"),
        ("noise scale", f"{plan.at(0).noise_scale:.3g}"),
        *updates,
        ("accountant", plan.accountant.upper()),
        ("randomness", "secure" if description.get("seed") is None else "seeded"),
        *counted,
    )


def _last_iterate(curve: list[Evaluation]) -> tuple[tuple[str, str], ...]:
    """How the last iterate does, where the model is an average."""
    last = curve[-1].last_iterate if curve else None
    return () if last is None else (("last iterate", f"{last.scoring.shown(last.overall)} overall"),)


def _classes(model: dict[str, Any], curve: list[Evaluation]) -> tuple[tuple[str, str | None], ...]:
    count = len(curve[-1].classes) if curve else 0
    names = _names(model)
    return tuple((str(names[n]) if n < len(names) else f"class {n}", None) for n in range(count))


def _names(model: dict[str, Any]) -> list[str]:
    names: list[str] = model.get("task", {}).get("names", [])
    return names


def _unaccounted(
    description: dict[str, Any], model: dict[str, Any], unfinished: bool, yardstick: float | None
) -> tuple[str, ...]:
    known = model.get("privacy", {}).get("not_covered", [])
    grave = [each for each in known if each.split(":")[0].isupper()]
    seeded = [SEEDED] if description.get("seed") is not None and SEEDED not in grave else []
    compared = [] if yardstick is None else [NOT_PRIVATE]
    return (*grave, *seeded, *compared, *([STOPPED] if unfinished else []))
