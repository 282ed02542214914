"""Checks between keys: what a schema of single keys cannot see."""

from __future__ import annotations

import json
from collections.abc import Iterator

from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.importance import StepTail
from inosgd.method import METHODS
from inosgd.owners import EXAMPLE
from inosgd.plan_config import PlanConfig
from inosgd.study.encoding import NUMBERS
from inosgd.study.features import CategoricalFeature, TextFeature, UnfittedFeature
from inosgd.study.models import BUILT_IN, FACTORY, OWN_MODEL, argument_names
from inosgd.study.problems import ABSENT, Problem
from inosgd.study.schema import (
    ArrayData,
    ImageData,
    MappedData,
    StudySchema,
    TableData,
    TailSection,
    TrainingSection,
    notation_of,
    used_columns,
)


def problems_between_keys(study: StudySchema, allowed_factory: str | None) -> list[Problem]:
    """Every contradiction between keys of a study whose single keys are valid."""
    return [
        *_data_problems(study),
        *_task_problems(study),
        *_budget_problems(study),
        *_share_problems(study),
        *_model_problems(study, allowed_factory),
        *_training_problems(study.training),
        *_augmentation_problems(study),
    ]


_LISTED = "folders name no units; list the images and their units in data.index"


def symbols_of(study: StudySchema) -> bool:
    """Whether examples are, or contain, sequences of symbols rather than numbers."""
    data = study.data
    if isinstance(data, TableData):
        return any(isinstance(feature, TextFeature) for feature in data.features.values())
    return isinstance(data, ArrayData) and data.vocabulary_size is not None


def _data_problems(study: StudySchema) -> Iterator[Problem]:
    data = study.data
    if data.classes is not None and len(set(data.classes)) < len(data.classes):
        yield Problem("data.classes", data.classes, "a class appears twice; give each once")
    held_out = data.held_out
    if held_out.path is not None and held_out.fraction is not None:
        yield Problem("data.held_out.fraction", held_out.fraction, "give either a fraction or a path, not both")
    if held_out.index is not None and not (isinstance(data, ImageData) and data.index is not None):
        yield Problem("data.held_out.index", held_out.index, "only images that are listed in data.index have one")
    if not isinstance(data, TableData) and held_out.path is not None and len(held_out.path) > 1:
        yield Problem("data.held_out.path", held_out.path, "give a single path")
    yield from _unit_problems(data)
    if isinstance(data, ImageData):
        yield from _image_problems(data)
    else:
        yield from _owner_problems(data)
    if isinstance(data, TableData):
        yield from _feature_problems(data)
        yield from _column_problems(data)
        yield from _stored_table_problems(data)
    if isinstance(data, ArrayData):
        yield from _array_problems(study, data)
    if isinstance(data, MappedData) and data.unaccounted_scaling:
        yield Problem("data.unaccounted_scaling", True, _NOT_FITTED)


def _owner_problems(data: TableData | ImageData | ArrayData) -> Iterator[Problem]:
    if data.owner is None and data.epsilon is None:
        yield Problem("data.owner", ABSENT, "it is missing; name the column of owners, or data.epsilon for one per row")
    if data.owner is not None and data.epsilon is not None:
        yield Problem("data.epsilon", data.epsilon, "rows have either owners or budgets of their own; leave one out")


def _unit_problems(data: TableData | ImageData | ArrayData) -> Iterator[Problem]:
    if data.unit is None:
        for key in ("unit_name", "max_rows"):
            if getattr(data, key) is not None:
                yield Problem(f"data.{key}", getattr(data, key), "it belongs to data.unit; give that too, or neither")
        return
    if data.unit in (data.owner, data.epsilon, *(data.target or ())):
        fix = "this column is the owner, the budget or the target; name the one that tells who each row is about"
        yield Problem("data.unit", data.unit, fix)
    if data.protected == EXAMPLE:
        yield Problem("data.unit_name", data.protected, 'give another name than "example", such as "patient"')


def _image_problems(data: ImageData) -> Iterator[Problem]:
    if (data.layout is None) == (data.index is None):
        value = ABSENT if data.layout is None else data.layout
        yield Problem("data.layout", value, 'give either layout = "owner/class" or index = "FILE.csv"')
    elif data.index is None:
        for key in ("target", "owner", "epsilon", "unit"):
            if getattr(data, key) is not None:
                fix = "folders name owner and class; leave it out" if key != "unit" else _LISTED
                yield Problem(f"data.{key}", getattr(data, key), fix)
    else:
        if data.target is None:
            yield Problem("data.target", ABSENT, "it is missing; name the column of data.index with the target")
        yield from _owner_problems(data)
        if data.held_out.path is not None and data.held_out.index is None:
            yield Problem("data.held_out.index", ABSENT, "it is missing; name the table of the held-out images")


def _feature_problems(data: TableData) -> Iterator[Problem]:
    for name, feature in data.features.items():
        key = f"data.features.{name}"
        if name in (*data.target, data.epsilon):
            yield Problem(
                key, ABSENT, "data.target or data.epsilon names this column, so it cannot be a feature; leave it out"
            )
        if isinstance(feature, CategoricalFeature) and len(feature.categories) < 2:
            yield Problem(key, list(feature.categories), "give at least two categories")
        if isinstance(feature, UnfittedFeature) and not data.unaccounted_scaling:
            fix = (
                "declare its public range, such as [0, 120], or its categories, which costs no privacy; or fit them to "
                "the training data, which no budget accounts for, with data.unaccounted_scaling = true"
            )
            yield Problem(key, feature.kind, fix)
        if isinstance(feature, TextFeature) and len(data.features) > 1 and name == NUMBERS:
            yield Problem(key, ABSENT, "the columns that are no text go by this name; rename the column of text")


def _column_problems(data: TableData) -> Iterator[Problem]:
    used = used_columns(data)
    for name in data.ignore:
        if name in used:
            yield Problem("data.ignore", name, f"{used[name]} uses this column; leave it out in one of the two places")
    for name in data.drop_missing:
        if name not in used:
            yield Problem("data.drop_missing", name, f"this column is not used; {closest(name, list(used))}")
    try:
        notation_of(data)
    except InvalidArgumentError as error:
        yield Problem("data.thousands", data.thousands, str(error).partition(": ")[2])


_NOT_FITTED = "nothing is fitted to data that stay on disk; leave this out, and declare every range and all categories"


def _stored_table_problems(data: TableData) -> Iterator[Problem]:
    if not data.on_disk:
        return
    for name in (*data.path, *(data.held_out.path or [])):
        if not name.lower().endswith(".parquet"):
            yield Problem("data.on_disk", True, f"only Parquet files stay on disk; convert {name}, or leave this out")
    if data.unaccounted_scaling:
        yield Problem("data.unaccounted_scaling", True, _NOT_FITTED)


def _array_problems(study: StudySchema, data: ArrayData) -> Iterator[Problem]:
    fitted = data.unaccounted_scaling and not _targets_open(study)
    if data.vocabulary_size is not None:
        if data.range is not None or fitted:
            yield Problem("data.vocabulary_size", data.vocabulary_size, "symbols are not scaled; leave the range out")
        return
    if data.range is None and not data.unaccounted_scaling:
        fix = (
            "it is missing; declare the public range of the numbers, such as [0, 255], which costs no privacy (or "
            "vocabulary_size for symbols); or fit it to the training data, which no budget accounts for, with "
            "data.unaccounted_scaling = true"
        )
        yield Problem("data.range", ABSENT, fix)
    if data.range is not None and fitted:
        yield Problem("data.unaccounted_scaling", True, "the range is declared; leave this out")


def _targets_open(study: StudySchema) -> bool:
    """Whether targets have to be scaled and no range is declared."""
    return study.task.kind == "regression" and study.task.range is None


def _task_problems(study: StudySchema) -> Iterator[Problem]:
    task, data = study.task, study.data
    columns = data.target or []
    if len(set(columns)) < len(columns):
        yield Problem("data.target", columns, "a column appears twice; give each once")
    if task.kind == "classification" and len(columns) > 1:
        fix = 'several columns are labels or numbers: set task.kind = "multi-label" or "regression", or name one column'
        yield Problem("data.target", columns, fix)
    if task.kind != "classification":
        yield from _no_class_problems(study)
    for key, value in (("range", task.range), ("loss", task.loss)):
        if value is not None and task.kind != "regression":
            yield Problem(f"task.{key}", value, 'it belongs to numbers: leave it out, or set task.kind = "regression"')
    if _targets_open(study) and (isinstance(data, ImageData) or not data.unaccounted_scaling):
        fix = (
            "it is missing; declare the public range of the target, such as [0, 400], which costs no privacy ([-1, 1] "
            "leaves targets of that range as they are)"
        )
        if not isinstance(data, ImageData):
            fix += (
                "; or fit it to the training data, which no budget accounts for, with data.unaccounted_scaling = true"
            )
        yield Problem("task.range", ABSENT, fix)
    known = len(columns) if not isinstance(data, ArrayData) else None
    if task.range is not None and known is not None and len(task.range) not in (1, known):
        yield Problem("task.range", task.range, "give one range for all of data.target, or one for each")


def _no_class_problems(study: StudySchema) -> Iterator[Problem]:
    """What only classes have."""
    kind, data = study.task.kind, study.data
    if isinstance(data, ImageData) and data.index is None:
        yield Problem("task.kind", kind, "folders name classes; list the images and their targets in data.index")
    if data.classes is not None:
        yield Problem("data.classes", data.classes, f'task.kind = "{kind}" has no classes; leave it out')
    if study.evaluation.balanced:
        yield Problem("evaluation.balanced", True, f'task.kind = "{kind}" has no classes to balance; leave it out')


def _budget_problems(study: StudySchema) -> Iterator[Problem]:
    budgets = study.budgets
    per_row = study.data.epsilon is not None
    given = [key for key in ("owners", "file") if getattr(budgets, key) is not None]
    if per_row and given:
        yield Problem(f"budgets.{given[0]}", ABSENT, "data.epsilon gives every row its budget; leave this out")
    elif not per_row and len(given) != 1:
        yield Problem("budgets.owners", ABSENT, "give either [budgets.owners] with name = epsilon, or budgets.file")
    unnamed = [name for name, budget in (budgets.owners or {}).items() if budget.delta is None]
    if budgets.delta is None and (per_row or unnamed):
        yield Problem("budgets.delta", ABSENT, "it is missing; give a delta such as 1e-6, well below 1 / examples")


def _share_problems(study: StudySchema) -> Iterator[Problem]:
    shares, kind = study.shares, study.task.kind
    given = [key for key in ("owners", "file") if getattr(shares, key) is not None]
    if len(given) > 1:
        yield Problem("shares.file", shares.file, "the shares are in [shares.owners]; give them in one place")
    if study.training.adjustment is not None:
        if kind != "classification":
            yield Problem("training.adjustment", ABSENT, f'task.kind = "{kind}" has no classes; leave it out')
        elif not (given or shares.count):
            fix = "it needs class shares: declare them in [shares.owners], or set shares.count = true"
            yield Problem("training.adjustment", ABSENT, fix)
    elif kind != "classification" and (given or shares.count):
        yield Problem("shares", ABSENT, f'task.kind = "{kind}" has no classes; leave it out')


def _model_problems(study: StudySchema, allowed_factory: str | None) -> Iterator[Problem]:
    model = study.model
    try:
        json.dumps(model.arguments, allow_nan=False)
    except (TypeError, ValueError):
        yield Problem("model.arguments", model.arguments, "give text, finite numbers, true or false, and lists of them")
    if model.name in BUILT_IN:
        names = argument_names(model.name)
        for key in model.arguments:
            if key not in names:
                yield Problem(
                    f"model.arguments.{key}", model.arguments[key], f"no such argument; {closest(key, names)}"
                )
        if isinstance(study.data, TableData) and len(study.data.features) > 1 and symbols_of(study):
            yield Problem("model.name", model.name, OWN_MODEL)
        elif (model.name == "lstm") != symbols_of(study):
            fix = '"lstm" reads text or symbols, and "mlp" and "cnn" read numbers: choose the model that fits the data'
            yield Problem("model.name", model.name, fix)
        if model.name == "cnn" and isinstance(study.data, TableData):
            yield Problem("model.name", model.name, '"cnn" reads images; choose "mlp" for a table')
    elif not FACTORY.fullmatch(model.name):
        yield Problem("model.name", model.name, f'choose {", ".join(BUILT_IN)} or "package.module:factory"')
    elif model.name != allowed_factory:
        fix = f"importing it would run its code: read it, and if you trust it add --allow-factory {model.name}"
        yield Problem("model.name", model.name, fix)


def _training_problems(training: TrainingSection) -> Iterator[Problem]:
    variant = training.variant or METHODS[training.method].variant
    if training.method == "dp-sgd" and variant != "uniform":
        yield Problem("training.variant", variant, "dp-sgd plans for all owners alike: leave it out, or choose idp-sgd")
    if training.tail is not None and METHODS[training.method].importance is None:
        yield Problem("training.tail", ABSENT, f"{training.method} has no tail: leave it out, or choose ino-sgd")
    if training.momentum is not None and training.optimizer not in ("sgd", "rmsprop"):
        yield Problem("training.momentum", training.momentum, f"{training.optimizer} has none; leave it out")
    if training.learning_rate_unit == "noise" and training.optimizer != "sgd":
        fix = f'{training.optimizer} rescales gradients; choose "batch", or optimizer = "sgd"'
        yield Problem("training.learning_rate_unit", "noise", fix)
    for key, kind in (("averaging_decay", "exponential"), ("averaging_share", "tail")):
        if getattr(training, key) is not None and training.averaging != kind:
            yield Problem(f"training.{key}", getattr(training, key), f'it belongs to averaging = "{kind}"')
    yield from _tail_problems(training.tail)
    yield from _target_problems(training, variant)


def _augmentation_problems(study: StudySchema) -> Iterator[Problem]:
    shaped = isinstance(study.data, ImageData | ArrayData) and not symbols_of(study)
    if study.training.augmentation is not None and not shaped:
        yield Problem("training.augmentation", ABSENT, "it crops images; leave it out for a table or symbols")


def _target_problems(training: TrainingSection, variant: str) -> Iterator[Problem]:
    sizes = (training.expected_batch_size, training.clipping_threshold)
    if training.epochs is not None and training.steps is not None:
        yield Problem("training.epochs", training.epochs, "give either steps or epochs, not both")
    if training.epochs is not None and training.expected_batch_size is None:
        yield Problem("training.expected_batch_size", ABSENT, "epochs are counted by it; give it, or give steps")
        return
    if training.steps is not None and training.warmup >= training.steps:
        yield Problem("training.warmup", training.warmup, f"give fewer than the {training.steps} steps")
    if training.steps is None and training.epochs is None:
        if None in (*sizes, training.noise_scale):
            fix = (
                "it is missing; give the number of steps, or of epochs, or a noise_scale together with "
                "expected_batch_size and clipping_threshold, and as many steps are taken as the budgets allow"
            )
            yield Problem("training.steps", ABSENT, fix)
        return
    try:
        PlanConfig(
            steps=training.steps or 1,
            variant=variant,
            expected_batch_size=training.expected_batch_size,
            clipping_threshold=training.clipping_threshold,
            noise_scale=training.noise_scale,
        )
    except InvalidArgumentError as error:
        given = ("expected_batch_size", "clipping_threshold", "noise_scale")
        missing = [key for key in given if getattr(training, key) is None]
        key = missing[0] if len(missing) > 1 else "noise_scale"
        value = getattr(training, key)
        fix = str(error).partition(": ")[2]
        yield Problem(f"training.{key}", ABSENT if value is None else value, fix)


def _tail_problems(tail: TailSection | None) -> Iterator[Problem]:
    if tail is None:
        return
    if tail.share is not None and tail.length is not None:
        yield Problem("training.tail.length", tail.length, "give either a share or a length, not both")
    if tail.levels is not None:
        if tail.shape != "step":
            yield Problem("training.tail.levels", tail.levels, 'levels belong to shape = "step"')
        try:
            StepTail(tuple(tail.levels))
        except InvalidArgumentError as error:
            yield Problem("training.tail.levels", tail.levels, str(error))
