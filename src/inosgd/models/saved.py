"""Saved models: weights that run no code, a card for people, and the same for programs.

    model/
      model.safetensors    the weights
      model.json           architecture, classes, inputs, privacy
      model-card.md        the same in words, and how to load the model without inosgd

The folder comes into being whole and replaces an earlier one of its name.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import nn

from inosgd import _validate
from inosgd.analysis.answers import untold
from inosgd.analysis.findings import Finding
from inosgd.analysis.score import score_named
from inosgd.analysis.suggestions import Suggestion
from inosgd.errors import InvalidArgumentError
from inosgd.files import sha256, write_private
from inosgd.models.recurrent import SequenceClassifier
from inosgd.owners import EXAMPLE
from inosgd.shown import BUDGET, SPENT, spending_shown

MODEL_FORMAT = 2
"""Raised when a key changes its meaning; readers refuse formats they do not know and ignore keys they do not know."""

WEIGHTS, DESCRIPTION, CARD = "model.safetensors", "model.json", "model-card.md"


def save_model(
    folder: Path,
    model: nn.Module,
    description: Mapping[str, Any],
    announce: Callable[[dict[str, str]], None] | None = None,
) -> Path:
    """Write ``model`` with its ``description`` and card into ``folder``, whole or not at all.

    Before the folder gets its name, ``announce`` is given the SHA-256 of its files by name.
    """
    working = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    working.mkdir(mode=0o700, parents=True)
    try:
        fields = {
            "format": MODEL_FORMAT,
            **description,
            "parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
            "torch_code": torch_code(model, description),
        }
        tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in model.state_dict().items()}
        contents = {
            WEIGHTS: safetensors.save(tensors),
            DESCRIPTION: (json.dumps(fields, indent=1, allow_nan=False) + "\n").encode(),
            CARD: model_card(fields).encode(),
        }
        for name, content in contents.items():
            write_private(working / name, content)
        if announce is not None:
            announce({name: sha256(content) for name, content in contents.items()})
        if folder.exists():
            shutil.rmtree(folder)
        working.rename(folder)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    return folder


def read_description(folder: Path) -> dict[str, Any]:
    """What ``model.json`` in ``folder`` says."""
    path = folder / DESCRIPTION
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = fields.get("format")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InvalidArgumentError(
            f"{path}: there is no model; give the folder that holds {WEIGHTS} and {DESCRIPTION}, such as RUN/model"
        ) from None
    if found != MODEL_FORMAT:
        raise _validate.other_format("model", found, MODEL_FORMAT, "use that version, or its model.safetensors alone")
    return fields


def load_weights(folder: Path, model: nn.Module) -> nn.Module:
    """Put the saved weights into ``model``, which must be of the saved architecture; it is then ready to predict."""
    path = folder / WEIGHTS
    try:
        model.load_state_dict(safetensors.load(path.read_bytes()))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise InvalidArgumentError(f"{path}: cannot be loaded into the saved architecture ({why})") from None
    return model.eval()


def torch_code(model: nn.Module, description: Mapping[str, Any]) -> str:
    """Python that builds the same architecture as ``model``, without inosgd where it is one of inosgd's own."""
    if isinstance(model, SequenceClassifier):
        built = (
            f"SequenceClassifier(symbols={model.embedding.num_embeddings}, classes={model.head.out_features}, "
            f"embedding={model.embedding.embedding_dim}, hidden={model.lstm.hidden_size}, padding={model.padding})"
        )
        return f"{inspect.getsource(SequenceClassifier)}\n\nmodel = {built}"
    architecture = description["architecture"]
    if isinstance(model, nn.Sequential) and ":" not in architecture["name"]:
        layers = "".join(f"    nn.{layer!r},\n" for layer in model)
        return f"model = nn.Sequential(\n{layers})"
    module, _, factory = architecture["name"].partition(":")
    arguments = "".join(f", {key}={value!r}" for key, value in architecture["arguments"].items())
    shape = _shape(architecture["inputs"])
    call = f"{factory}({shape}, {architecture['outputs']}, seed={architecture['seed']}{arguments})"
    return f"from {module} import {factory}\n\nmodel = {call}"


def _shape(inputs: Any) -> Any:
    """The shape of one example, or of each of its parts by name."""
    return {name: tuple(part) for name, part in inputs.items()} if isinstance(inputs, Mapping) else tuple(inputs)


def loading_code(fields: Mapping[str, Any]) -> str:
    """A program that loads the model from its folder with torch and safetensors alone."""
    return (
        "import torch\nfrom safetensors.torch import load_file\nfrom torch import nn\n\n"
        f"{fields['torch_code']}\n"
        f'model.load_state_dict(load_file("{WEIGHTS}"))\nmodel.eval()\nnames = {list(fields["task"]["names"])!r}\n'
        + (f"ranges = {_ranges(fields)!r}\n" if _ranges(fields) else "")
    )


def _ranges(fields: Mapping[str, Any]) -> list[list[float]]:
    """The range of each target, for regression with scaled targets."""
    return [list(limits) for limits in fields["task"].get("ranges", ())]


def model_card(fields: Mapping[str, Any]) -> str:
    """The card: what the model is, what it promises, what it does not, and how to use it."""
    privacy = fields["privacy"]
    kind, names = fields["task"]["kind"], fields["task"]["names"]
    parts = [
        f"# {fields['title']}",
        f"{_PURPOSE[kind].format(count=len(names), s='s' * (len(names) > 1))} ({_listed(names)}), trained by inosgd "
        f"{fields['inosgd']} with individual privacy budgets.",
        *answers_in_words(fields.get("answers", ())),
        *findings_in_words(_untold(fields)),
        "## Privacy",
        _privacy_table(privacy),
        privacy["guarantee"],
        "### What is not covered",
        "\n".join(f"- {line}" for line in privacy["not_covered"]),
    ]
    if privacy.get("owners"):
        parts += ["### Owners", _owner_table(privacy["owners"])]
    if fields.get("evaluation"):
        parts += ["## Quality on held-out examples", _quality(fields["evaluation"], names)]
    parts += [
        "## Inputs",
        inputs_in_words(fields["inputs"]),
        "## Loading it",
        "With inosgd: `inosgd predict FOLDER new-data`. Without it, in this folder:",
        f"```python\n{loading_code(fields)}```",
        _SCALED if _ranges(fields) else _OUTPUTS[kind],
    ]
    return "\n\n".join(parts) + "\n"


_PURPOSE = {
    "classification": "A classifier of {count} classes",
    "multi-label": "A classifier of {count} label{s}, any number of which apply to an example",
    "regression": "A regression of {count} number{s}",
}
_OUTPUTS = {
    "classification": "`model(inputs).argmax(1)` is then the number of the class of each example.",
    "multi-label": "`model(inputs).sigmoid()` is then the probability of each label.",
    "regression": "`model(inputs)` is then each number.",
}
_SCALED = (
    "`model(inputs)` is then each number, scaled by its range (low, high): in its own units it is low + (output + 1) / "
    "2 * (high - low)."
)


def answers_in_words(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is asked first, as parts of a card; none if nothing was answered."""
    if not answers:
        return []
    return ["## At a glance", "\n".join(f"- **{each['question']}** {_cell(each['text'])}" for each in answers)]


def findings_in_words(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to know before using the model, as parts of its card; none if there is nothing."""
    if not findings:
        return []
    return ["## Before you use it", "\n".join(f"- {_cell(finding['text'])}" for finding in findings)]


def _untold(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings that no answer of the card has told."""
    found = [Finding.from_json(each) for each in fields.get("findings", ())]
    suggested = [Suggestion.from_json(each) for each in fields.get("suggestions", ())]
    return [each.to_json() for each in (untold(found, suggested) if fields.get("answers") else found)]


def inputs_in_words(inputs: Mapping[str, Any] | None) -> str:
    """How raw data become the model's inputs."""
    if inputs is None:
        return "Tensors, as the study makes them."
    if inputs["kind"] == "images":
        height, width = inputs["size"]
        colour = "grey" if inputs["channels"] == 1 else "colour"
        other = "resized" if inputs["resize"] else "refused"
        return (
            f"Images of {height} x {width} pixels in {colour}, as a tensor (examples, {inputs['channels']}, {height}, "
            f"{width}) of bytes / 127.5 - 1. Images of another size are {other}."
        )
    if inputs["kind"] == "npz":
        shape = ", ".join(str(size) for size in inputs["shape"])
        if inputs["range"] is None:
            return f"Whole numbers from 0, the padding, to {inputs['symbols'] - 1}, as a tensor (examples, {shape})."
        low, high = inputs["range"]
        fitted = " (fitted to the training data, unaccounted)" if inputs["fitted"] else ""
        return (
            f"Numbers from {low:g} to {high:g}{fitted}, as a tensor (examples, {shape}) of 2 (x - low) / (high - low) "
            "- 1; numbers outside are brought to the ends of the range."
        )
    return _columns_in_words(inputs["columns"], inputs.get("notation", {}).get("missing", []))


def _columns_in_words(columns: list[dict[str, Any]], missing: list[str]) -> str:
    texts = [_text_in_words(column) for column in columns if column["kind"] == "text"]
    others = [column for column in columns if column["kind"] != "text"]
    parts = [*texts, *([_numbers_in_words(others, missing)] if others else [])]
    if len(parts) == 1:
        return parts[0]
    beginning = "A dictionary of tensors: each text under the name of its column, all other columns under `numbers`."
    return "\n\n".join([beginning, *parts])


def _numbers_in_words(columns: list[dict[str, Any]], missing: list[str]) -> str:
    rows = ["| column | kind | values | if missing | fitted |", "| --- | --- | --- | --- | --- |"]
    for column in columns:
        cells = (column["name"], column["kind"], _values_in_words(column), _missing_in_words(column.get("missing")))
        fitted = "yes, unaccounted" if column["fitted"] else "no"
        rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} | {fitted} |")
    kinds = {column["kind"] for column in columns} | {
        "indicator" for column in columns if column.get("missing") == "indicator"
    }
    explained = ["Columns in this order, side by side.", *(words for kind, words in _KINDS.items() if kind in kinds)]
    if any(column.get("missing") is not None for column in columns):
        explained.append(f"Missing are empty cells{''.join(f', {text!r}' for text in missing)}; a category never is.")
    return " ".join(explained) + "\n\n" + "\n".join(rows)


_KINDS = {
    "numeric": (
        "A number x becomes 2 (x - low) / (high - low) - 1, and numbers outside the range are brought to its ends."
    ),
    "categorical": "A category becomes as many numbers as there are categories: 1 for its own, 0 for the others.",
    "boolean": "True becomes 1 and false -1.",
    "date": (
        "A date becomes its seconds since 1970 in UTC, scaled like numbers, the last day included; then, for each "
        "cycle, the sine and cosine of 2 pi times the part of the year, of the week from Monday or of the day that has "
        "passed."
    ),
    "indicator": "With an indicator, a missing value becomes zeros, and one more number is 1 for it and 0 otherwise.",
}


def _values_in_words(column: Mapping[str, Any]) -> str:
    if column["kind"] == "numeric":
        low, high = column["range"]
        return f"{low:g} to {high:g}"
    if column["kind"] == "date":
        extra = [f"format {column['format']}"] if column.get("format") else []
        extra += [f"cycles {', '.join(column['cycles'])}"] if column.get("cycles") else []
        return "; ".join([" to ".join(column["date"]), *extra])
    return ", ".join(column["categories"]) if column["kind"] == "categorical" else "true, false"


def _missing_in_words(missing: Any) -> str:
    return "refused" if missing is None else f"{missing:g}" if isinstance(missing, float) else str(missing)


def _text_in_words(column: Mapping[str, Any]) -> str:
    how = "1 + each byte of its UTF-8 text"
    if column["text"] == "words":
        how = f"1 + zlib.crc32(word) % {column['vocabulary_size'] - 1} for each word of its lower-case text (`\\w+`)"
    return (
        f"The column {column['name']!r} of text as symbols: {how}, cut after {column['max_length']} and filled up to "
        "that length with 0."
    )


def _unit(privacy: Mapping[str, Any]) -> str:
    """What each budget protects."""
    unit, shared = privacy.get("unit", EXAMPLE), privacy.get("shared_units", 0)
    if unit == EXAMPLE:
        return EXAMPLE
    return f"{unit} with all its examples" + (f" ({shared} of them have several owners)" if shared else "")


def _privacy_table(privacy: Mapping[str, Any]) -> str:
    (low, high), (smallest, largest) = privacy["epsilon"], privacy["delta"]
    rows = {
        "budgets": f"epsilon {low:g}" + (f" to {high:g}" if high > low else "") + f", of {_owners(privacy)}",
        "delta": f"{smallest:g}" + (f" to {largest:g}" if largest > smallest else ""),
        "unit": f"one {_unit(privacy)}, added or removed",
        "method": f"{privacy['method']}, variant {privacy['variant']}",
        "steps": str(privacy["steps"]),
        "learning rate": privacy["learning_rate"],
        **({"model": f"average of iterates ({privacy['averaging']})"} if privacy["averaging"] else {}),
        "accountant": privacy["accountant"],
        "randomness": privacy["randomness"],
    }
    if privacy.get("adjustment"):
        rows["loss"] = privacy["adjustment"]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in rows.items())])


def _owners(privacy: Mapping[str, Any]) -> str:
    count = privacy["owner_count"]
    return "1 owner" if count == 1 else f"{count} owners"


def _owner_table(owners: Mapping[str, Mapping[str, float]]) -> str:
    rows = [f"| owner | {BUDGET} | δ | {SPENT} |", "| --- | --- | --- | --- |"]
    for name, owner in owners.items():
        shown = spending_shown(owner["epsilon"], owner["delta"], owner["spent"])
        rows.append(f"| {_cell(name)} | {shown.budget} | {shown.delta} | {shown.spent} |")
    return "\n".join(rows)


def _quality(evaluation: Mapping[str, Any], classes: list[str]) -> str:
    score = score_named(evaluation["scored_by"])
    lines = [
        f"{score.name[0].upper() + score.name[1:]} {score.shown(evaluation['overall'])} on {evaluation['examples']} "
        f"held-out examples; {score.shown(evaluation['worst'])} for the worst owner."
    ]
    if last := evaluation.get("last_iterate"):
        lines[0] += f" The last iterate: {score.shown(last['overall'])} and {score.shown(last['worst'])}."
    others = [(name, value) for name, value in evaluation.get("measures", {}).items() if value is not None]
    if others:
        lines += ["", "| measure | all held-out examples |", "| --- | --- |"]
        lines += [f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in others]
    if evaluation.get("classes"):
        lines += ["", "| class | recall |", "| --- | --- |"]
        for name, recall in zip(classes, evaluation["classes"], strict=False):
            lines.append(f"| {_cell(name)} | {'-' if recall is None else f'{100 * recall:.1f} %'} |")
    return "\n".join(lines)


def _listed(classes: list[str], most: int = 20) -> str:
    return ", ".join(classes[:most]) + (", ..." if len(classes) > most else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
