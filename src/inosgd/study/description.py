"""What a trained model says about itself: the fields of ``model.json``, from which its card is written."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from inosgd._arrays import FloatArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import Finding
from inosgd.owners import OwnerTable
from inosgd.study.building import study_method, study_task
from inosgd.study.data import StudyData
from inosgd.study.reading import StudyFile

GUARANTEE = (
    "Let an owner allow (epsilon, delta). For each single training example of that owner, whoever sees this model, and "
    "all models of earlier steps, the plan and the ledger, can tell a training with the example from one without it "
    "only as well as (epsilon, delta)-differential privacy allows, whatever else they know. Every owner has spent at "
    "most its own budget, by the ledger of the run."
)

NOT_COVERED = (
    "Held-out examples: the model was never trained on them, but what is reported about them is exact.",
    "An owner as a whole: the promise is for one example at a time, and weaker for several of them together.",
    "Names and budgets of owners, the number of each owner's examples, and everything in the study file: they are "
    "treated as public.",
    "Other models trained on the same examples, also while settings were tried out: each spends budgets of its own, "
    "and nothing here adds them up.",
    "What is true of people whether or not their examples were used.",
)
CLASSES_FROM_DATA = "The set of classes: it was read off the training data and is treated as public."
FITTED = (
    "UNACCOUNTED SCALING: ranges or categories of the inputs were fitted to the training data. They are part of this "
    "model and depend on single examples, which no budget accounts for."
)
SEEDED = (
    "SEEDED RUN: whoever knows the seed can remove the noise and with it every promise above. Train without a seed "
    "before the model leaves the house."
)


def describe(
    study: StudyFile,
    data: StudyData,
    *,
    table: OwnerTable,
    spent: FloatArray,
    steps: int,
    seed: int | None,
    evaluation: Evaluation | None,
    findings: Sequence[Finding] = (),
) -> dict[str, Any]:
    """The description of a model after ``steps`` steps; ``table`` and ``spent`` are those of the run's ledger."""
    section = study.schema.model
    return {
        "title": f"Model of {study.path.name}",
        "inosgd": version("inosgd"),
        "architecture": {
            "name": section.name,
            "arguments": section.arguments,
            "inputs": data.encoding.shape,
            "symbols": data.encoding.symbols,
            "classes": len(data.classes),
            "seed": section.seed,
        },
        "task": study_task(study, data).to_json(),
        "classes": list(data.classes),
        "classes_declared": study.schema.data.classes is not None,
        "inputs": data.encoding.to_json(),
        "unaccounted_scaling": data.encoding.fitted,
        "privacy": _privacy(study, data, table, spent, steps, seed),
        "evaluation": None if evaluation is None else _evaluation(study, data, evaluation),
        "findings": [finding.to_json() for finding in findings],
    }


def warnings_of(study: StudyFile, data: StudyData, seed: int | None) -> list[str]:
    """What every report must say: what is unaccounted, and what voids the promise."""
    return [*([FITTED] if data.encoding.fitted else []), *([] if seed is None else [SEEDED])]


def not_covered(study: StudyFile, data: StudyData, seed: int | None) -> list[str]:
    """Everything that the guarantee is not about, the gravest first."""
    classes = [CLASSES_FROM_DATA] if study.schema.data.classes is None else []
    return [*warnings_of(study, data, seed), *NOT_COVERED, *classes]


def _privacy(
    study: StudyFile, data: StudyData, table: OwnerTable, spent: FloatArray, steps: int, seed: int | None
) -> dict[str, Any]:
    trained_on = spent > 0 if (spent > 0).any() else table.sizes >= 0
    epsilons, deltas = table.epsilons[trained_on], table.deltas[trained_on]
    training = study.schema.training
    owners = {
        name: {"epsilon": budget.epsilon, "delta": budget.delta, "spent": float(spent[row])}
        for row, (name, budget, _) in enumerate(table)
    }
    return {
        "epsilon": [float(epsilons.min()), float(epsilons.max())],
        "delta": [float(deltas.min()), float(deltas.max())],
        "owner_count": len(table),
        "owners": owners if study.schema.evaluation.owners_in_card else None,
        "method": training.method,
        "variant": study_method(training).variant,
        "accountant": training.accountant,
        "steps": steps,
        "randomness": "secure" if seed is None else "seeded: repeatable, not private against whoever knows the seed",
        "guarantee": GUARANTEE,
        "not_covered": not_covered(study, data, seed),
    }


def _evaluation(study: StudyFile, data: StudyData, evaluation: Evaluation) -> dict[str, Any]:
    section = study.schema.evaluation
    return {
        "scored_by": evaluation.scored_by,
        "overall": evaluation.overall,
        "worst": evaluation.worst,
        "examples": 0 if data.held_out is None else len(data.held_out),
        "classes": list(evaluation.classes) if section.per_class else None,
        "measures": evaluation.measures,
    }
