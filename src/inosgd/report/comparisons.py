"""Reading a folder of ``inosgd compare``: a file of results that may still be growing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inosgd.analysis.findings import Finding, shared_findings
from inosgd.analysis.suggestions import Setup, Suggestion, suggestions
from inosgd.averaging import Averaging
from inosgd.compare.common import Common
from inosgd.compare.results import Result, read_results
from inosgd.errors import InvalidArgumentError
from inosgd.method import METHODS
from inosgd.report.extras import read_extras
from inosgd.report.material import Material, MethodRow, OwnerFacts, by_budget, main_labels
from inosgd.report.verdicts import fairest, with_verdict
from inosgd.shown import learning_rate_shown
from inosgd.study.study import FITTED_SCALING

SEEDED = (
    "Seeded runs: a party with the seed can remove the noise. They are for comparing methods; none of these models "
    "should be published."
)


def read_comparison(folder: Path) -> Material:
    """The material of ``results.jsonl``; a line that is not finished is left out."""
    common, results = read_results(folder / "results.jsonl")
    if not results:
        raise InvalidArgumentError(f"{folder}: no training is finished yet; come back when one is")
    return material_of(common, results, folder)


def material_of(common: Common, results: Sequence[Result], folder: Path) -> Material:
    """The material of some results, with what ``folder`` keeps beside them about their rows."""
    rows = _rows(results, common.config["plan"]["variant"])
    main = main_labels(rows)
    seeds = max(len(row.results) for row in rows if row.label in main)
    material = Material(
        kind="compare",
        title=common.study,
        description=common.description,
        owners=by_budget([OwnerFacts(*owner) for owner in common.owners]),
        rows=rows,
        main=main,
        facts=_facts(common, seeds, results[0].steps),
        classes=common.classes,
        unaccounted=_unaccounted(results),
        findings=_findings(rows, main),
        suggestions=suggested_next(rows, main, common),
        unit=common.unit,
        **read_extras(folder, main),
    )
    return with_verdict(material)


def _rows(results: Sequence[Result], own: str) -> tuple[MethodRow, ...]:
    """One row per label: methods in their usual order, then the others by name, since trainings end in any order.

    Of rows with the same label and several plans, all but that of the study's ``own`` plan have theirs in the label.
    """
    plans: dict[str, set[str]] = {}
    for result in results:
        plans.setdefault(result.entrant["label"], set()).add(result.entrant["variant"])
    grouped: dict[str, dict[int, Result]] = {}
    for result in results:
        label, plan = result.entrant["label"], result.entrant["variant"]
        unnamed = own if own in plans[label] else min(plans[label])
        grouped.setdefault(label if plan == unnamed else f"{label} ({plan})", {})[result.seed] = result
    labels = sorted(
        grouped, key=lambda label: (list(METHODS).index(label) if label in METHODS else len(METHODS), label)
    )
    return tuple(_row(label, [grouped[label][seed] for seed in sorted(grouped[label])]) for label in labels)


def _row(label: str, found: Sequence[Result]) -> MethodRow:
    terms = found[0].terms
    spent = {name: max(result.terms.spent.get(name, 0.0) for result in found) for name in terms.spent}
    quantities = {name: getattr(terms, name) for name in ("rates", "thresholds", "signals")}
    return MethodRow(label, found[0].entrant["variant"], tuple(found), spent, quantities)


def _facts(common: Common, seeds: int, steps: int) -> tuple[tuple[str, str], ...]:
    config, plan = common.config, common.config["plan"]
    schedule = (("schedule", config["schedule"]),) if "schedule" in config else ()
    batch = plan["expected_batch_size"]
    return (
        ("model", common.model),
        ("parameters", f"{common.parameters:,}"),
        ("steps", f"{steps}"),
        *(() if batch is None else (("expected batch", f"{batch:g}"),)),
        ("learning rate", learning_rate_shown(config["learning_rate"], config["learning_rate_unit"])),
        *schedule,
        *_averaging(config["averaging"]),
        ("accountant", plan["accountant"].upper()),
        ("paired seeds" if seeds > 1 else "seeds", f"{seeds}"),
        ("held out", common.held_out),
    )


def _averaging(fields: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return () if fields is None else (("averaging", str(Averaging(**fields))),)


def _findings(rows: Sequence[MethodRow], main: Sequence[str]) -> tuple[Finding, ...]:
    """What most seeds of a main row have in common."""
    shown = [row for row in rows if row.label in main]
    return tuple(
        found for row in shown for found in shared_findings([result.findings for result in row.results], row.label)
    )


def suggested_next(rows: Sequence[MethodRow], main: Sequence[str], common: Common) -> tuple[Suggestion, ...]:
    """What more than half of the seeds of the fairest row suggest, in the words of the first of them."""
    row = fairest([row for row in rows if row.label in main])
    by_seed = [suggestions(result.curve, _setup(result, common)) for result in row.results]
    settings = [each.setting for found in by_seed for each in found]
    shared = {each.setting: each for found in by_seed for each in reversed(found)}
    tried = {"variant"} if any(row.variant == "fair" for row in rows) else set()  # the page has it already
    wanted = [name for name in dict.fromkeys(settings) if 2 * settings.count(name) > len(by_seed)]
    return tuple(shared[name] for name in wanted if name not in tried)


def _setup(result: Result, common: Common) -> Setup:
    config, plan = common.config, common.config["plan"]
    sizes = {name: size for name, _, _, size in common.owners}
    spent = {name: value / result.epsilons[name] for name, value in result.terms.spent.items()}
    expected = sum(rate * sizes.get(name, 0) for name, rate in result.terms.rates.items())
    thresholds = result.terms.thresholds
    return Setup(
        steps=result.steps,
        variant=result.entrant["variant"],
        batch=plan["expected_batch_size"] or expected,
        examples=sum(sizes.values()),
        parameters=common.parameters,
        signals=result.terms.signals,
        sizes=sizes,
        spent_shares=spent,
        threshold=sum(thresholds.values()) / len(thresholds),
        learning_rate=config["learning_rate"],
        averaged=config["averaging"] is not None,
    )


def _unaccounted(results: Sequence[Result]) -> tuple[str, ...]:
    scalings = dict.fromkeys(result.scaling for result in results)
    notes = [f"The scaling of features: {each}." for each in scalings if each == FITTED_SCALING]
    return (*notes, SEEDED)
