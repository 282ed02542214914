"""``inosgd predict``: apply a saved model to new data."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from inosgd.cli.console import messages
from inosgd.cli.folders import check_new_file, write_whole
from inosgd.study.prediction import Predictions, predict


def predict_command(
    model: Annotated[Path, typer.Argument(help="The model's folder, such as RUN/model.")],
    data: Annotated[Path, typer.Argument(help="A table, a folder of images or an image, or an .npz file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A new CSV file; by default standard output.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="What separates the cells of a CSV file; by default as in training.")
    ] = None,
    allow_factory: Annotated[
        str | None, typer.Option(help="Import this package.module:factory, which the model names. It runs code.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines instead of CSV.")] = False,
) -> None:
    """Apply a trained model to new rows, images or arrays: what the model predicts of each."""
    check_new_file(out)
    found = predict(model, data, delimiter=delimiter, allowed_factory=allow_factory)
    for message in found.messages:
        messages().print(escape(message), soft_wrap=True)
    text = _json_lines(found) if as_json else _csv(found)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_whole(out, text)
    messages().print(f"Wrote {len(found.examples)} predictions to {escape(str(out))}", soft_wrap=True)


def _csv(found: Predictions) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([found.name, *found.columns])
    for row in zip(found.examples, *found.columns.values(), strict=True):
        writer.writerow([f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row])
    return out.getvalue()


def _json_lines(found: Predictions) -> str:
    names = (found.name, *found.columns)
    rows = zip(found.examples, *found.columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
