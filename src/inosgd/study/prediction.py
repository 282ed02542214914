"""Prediction: a saved model applied to new data of the kind it was trained on.

Tables are read piece by piece, so that they may be larger than memory. What cannot be used of the data, such as a row
with a text where a number should be, has no prediction, and it is said why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from inosgd.analysis.task import Task, predictions
from inosgd.data.arrays import Array, array_numbers, read_arrays
from inosgd.data.image_folder import find_images, read_images
from inosgd.data.pieces import table_pieces
from inosgd.data.tables import Table
from inosgd.errors import CellsError, InvalidArgumentError
from inosgd.models.saved import load_weights, read_description
from inosgd.study.encoding import ArrayEncoding, Encoding, ImageEncoding, TableEncoding, encoding_from_json
from inosgd.study.inputs import Shape, as_shape
from inosgd.study.models import build_model, model_problem
from inosgd.study.sources import Pixels

AT_ONCE = 1000
IMAGES = 256
"""So many images are in memory at once."""

PROBLEM = "problem"
"""The column that says why an example has no prediction."""


@dataclass(frozen=True)
class Part:
    """Predictions of some examples, in their order.

    Attributes:
        rows: For each example the values of `Predictions.names`; None where there is none.
        problems: How many examples have no prediction, by reason.
        outside: How many values were brought to the ends of their range, by column.
        done: The share of the data that has been read.
    """

    rows: list[tuple[Any, ...]]
    problems: Counter[str]
    outside: Counter[str]
    done: float


@dataclass(frozen=True)
class Predictions:
    """What a model predicts of each example: the names of all columns, and their values part by part.

    The first column is the row number, counted from 1, or the name of a file. Then come so many that are ``kept``, the
    predictions, and why there is none.
    """

    names: tuple[str, ...]
    kept: int
    parts: Iterator[Part]


class _Reason(NamedTuple):
    """Why an example has no prediction: with its value, without it so that equal ones can be counted, and in full."""

    text: str
    general: str
    error: str


@dataclass(frozen=True, eq=False)
class _Some:
    """Some examples as a model reads them, and what is written about these and others in between.

    Attributes:
        order: What all examples are called, in their order.
        names: Those of ``inputs``.
        inputs: As the model reads them; None if there are none.
        refused: Why the others have no prediction.
        kept: Values that are copied.
        outside: How many values were brought to the ends of their range, by column.
        done: The share of the data that has been read.
    """

    order: list[Any]
    names: list[Any]
    inputs: Any
    refused: dict[Any, _Reason]
    done: float
    kept: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    outside: Counter[str] = field(default_factory=Counter)


def predict(
    folder: Path,
    data: Path,
    *,
    delimiter: str | None = None,
    allowed_factory: str | None = None,
    keep: Sequence[str] = (),
    refuse_problems: bool = False,
) -> Predictions:
    """Apply the model in ``folder`` to ``data``: a table, images, or arrays, as in its training.

    Args:
        folder: Where the model is.
        data: A table, a folder of images or an image, or arrays.
        delimiter: What separates the cells of a text file; the study's unless given.
        allowed_factory: The factory that may be imported, if the model names one.
        keep: Columns of a table that are copied.
        refuse_problems: Raise for the first example that cannot be used, instead of saying so in its row.
    """
    description = read_description(folder)
    model = load_weights(folder, _model(folder, description, allowed_factory))
    encoding, task, shape = _understood(folder, description)
    if encoding.shape != shape:
        raise InvalidArgumentError(f"{folder}: its inputs are not those that its model reads; save it again")
    if not data.exists():
        raise InvalidArgumentError(f"{data}: there is no such file; correct the path")
    if keep and not isinstance(encoding, TableEncoding):
        raise InvalidArgumentError(f"keep={keep[0]!r}: only tables have columns to keep; leave it out")
    predicted = list(predictions(task, np.zeros((0, task.outputs))))
    names = _names("file" if isinstance(encoding, ImageEncoding) else "row", keep, predicted)
    read = _read(encoding, data, delimiter, keep, refuse_problems)
    return Predictions(names, len(keep), _parts(folder, model, task, data, read, len(keep), len(predicted)))


def _names(example: str, keep: Sequence[str], predicted: Sequence[str]) -> tuple[str, ...]:
    """The names of all columns, each once: a kept column keeps its name, and others give way."""
    outcomes = [f"predicted_{name}" if name in keep else name for name in predicted]
    taken, problem = {*keep, *outcomes}, PROBLEM
    while example in taken:  # a target may be called so
        example = f"_{example}"
    while problem in taken:
        problem = f"_{problem}"
    return (example, *keep, *outcomes, problem)


def _parts(
    folder: Path, model: nn.Module, task: Task, data: Path, read: Iterator[_Some], kept: int, predicted: int
) -> Iterator[Part]:
    """The predictions of what is ``read``; refused if none of it can be used."""
    used, first = 0, ""
    nothing, none_kept = (None,) * predicted, (None,) * kept
    for some in read:
        outputs = _outputs(model, some.inputs)
        if outputs is not None and task.outputs != outputs.shape[1]:
            raise InvalidArgumentError(f"{folder}: {task.outputs} names for {outputs.shape[1]} outputs; save it again")
        columns = {} if outputs is None else predictions(task, outputs.double().numpy())
        values = dict(zip(some.names, zip(*columns.values(), strict=True), strict=True)) if columns else {}
        texts = {name: reason.text for name, reason in some.refused.items()}
        rows = [
            (name, *some.kept.get(name, none_kept), *values.get(name, nothing), texts.get(name)) for name in some.order
        ]
        used += len(some.names)
        first = first or next((reason.error for reason in some.refused.values()), "")
        yield Part(rows, Counter(reason.general for reason in some.refused.values()), some.outside, some.done)
    if not used:
        raise InvalidArgumentError(f"nothing in {data} can be used: {first}")


def _model(folder: Path, description: Mapping[str, Any], allowed_factory: str | None) -> nn.Module:
    architecture = description.get("architecture")
    if not isinstance(architecture, Mapping) or not isinstance(architecture.get("study", ""), str):
        raise InvalidArgumentError(f"{folder}: its description cannot be understood (architecture); save it again")
    if "study" in architecture:
        return _study_model(folder, architecture["study"])
    try:
        return build_model(
            architecture["name"],
            architecture["arguments"],
            inputs=architecture["inputs"],
            symbols=architecture["symbols"],
            outputs=architecture["outputs"],
            seed=architecture["seed"],
            allowed_factory=allowed_factory,
            folder=Path.cwd(),
        )
    except Exception as error:  # a factory is the user's own code and may raise anything
        raise InvalidArgumentError(f"{folder}: {model_problem(error)}") from error


def _study_model(folder: Path, name: str) -> nn.Module:
    """The model of a study without a file, before it was trained."""
    from inosgd.study.built_in import STUDIES  # they bring scikit-learn, which other models do not need

    study = STUDIES.get(name)
    if study is None:
        raise InvalidArgumentError(
            f"{folder}: it is a model of the study {name!r}, whose inputs do not come from tables; apply it in Python "
            "with inosgd.models.saved.load_weights"
        )
    return study.model(study.split(0), 0)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Any) -> torch.Tensor | None:
    if inputs is None or not len(inputs):
        return None
    return torch.cat([model(inputs[start : start + AT_ONCE]) for start in range(0, len(inputs), AT_ONCE)])


def _understood(folder: Path, description: Mapping[str, Any]) -> tuple[Encoding, Task, Shape]:
    """How inputs are encoded, what the model was trained for, and the shape of an example."""
    try:
        shape = as_shape(description["architecture"]["inputs"])
        return encoding_from_json(description["inputs"]), Task.from_json(description["task"]), shape
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{folder}: its description cannot be understood ({error!r}); save it again"
        ) from None


def _read(
    encoding: Encoding, data: Path, delimiter: str | None, keep: Sequence[str], refuse_problems: bool
) -> Iterator[_Some]:
    """The examples in ``data``, some at a time; with ``refuse_problems`` the first problem is raised."""
    if isinstance(encoding, TableEncoding):
        found = _read_table(encoding, data, delimiter, keep)
    elif isinstance(encoding, ImageEncoding):
        found = _read_images(encoding, data)
    else:
        found = _read_array(encoding, data)
    for some in found:
        if refuse_problems and some.refused:
            raise InvalidArgumentError(next(iter(some.refused.values())).error)
        yield some


def _read_table(encoding: TableEncoding, data: Path, delimiter: str | None, keep: Sequence[str]) -> Iterator[_Some]:
    wanted = dict.fromkeys(encoding.columns, "the model reads it")
    for piece in table_pieces(data, wanted, keep, delimiter or encoding.notation.delimiter):
        refused = {
            place + 1: _Reason(_short(problem), _short(problem), f"{data}: row {place + 1} {problem}")
            for place, problem in piece.refused.items()
        }
        rows = (piece.table.positions + 1).tolist()
        table, inputs = _encoded(encoding, piece.table, refused)
        outside = {} if inputs is None else encoding.outside(table)
        yield _Some(
            sorted([*rows, *(place + 1 for place in piece.refused)]),
            (table.positions + 1).tolist(),
            inputs,
            dict(sorted(refused.items())),
            piece.done,
            dict(zip(rows, zip(*piece.kept.values(), strict=True), strict=True)) if keep else {},
            Counter({name: int(flags.sum()) for name, flags in outside.items() if flags.any()}),
        )


def _encoded(encoding: TableEncoding, table: Table, refused: dict[int, _Reason]) -> tuple[Table, Any]:
    """The rows that can be used and their inputs; the others go into ``refused``.

    An error names all cells of a column that it is about: as many rounds are needed as there are such kinds of problem.
    """
    while len(table):
        try:
            return table, encoding.encode(table)
        except CellsError as error:
            problem, wrong = _short(error.problem), np.isin(table.positions, error.rows)
            general = f"{error.column}: {problem}"
            for row in np.flatnonzero(wrong).tolist():
                text = f"{error.column}: {table.value(error.column, row)!r} {problem}"
                refused[int(table.positions[row]) + 1] = _Reason(text, general, str(error))
            table = table.only(~wrong)
    return table, None


def _read_images(encoding: ImageEncoding, data: Path) -> Iterator[_Some]:
    paths = find_images(data)
    for start in range(0, len(paths), IMAGES):
        found, refused = {}, {}
        for path in paths[start : start + IMAGES]:
            name = path.name if data.is_file() else path.relative_to(data).as_posix()
            try:
                found[name] = read_images([path], 1, encoding.form)
            except InvalidArgumentError as error:
                problem = _short(str(error).removeprefix(f"{path}: "))
                refused[name] = _Reason(problem, problem, str(error))
        inputs = Pixels(torch.cat(list(found.values()))) if found else None
        done = min((start + IMAGES) / len(paths), 1.0)
        yield _Some(sorted([*found, *refused]), list(found), inputs, refused, done)


def _read_array(encoding: ArrayEncoding, data: Path) -> Iterator[_Some]:
    array = read_arrays(data, {encoding.name: "the model reads it"})[encoding.name]
    _array_inputs(encoding, data, np.zeros_like(array[:1]), 0)  # types and shapes are those of all rows
    for start in range(0, len(array), AT_ONCE):
        piece = array[start : start + AT_ONCE]
        good, refused = np.ones(len(piece), dtype=np.bool_), {}
        inputs: torch.Tensor | None
        try:
            inputs = _array_inputs(encoding, data, piece, start)
        except InvalidArgumentError:
            for row in range(len(piece)):
                try:
                    _array_inputs(encoding, data, piece[row : row + 1], start + row)
                except InvalidArgumentError as error:
                    good[row] = False
                    problem = _short(str(error).partition(f"row {start + row + 1}: ")[2])
                    refused[start + row + 1] = _Reason(problem, problem, str(error))
            inputs = _array_inputs(encoding, data, piece[good], start) if good.any() else None
        outside = 0 if encoding.range is None else int(encoding.range.outside(piece[good]).sum())
        rows = np.arange(start + 1, start + 1 + len(piece))
        yield _Some(
            rows.tolist(),
            rows[good].tolist(),
            inputs,
            refused,
            (start + len(piece)) / len(array),
            outside=Counter({encoding.name: outside} if outside else {}),
        )


def _array_inputs(encoding: ArrayEncoding, data: Path, piece: Array, first: int) -> torch.Tensor:
    return encoding.encode(data, array_numbers(data, encoding.name, piece, first), first)


def _short(problem: str) -> str:
    """What is wrong, without how to correct it."""
    return problem.partition(";")[0]
