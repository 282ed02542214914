"""What a trained model says about itself: the fields of ``model.json``, from which its card is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from inosgd._arrays import FloatArray
from inosgd.analysis.answers import answers
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import Finding
from inosgd.analysis.suggestions import Suggestion
from inosgd.owners import EXAMPLE, OwnerTable, plural
from inosgd.plan import Terms
from inosgd.shown import learning_rate_shown
from inosgd.study.shares import adjusted_by
from inosgd.study.study import Study, StudyData
from inosgd.units import shared_units

GUARANTEE = (
    "Let an owner allow (epsilon, delta). For each single {protected} of that owner, any party that sees this model, "
    "all models of earlier steps, the plan and the ledger can tell a training with {it} from one without it only as "
    "well as (epsilon, delta)-differential privacy allows, whatever else that party knows. Every owner has spent at "
    "most its own budget, by the ledger of the run."
)

OTHER_MODELS = (
    "Other models trained on the same examples, also while settings were tried out: each spends budgets of its own, "
    "and nothing here adds them up."
)
OTHER_MODELS_CHARGED = (
    "Other models trained on the same examples outside of the account book {book}, collection {collection}. Trainings "
    "that are charged there are added up, by a Rényi filter, and stay within the budgets in force."
)
LOOKS = " Private examples were looked at internally without a charge: {looks}."

NOT_COVERED = (
    "Held-out examples: the model was never trained on them, but what is reported about them is exact.",
    "An owner as a whole: the promise is for one {unit} at a time, and weaker for several of them together.",
    "Names and budgets of owners, the number of each owner's {units}, and everything in the study file: they are "
    "treated as public.",
    OTHER_MODELS,
    "What is true of people whether or not their examples were used.",
)
CLASSES_FROM_DATA = "The set of classes: it was read off the training data and is treated as public."
FITTED = (
    "UNACCOUNTED SCALING: ranges or categories of inputs or targets were fitted to the training data. They are part of "
    "this model and depend on single examples, which no budget accounts for."
)
SEEDED = (
    "SEEDED RUN: any party that knows the seed can remove the noise and with it every promise above. Train without a "
    "seed before the model is published."
)


def describe(
    study: Study,
    data: StudyData,
    *,
    table: OwnerTable,
    spent: FloatArray,
    steps: int,
    evaluation: Evaluation | None,
    findings: Sequence[Finding] = (),
    suggestions: Sequence[Suggestion] = (),
    count: Terms | None = None,
    account: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The description of a model after ``steps`` steps; ``table``, ``spent`` and ``count`` are those of its ledger."""
    named = study.evaluation.owners_in_card
    suggested = suggestions if named else [each.unnamed() for each in suggestions]
    asked = answers(table, spent, evaluation, findings, suggested, classes=data.task.names, named=named)
    return {
        "title": f"Model of {study.name}",
        "inosgd": version("inosgd"),
        "architecture": _architecture(study, data),
        "task": data.task.to_json(),
        "classes_declared": _classes_declared(study),
        "inputs": None if data.encoding is None else data.encoding.to_json(),
        "unaccounted_scaling": data.fitted,
        "privacy": _with_account(_privacy(study, data, table, spent, steps), account)
        | {"adjustment": adjusted_by(study.config, data, count)},
        "evaluation": None if evaluation is None else _evaluation(study, data, evaluation),
        "answers": [answer.to_json() for answer in asked],
        "findings": [finding.to_json() for finding in findings],
        "suggestions": [each.to_json() for each in suggested],
    }


def _with_account(privacy: dict[str, Any], account: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same with the account that the training was charged to, and with what was looked at without a charge."""
    if account is None:
        return privacy
    looks = ", ".join(f"{purpose} ({count} times)" for purpose, count in account["looks"].items())
    charged = OTHER_MODELS_CHARGED.format(**account) + (LOOKS.format(looks=looks) if looks else "")
    lines = [charged if line == OTHER_MODELS else line for line in privacy["not_covered"]]
    return {**privacy, "account": dict(account), "not_covered": lines}


def warnings_of(study: Study, data: StudyData) -> list[str]:
    """What every report must say: what is unaccounted, and what voids the promise."""
    return [*([FITTED] if data.fitted else []), *([] if study.config.seed is None else [SEEDED])]


def guarantee(unit: str = EXAMPLE, promise: str = GUARANTEE) -> str:
    """What is promised to owners whose budgets protect each ``unit``."""
    protected = "training example" if unit == EXAMPLE else f"{unit}, with all its training examples,"
    return promise.format(protected=protected, it=f"the {unit}")


def never_covered(unit: str = EXAMPLE) -> list[str]:
    """What such a promise is never about."""
    return [each.format(unit=unit, units=plural(unit)) for each in NOT_COVERED]


def not_covered(study: Study, data: StudyData) -> list[str]:
    """Everything that the guarantee is not about, the gravest first."""
    classes = [] if _classes_declared(study) else [CLASSES_FROM_DATA]
    return [*warnings_of(study, data), *never_covered(data.owners.table.unit), *classes]


def _classes_declared(study: Study) -> bool:
    """Whether no class was read off the data; labels and targets are columns that the study file names."""
    if study.file is None or study.file.schema.task.kind != "classification":
        return True
    return study.file.schema.data.classes is not None


def _architecture(study: Study, data: StudyData) -> dict[str, Any]:
    """What the model is built from again; of a study without a file, its name alone."""
    if study.file is None or data.encoding is None:
        inputs = {} if data.encoding is None else {"inputs": data.encoding.shape}
        return {"name": study.model_name, "study": study.name, **inputs}
    section = study.file.schema.model
    return {
        "name": section.name,
        "arguments": section.arguments,
        "inputs": data.encoding.shape,
        "symbols": data.encoding.symbols,
        "outputs": data.task.outputs,
        "seed": section.seed,
    }


def _privacy(study: Study, data: StudyData, table: OwnerTable, spent: FloatArray, steps: int) -> dict[str, Any]:
    trained_on = spent > 0 if (spent > 0).any() else table.sizes >= 0
    epsilons, deltas = table.epsilons[trained_on], table.deltas[trained_on]
    config = study.config
    owners = {
        name: {"epsilon": budget.epsilon, "delta": budget.delta, "spent": float(spent[row])}
        for row, (name, budget, _) in enumerate(table)
    }
    return {
        "epsilon": [float(epsilons.min()), float(epsilons.max())],
        "delta": [float(deltas.min()), float(deltas.max())],
        "owner_count": len(table),
        "owners": owners if study.evaluation.owners_in_card else None,
        "method": config.method.name,
        "variant": config.plan.variant,
        "accountant": config.plan.accountant,
        "steps": steps,
        "learning_rate": learning_rate_shown(config.learning_rate, config.learning_rate_unit),
        "averaging": None if config.averaging is None else str(config.averaging),
        "randomness": "secure" if config.seed is None else "seeded: repeatable, not private if the seed is known",
        "unit": table.unit,
        "shared_units": shared_units(table),
        "guarantee": guarantee(table.unit),
        "not_covered": not_covered(study, data),
    }


def _evaluation(study: Study, data: StudyData, evaluation: Evaluation) -> dict[str, Any]:
    last = evaluation.last_iterate
    return {
        "scored_by": evaluation.scored_by,
        "overall": evaluation.overall,
        "worst": evaluation.worst,
        "last_iterate": None if last is None else {"overall": last.overall, "worst": last.worst},
        "examples": 0 if data.held_out is None else len(data.held_out),
        "classes": list(evaluation.classes) if study.evaluation.per_class else None,
        "measures": evaluation.measures,
    }
