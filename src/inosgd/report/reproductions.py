"""Reading a folder of ``inosgd reproduce``: a file of results that may still be growing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inosgd.accounting.spending import Exposures, epsilons
from inosgd.analysis.findings import Finding, findings, shared_findings
from inosgd.compare.results import Result
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets import ASSIGNMENTS, Assignment
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100
from inosgd.paper.registry import SETTINGS
from inosgd.report.comparisons import SEEDED, facts_of
from inosgd.report.extras import read_extras
from inosgd.report.material import Material, MethodRow, OwnerFacts, by_budget, main_labels
from inosgd.report.verdicts import with_verdict

MODELS = {
    "MLP": "perceptron",
    "PC": "the paper's convolutional network",
    "RN": "ResNet-18",
    "EN": "two layers on embeddings",
    "SC": "one layer on embeddings",
    "LS": "LSTM over characters",
}
"""The paper's abbreviations in words."""


def read_reproduction(folder: Path) -> Material:
    """The material of ``results.jsonl``; a line that is not finished is left out."""
    configuration, results = _read(folder / "results.jsonl")
    name = str(configuration["study"])
    setting = SETTINGS.get(name)
    assignment = None if setting is None else ASSIGNMENTS[setting.assignment]
    rows = _rows(results, None if setting is None else setting.variant)
    main = main_labels(rows)
    rows = tuple(_accounted(row, configuration["settings"], assignment) if row.label in main else row for row in rows)
    seeds = max(len(row.results) for row in rows if row.label in main)
    held_out = (("held out", str(configuration["held_out"])),)
    material = Material(
        kind="reproduce",
        title=name,
        description="" if assignment is None else assignment.description,
        owners=by_budget(_owners(results[0], assignment)),
        rows=rows,
        main=main,
        facts=(
            *(() if setting is None else (("model", MODELS.get(setting.model, setting.model)),)),
            ("scale", str(configuration["scale"])),
            *facts_of(configuration["settings"], seeds),
            *held_out,
        ),
        classes=_classes(results[0], assignment),
        unaccounted=_unaccounted(results),
        findings=_findings(rows, main, [name.removeprefix("class ") for name, _ in _classes(results[0], assignment)]),
        **read_extras(folder, main),
    )
    return with_verdict(material)


def _read(path: Path) -> tuple[dict[str, Any], list[Result]]:
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    lines = whole.splitlines()
    try:
        configuration = json.loads(lines[0]) if lines else {}
        results = [Result.from_json(json.loads(line)) for line in lines[1:]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"{path}: it does not hold results of inosgd reproduce ({error})") from None
    if not results:
        raise InvalidArgumentError(f"{path}: no training is finished yet; come back when one is")
    return configuration, results


def _rows(results: Sequence[Result], usual: str | None) -> tuple[MethodRow, ...]:
    """One row per label and plan; a label of another plan than the study's usual one is told apart by its plan."""
    grouped: dict[tuple[str, str], dict[int, Result]] = {}
    for result in results:
        entrant = result.entrant
        grouped.setdefault((entrant["label"], entrant["variant"]), {})[result.seed] = result
    labels = [label for label, _ in grouped]
    rows = []
    for (label, variant), by_seed in grouped.items():
        other = labels.count(label) > 1 and variant != usual
        found = tuple(by_seed[seed] for seed in sorted(by_seed))
        terms = {name: getattr(found[0].terms, name) for name in ("rates", "thresholds", "signals")}
        rows.append(MethodRow(f"{label} ({variant})" if other else label, variant, found, {}, terms))
    return tuple(rows)


def _accounted(row: MethodRow, settings: Mapping[str, Any], assignment: Assignment | None) -> MethodRow:
    """The row with what each owner spent, computed again from its terms; left open where owners are not groups.

    Where every example is its own owner, or owners hold a little of everything, the terms of a group are means over
    owners, and an epsilon computed from means would be nobody's.
    """
    if assignment is None or assignment.spread is not None or assignment.overlap > 0:
        return row
    names = list(row.terms["rates"])
    rates = np.array([row.terms["rates"][name] for name in names])
    multipliers = row.results[0].noise_scale / np.array([row.terms["thresholds"][name] for name in names])
    deltas = np.full(len(names), assignment.delta)
    spent = epsilons([Exposures(rates, multipliers, settings["steps"])], deltas, settings["accountant"])
    return MethodRow(row.label, row.variant, row.results, dict(zip(names, spent.tolist(), strict=True)), row.terms)


def _owners(result: Result, assignment: Assignment | None) -> list[OwnerFacts]:
    delta = None if assignment is None else assignment.delta
    return [OwnerFacts(name, epsilon, delta) for name, epsilon in result.epsilons.items()]


def _classes(result: Result, assignment: Assignment | None) -> tuple[tuple[str, str | None], ...]:
    """Names of classes and whose they are, for data sets whose order of classes is known without reading them."""
    count = len(result.final.classes)
    if assignment is not None and not assignment.random_classes and len(assignment.classes) == count:
        owner = {label: group.name for group in assignment.groups for label in group.classes}
        for order in (CIFAR_10, CIFAR_100):
            if set(assignment.classes) <= set(order):
                used = [label for label in order if label in owner]
                return tuple((label.replace("_", " "), owner[label]) for label in used)
    return tuple((f"class {number}", None) for number in range(count))


def _findings(rows: Sequence[MethodRow], main: Sequence[str], classes: Sequence[str]) -> tuple[Finding, ...]:
    """Those of the main rows; plans are not kept, so nothing is said about noise."""
    shown = [row for row in rows if row.label in main]
    found = {row.label: [findings(result.curve, classes) for result in row.results] for row in shown}
    return tuple(each for label, by_seed in found.items() for each in shared_findings(by_seed, label))


def _unaccounted(results: Sequence[Result]) -> tuple[str, ...]:
    scalings = dict.fromkeys(result.scaling for result in results)
    notes = [f"The scaling of features: {each}." for each in scalings if "not accounted" in each]
    return (*notes, SEEDED)
