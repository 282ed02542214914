"""Data of a study: files become training examples with owners, and held-out examples.

Held-out rows are chosen by a coin for each, drawn from a seed by the row's position. One row more or less at the end of
a file therefore moves no other row, and training sets that differ by one example differ by that one alone. Examples
that are held out are not protected: they are never trained on, but what is reported about them is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inosgd._arrays import BoolArray, IntArray, RowArray, pieces
from inosgd.analysis.task import Task, classification
from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners
from inosgd.randomness import SeededSource, uniforms
from inosgd.study.budgets import budgets_by_epsilon, study_budgets
from inosgd.study.encoding import Encoding
from inosgd.study.labels import Names
from inosgd.study.opening import open_source, open_source_at
from inosgd.study.reading import StudyFile
from inosgd.study.sources import Progress, Source, label_error
from inosgd.study.study import PUBLIC_RANGES, Groups, HeldOutExamples, LabelledExamples, StudyData, only_rows

DEFAULT_FRACTION = 0.2
MOST_CLASSES = 100
FITTED_SCALING = "fitted to the training data, not accounted for"


def load_data(study: StudyFile, progress: Progress | None = None, *, seed: int = 0) -> StudyData:
    """Read and check everything that the study names; nothing is written.

    Another ``seed`` than 0 holds out other rows, unless the study keeps files apart for that.
    """
    budgets = study_budgets(study)
    source = open_source(study, progress=progress)
    judged = source
    if study.schema.data.held_out.path is not None:
        judged = open_source(study, held_out=True, progress=progress)
        training, held_out = np.arange(len(source.labels.targets)), np.arange(len(judged.labels.targets))
    else:
        training, held_out = _split(study, source, seed)
    classes = _classes(study, source, training)
    targets = _class_numbers(source, training, classes, _NOT_DECLARED)
    judged_targets = _class_numbers(judged, held_out, classes, _ONLY_HELD_OUT)
    owners, groups = _owners(study, source, training, judged, held_out, budgets)
    encoding = source.encoding(training)
    inputs = source.encode(encoding)
    judged_inputs = inputs if judged is source else judged.encode(encoding)
    examples = LabelledExamples(_rows(inputs, training), torch.from_numpy(targets))
    kept = HeldOutExamples(_rows(judged_inputs, held_out), torch.from_numpy(judged_targets).long(), groups)
    task = classification(classes, balanced=study.schema.evaluation.balanced)
    return _study_data(owners, examples, kept, encoding, task)


def joined_data(study: StudyFile, data: StudyData, path: Path, budgets: dict[str, Budget]) -> StudyData:
    """What owners who join bring: a file or folder of the same kind as the study's own, encoded like ``data``."""
    source = open_source_at(study, path)
    chosen = np.zeros(len(source.labels.targets), dtype=np.bool_)
    section = study.schema.data.held_out
    if section.path is None:
        fraction = DEFAULT_FRACTION if section.fraction is None else section.fraction
        chosen = _held_out_of(source, fraction, section.seed)
    training, held_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if not len(training):
        raise InvalidArgumentError(f"{source.path}: no row is left to train on; give more rows")
    targets = _class_numbers(source, training, data.task.names, _NEW_CLASS)
    judged_targets = _class_numbers(source, held_out, data.task.names, _NEW_CLASS)
    owners, groups = _owners(study, source, training, source, held_out, budgets)
    encoding = encoding_of(data)
    inputs = source.encode(encoding)
    examples = LabelledExamples(_rows(inputs, training), torch.from_numpy(targets))
    kept = HeldOutExamples(_rows(inputs, held_out), torch.from_numpy(judged_targets).long(), groups)
    return _study_data(owners, examples, kept, encoding, data.task)


def _study_data(
    owners: Owners, examples: LabelledExamples, judged: HeldOutExamples, encoding: Encoding, task: Task
) -> StudyData:
    """Groups are owners, whose kinds of data are all that a study file tells apart."""
    return StudyData(
        owners,
        examples,
        judged if len(judged) else None,
        task,
        Groups.of_owners(owners.table),
        owners.assignment,
        encoding,
        FITTED_SCALING if encoding.fitted else PUBLIC_RANGES,
    )


def held_out_rows(count: int, fraction: float, seed: int) -> BoolArray:
    """Which of ``count`` rows are held out: each by a coin of its own, whatever the number of rows."""
    source, held_out = SeededSource(seed).stream("held-out"), np.zeros(count, dtype=np.bool_)
    for start, piece in pieces(held_out):
        held_out[start : start + len(piece)] = uniforms(source, len(piece)) < fraction
    return held_out


def encoding_of(data: StudyData) -> Encoding:
    """How the data were encoded.

    Raises:
        InvalidArgumentError: If that was not kept: the data are not those of a study file.
    """
    if data.encoding is None:
        raise InvalidArgumentError("study: its data do not come from files, so no others can be read like them")
    return data.encoding


def _held_out_of(source: Source, fraction: float, seed: int) -> BoolArray:
    """Which rows are held out, by their places in the file: a row that is left out moves no other."""
    rows, count = source.labels.rows, len(source.labels.targets)
    if rows is None:
        return held_out_rows(count, fraction, seed)
    chosen: BoolArray = held_out_rows(source.labels.position(count - 1) + 1, fraction, seed)[rows]
    return chosen


def _split(study: StudyFile, source: Source, seed: int) -> tuple[IntArray, IntArray]:
    section, count = study.schema.data.held_out, len(source.labels.targets)
    fraction = DEFAULT_FRACTION if section.fraction is None else section.fraction
    chosen = _held_out_of(source, fraction, section.seed + seed)
    training, held_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if count < 2 or not len(training) or (fraction > 0 and not len(held_out)):
        raise InvalidArgumentError(
            f"{source.path}: {count} row{'s' * (count != 1)}, of which data.held_out.fraction = {fraction:g} leaves "
            f"{len(training)} to train on and {len(held_out)} to judge by; give more rows, or another fraction or seed"
        )
    return training, held_out


def _rows(inputs: Any, rows: IntArray) -> Any:
    return only_rows(inputs, torch.from_numpy(rows))


def _classes(study: StudyFile, source: Source, training: IntArray) -> tuple[str, ...]:
    declared = study.schema.data.classes
    if declared is not None:
        return tuple(declared)
    labels = source.labels
    found = sorted(labels.targets.of(training), key=_natural)
    if len(found) < 2:
        raise InvalidArgumentError(
            f"{source.path}: {labels.targets_from}: all training examples are of the class {found[0]!r}; a model needs "
            "at least two classes, so correct data.target or add examples"
        )
    if len(found) > max(MOST_CLASSES, len(training) // 2):
        raise InvalidArgumentError(
            f"{source.path}: {labels.targets_from} has {len(found)} different values in {len(training)} examples; name "
            "classes in data.target, or declare data.classes"
        )
    return tuple(found)


def _natural(text: str) -> tuple[int, float, str]:
    """Whole numbers by size, then the rest by letter."""
    return (0, float(text), "") if text.lstrip("-").isdecimal() and len(text) < 16 else (1, 0.0, text)


_NOT_DECLARED = "is none of data.classes; correct it, or add it to data.classes"
_NEW_CLASS = "is none of the model's classes; leave the row out, or train anew"
_ONLY_HELD_OUT = (
    "is a class that only held-out examples have, so no model can learn it; choose another data.held_out.seed, add "
    "training examples, or leave the class out"
)


def _class_numbers(source: Source, rows: IntArray, classes: Sequence[str], problem: str) -> RowArray:
    labels = source.labels
    codes = labels.targets.among(classes, rows)
    if (codes < 0).any():
        row = int(rows[int(np.argmax(codes < 0))])
        raise label_error(source, labels.targets_from, labels.targets[row], row, problem)
    return codes


def _owners(
    study: StudyFile,
    source: Source,
    training: IntArray,
    judged: Source,
    held_out: IntArray,
    budgets: dict[str, Budget] | None,
) -> tuple[Owners, IntArray]:
    """Owners of the training rows, and the table row of the owner of each held-out one (-1 for none)."""
    names, judged_names = source.labels.owners, judged.labels.owners
    if budgets is None:
        names, budgets = _by_epsilon(source, study.schema.budgets.delta)
        judged_names, _ = _by_epsilon(judged, study.schema.budgets.delta)
        present = set(names.of(training))
        budgets = {name: budgets[name] for name in budgets if name in present}
    elif names is None or judged_names is None:
        raise InvalidArgumentError(f"{source.path}: it names no owners; give data.owner")
    rows = names.among(list(budgets), training)
    if (rows < 0).any():
        row = int(training[int(np.argmax(rows < 0))])
        place = study.schema.budgets.file or "[budgets.owners]"
        fix = f"is an owner without a budget; add it to {place}, or correct it: {closest(names[row], list(budgets))}"
        raise label_error(source, source.labels.owners_from, names[row], row, fix)
    owners = Owners.from_rows(rows, budgets)
    return owners, judged_names.among(owners.table.names, held_out).astype(np.int64)


def _by_epsilon(source: Source, delta: float | None) -> tuple[Names, dict[str, Budget]]:
    if source.labels.epsilons is None or delta is None:
        raise InvalidArgumentError(f"{source.path}: it names no budgets; give data.epsilon and budgets.delta")
    return budgets_by_epsilon(source.labels.epsilons, delta)
