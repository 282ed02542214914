"""Data of a study: files become training examples with owners, and held-out examples.

Held-out rows are chosen by a coin for each, drawn from a seed by the row's position. One row more or less at the end of
a file therefore moves no other row, and training sets that differ by one example differ by that one alone. Where rows
are gathered in units, there is a coin for each unit, drawn by its name: no unit is cut in two, and none moves another.
Examples that are held out are not protected: they are never trained on, but what is reported about them is exact.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inosgd._arrays import BoolArray, IntArray, pieces
from inosgd.analysis.task import Task
from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.owners import Budget, Owners
from inosgd.randomness import SeededSource, mixed_words, uniforms
from inosgd.study.budgets import budgets_by_epsilon, study_budgets
from inosgd.study.encoding import Encoding
from inosgd.study.labels import Names
from inosgd.study.opening import open_source, open_source_at
from inosgd.study.reading import StudyFile
from inosgd.study.shares import declared_shares
from inosgd.study.sources import Progress, Source, label_error
from inosgd.study.study import (
    FITTED_SCALING,
    PUBLIC_RANGES,
    Groups,
    HeldOutExamples,
    LabelledExamples,
    StudyData,
    only_rows,
    usable,
)
from inosgd.study.tasks import NEW_CLASS, NOT_DECLARED, ONLY_HELD_OUT, fits_targets, targets_of, task_of
from inosgd.units import Units, key_of

DEFAULT_FRACTION = 0.2


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
    encoding = source.encoding(training)
    inputs = source.encode(encoding)
    judged_inputs = inputs if judged is source else judged.encode(encoding)
    task = task_of(study.schema, source, training)
    targets = targets_of(source, training, task, NOT_DECLARED, within=True)
    judged_targets = targets_of(judged, held_out, task, ONLY_HELD_OUT, within=False)
    _refuse_common_units(study, source, training, judged, held_out)
    owners, groups = _owners(study, source, training, judged, held_out, budgets)
    examples = LabelledExamples(_rows(inputs, training), targets)
    kept = LabelledExamples(_rows(judged_inputs, held_out), judged_targets)
    fitted = encoding.fitted or fits_targets(study.schema)
    scaling = FITTED_SCALING if fitted else PUBLIC_RANGES
    data = _study_data(owners, examples, kept, groups, encoding, task, scaling)
    data = _in_units(study, data, source, training, judged, held_out)
    return replace(data, shares=declared_shares(study, task, data.owners.table))


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
    encoding = encoding_of(data)
    inputs = source.encode(encoding)
    targets = targets_of(source, training, data.task, NEW_CLASS, within=True)
    judged_targets = targets_of(source, held_out, data.task, NEW_CLASS, within=False)
    owners, groups = _owners(study, source, training, source, held_out, budgets)
    examples = LabelledExamples(_rows(inputs, training), targets)
    kept = LabelledExamples(_rows(inputs, held_out), judged_targets)
    joined = _study_data(owners, examples, kept, groups, encoding, data.task, data.scaling)
    joined = _in_units(study, joined, source, training, source, held_out)
    _refuse_known_units(data, joined, source)
    return joined


def _study_data(
    owners: Owners,
    examples: LabelledExamples,
    judged: LabelledExamples,
    groups: IntArray,
    encoding: Encoding,
    task: Task,
    scaling: str,
) -> StudyData:
    """Groups are owners, whose kinds of data are all that a study file tells apart."""
    return StudyData(
        owners,
        examples,
        HeldOutExamples(judged.inputs, usable(judged.targets), groups) if len(judged) else None,
        task,
        Groups.of_owners(owners.table),
        owners.assignment,
        encoding,
        scaling,
    )


def _in_units(
    study: StudyFile, data: StudyData, source: Source, training: IntArray, judged: Source, held_out: IntArray
) -> StudyData:
    """The data with its rows gathered in units, if the study does so: owners and groups are then those of units."""
    section, names = study.schema.data, source.labels.units
    if names is None or judged.labels.units is None:
        return data
    units = Units.from_codes(
        names.codes[training],
        names.names,
        name=section.protected,
        max_rows=section.max_rows,
        reduction=section.unit_gradient,
    )
    owners = units.owned_by(data.owners, section.several_owners)
    keys = np.array([key_of(name) for name in judged.labels.units.of(held_out)], dtype=np.uint64)
    return replace(
        data,
        owners=owners,
        groups=Groups.of_owners(owners.table),
        train_groups=owners.assignment,
        units=units,
        row_owners=data.owners.assignment,
        held_out_units=keys,
    )


def _refuse_common_units(
    study: StudyFile, source: Source, training: IntArray, judged: Source, held_out: IntArray
) -> None:
    """Raise if a unit has rows in the training file and in the one that is held out."""
    names, others = source.labels.units, judged.labels.units
    if names is None or others is None:
        return
    common = set(names.of(training)) & set(others.of(held_out))
    if common:
        row = next(row for row in held_out.tolist() if others[row] in common)
        unit = study.schema.data.protected
        fix = f"is a {unit} of the training data too; keep all rows of a {unit} on one side"
        raise label_error(judged, judged.labels.units_from, others[row], row, fix)


def _refuse_known_units(data: StudyData, joined: StudyData, source: Source) -> None:
    """Raise if owners who join bring rows of units that have rows already: their budgets would be two."""
    if data.units is None or joined.units is None:
        return
    known = [data.units.keys, *([] if data.held_out_units is None else [data.held_out_units])]
    if np.isin(joined.units.keys, np.concatenate(known)).any():
        unit = data.units.name
        raise InvalidArgumentError(
            f"{source.path}: {source.labels.units_from}: a {unit} of this file is in the study's data already; all "
            f"rows of a {unit} come together, so leave it out"
        )


def held_out_names(names: Names, fraction: float, seed: int) -> BoolArray:
    """Which rows are held out with their units: each unit by a coin of its own, a function of seed and name."""
    word = SeededSource(seed).stream("held-out units").words(1)[0]
    words = mixed_words(np.array([key_of(name) for name in names.names], dtype=np.uint64), word)
    coins = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    chosen: BoolArray = (coins < fraction)[names.codes]
    return chosen


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
    """Which rows are held out, by their places in the file: a row that is left out moves no other. Units stay whole."""
    if source.labels.units is not None:
        return held_out_names(source.labels.units, fraction, seed)
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
        names, budgets = _by_epsilon(source, study.schema.budgets.delta, training)
        judged_names, _ = _by_epsilon(judged, study.schema.budgets.delta, held_out)
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


def _by_epsilon(source: Source, delta: float | None, rows: IntArray) -> tuple[Names, dict[str, Budget]]:
    """Rows by what they allow; the rows of a unit allow what the strictest of those ``rows`` of it allows."""
    if source.labels.epsilons is None or delta is None:
        raise InvalidArgumentError(f"{source.path}: it names no budgets; give data.epsilon and budgets.delta")
    epsilons, units = source.labels.epsilons, source.labels.units
    if units is not None:
        smallest = np.full(len(units.names), np.inf)
        np.minimum.at(smallest, units.codes[rows], epsilons[rows])
        epsilons = np.minimum(epsilons, smallest[units.codes])
    return budgets_by_epsilon(epsilons, delta)
