"""The task of a study file, and its targets as a model is trained on them.

Guarantee:
    With declared classes, labels and ranges the target of a row is computed from that row and from the study file
    alone, so it costs no privacy: adding, removing or changing a row changes no other row's target. Classes that are
    not declared are read off the training data and treated as public. A range that is not declared is fitted to the
    training data, which no budget accounts for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from inosgd._arrays import IntArray
from inosgd.analysis.task import Task, classification, multi_label, regression, scaled
from inosgd.data.scaling import Range
from inosgd.errors import InvalidArgumentError
from inosgd.study.labels import Names, Numbers
from inosgd.study.schema import StudySchema
from inosgd.study.sources import Source, label_error
from inosgd.study.targets import FOR_NUMBERS, declared_ranges

MOST_CLASSES = 100

NOT_DECLARED = "is none of data.classes; correct it, or add it to data.classes"
NEW_CLASS = "is none of the model's classes; leave the row out, or train anew"
ONLY_HELD_OUT = (
    "is a class that only held-out examples have, so no model can learn it; choose another data.held_out.seed, add "
    "training examples, or leave the class out"
)


def task_of(study: StudySchema, source: Source, training: IntArray) -> Task:
    """What the study declares; classes and ranges that it leaves open are those of the ``training`` rows."""
    targets = source.labels.targets
    if isinstance(targets, Names):
        return classification(_classes(study, source, targets, training), balanced=study.evaluation.balanced)
    if study.task.kind == "multi-label":
        return multi_label(targets.names)
    columns = zip(targets.values.T, declared_ranges(study, targets.names), strict=True)
    ranges = [Range.fitted(values[training]) if declared is None else declared for values, declared in columns]
    limits = [(each.low, each.high) for each in ranges]
    return regression(targets.names, ranges=limits, loss=study.task.loss or "squared error")


def fits_targets(study: StudySchema) -> bool:
    """Whether the range of targets is fitted to the training data: unaccounted."""
    return study.task.kind == "regression" and study.task.range is None


def targets_of(source: Source, rows: IntArray, task: Task, problem: str, *, within: bool) -> torch.Tensor:
    """Class numbers of ``rows``, labels, or numbers scaled by their ranges; ``problem`` is that of another class.

    A model is trained on numbers ``within`` their ranges, and judged by held-out ones as they are.
    """
    targets = source.labels.targets
    if isinstance(targets, Names):
        return _class_numbers(source, targets, rows, task.names, problem)
    _check_names(source, targets, task)
    return torch.from_numpy(scaled(task, targets.values[rows], within=within).astype(np.float32))


def _classes(study: StudySchema, source: Source, targets: Names, training: IntArray) -> tuple[str, ...]:
    declared = study.data.classes
    if declared is not None:
        return tuple(declared)
    found, origin = sorted(targets.of(training), key=_natural), source.labels.targets_from
    if len(found) < 2:
        raise InvalidArgumentError(
            f"{source.path}: {origin}: all training examples are of the class {found[0]!r}; a model needs at least two "
            "classes, so correct data.target or add examples"
        )
    if len(found) > max(MOST_CLASSES, len(training) // 2):
        more = f"; {FOR_NUMBERS}" if all(map(_is_number, found)) else ""
        raise InvalidArgumentError(
            f"{source.path}: {origin} has {len(found)} different values in {len(training)} examples, such as "
            f"{found[0]!r}; name classes in data.target, or declare data.classes{more}"
        )
    return tuple(found)


def _natural(text: str) -> tuple[int, float, str]:
    """Whole numbers by size, then the rest by letter."""
    return (0, float(text), "") if text.lstrip("-").isdecimal() and len(text) < 16 else (1, 0.0, text)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _class_numbers(
    source: Source, targets: Names, rows: IntArray, classes: Sequence[str], problem: str
) -> torch.Tensor:
    codes = targets.among(classes, rows)
    if (codes < 0).any():
        row = int(rows[int(np.argmax(codes < 0))])
        raise label_error(source, source.labels.targets_from, targets[row], row, problem)
    return torch.from_numpy(codes)


def _check_names(source: Source, targets: Numbers, task: Task) -> None:
    """Arrays of held-out examples, or of owners who join, may have another number of columns."""
    if targets.names != task.names:
        raise InvalidArgumentError(
            f"{source.path}: {source.labels.targets_from}: {len(targets.names)} targets, and the training data have "
            f"{task.outputs}; give the same columns"
        )
