"""Prediction: a saved model applied to new data of the kind it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inosgd.analysis.task import Task, predictions
from inosgd.data.arrays import array_numbers, read_arrays
from inosgd.data.image_folder import find_images, read_images
from inosgd.data.tables import read_table
from inosgd.errors import InvalidArgumentError
from inosgd.models.saved import load_weights, read_description
from inosgd.study.built_in import STUDIES
from inosgd.study.encoding import ArrayEncoding, Encoding, ImageEncoding, TableEncoding, encoding_from_json
from inosgd.study.inputs import as_shape
from inosgd.study.models import build_model, model_problem
from inosgd.study.sources import Pixels

AT_ONCE = 1000


@dataclass(frozen=True)
class Predictions:
    """What a model predicts of each example, in columns by name, and what there is to say about the data.

    ``examples`` are row numbers from 1 or names of files; ``name`` says which, and is the name of no column.
    """

    name: str
    examples: list[Any]
    columns: dict[str, list[Any]]
    messages: list[str]


def predict(
    folder: Path, data: Path, *, delimiter: str | None = None, allowed_factory: str | None = None
) -> Predictions:
    """Apply the model in ``folder`` to ``data``: a table, images, or arrays, as in its training.

    ``delimiter`` is the study's unless given.
    """
    description = read_description(folder)
    model = load_weights(folder, _model(folder, description, allowed_factory))
    encoding, task = _understood(folder, description)
    name, examples, inputs, messages = _inputs(encoding, data, delimiter)
    if encoding.shape != as_shape(description["architecture"]["inputs"]):
        raise InvalidArgumentError(f"{folder}: its inputs are not those that its model reads; save it again")
    outputs = _outputs(model, inputs)
    if task.outputs != outputs.shape[1]:
        raise InvalidArgumentError(f"{folder}: {task.outputs} names for {outputs.shape[1]} outputs; save it again")
    columns = predictions(task, outputs.double().numpy())
    while name in columns:  # a target may be called so
        name = f"_{name}"
    return Predictions(name, examples, columns, messages)


def _model(folder: Path, description: Mapping[str, Any], allowed_factory: str | None) -> nn.Module:
    architecture = description["architecture"]
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
    study = STUDIES.get(name)
    if study is None:
        raise InvalidArgumentError(
            f"{folder}: it is a model of the study {name!r}, whose inputs do not come from tables; apply it in Python "
            "with inosgd.models.saved.load_weights"
        )
    return study.model(study.split(0), 0)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Any) -> torch.Tensor:
    return torch.cat([model(inputs[start : start + AT_ONCE]) for start in range(0, len(inputs), AT_ONCE)])


def _understood(folder: Path, description: Mapping[str, Any]) -> tuple[Encoding, Task]:
    """How inputs are encoded, and what the model was trained for."""
    try:
        return encoding_from_json(description["inputs"]), Task.from_json(description["task"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{folder}: its description cannot be understood ({error!r}); save it again"
        ) from None


def _inputs(encoding: Encoding, data: Path, delimiter: str | None) -> tuple[str, list[Any], Any, list[str]]:
    """What the examples are called, their names, the model's inputs, and what there is to say."""
    if not data.exists():
        raise InvalidArgumentError(f"{data}: there is no such file; correct the path")
    if isinstance(encoding, TableEncoding):
        wanted = dict.fromkeys(encoding.columns, "the model reads it")
        table = read_table([data], wanted, delimiter or encoding.notation.delimiter)
        inputs = encoding.encode(table)
        return "row", list(range(1, len(table) + 1)), inputs, _outside(encoding.outside(table), data)
    if isinstance(encoding, ImageEncoding):
        paths = find_images(data)
        names = [path.name if data.is_file() else path.relative_to(data).as_posix() for path in paths]
        return "file", names, Pixels(read_images(paths, len(paths), encoding.form)), []
    return "row", *_array_inputs(encoding, data)


def _array_inputs(encoding: ArrayEncoding, data: Path) -> tuple[list[Any], Any, list[str]]:
    arrays = read_arrays(data, {encoding.name: "the model reads it"})
    array = array_numbers(data, encoding.name, arrays[encoding.name])
    outside = {} if encoding.range is None else {encoding.name: encoding.range.outside(array)}
    return list(range(1, len(array) + 1)), encoding.encode(data, array), _outside(outside, data)


def _outside(found: Mapping[str, Any], data: Path) -> list[str]:
    return [
        f"{data}: {int(outside.sum())} values of {name!r} lie outside the range that the model was trained for, and "
        "were brought to its ends"
        for name, outside in found.items()
        if outside.any()
    ]
