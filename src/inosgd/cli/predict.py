"""``inosgd predict``: apply a saved model to new data."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.markup import escape

from inosgd.cli.console import late_progress, messages
from inosgd.cli.folders import check_new_file, new_text
from inosgd.cli.words import words
from inosgd.study.prediction import Predictions, predict

MOST_KINDS = 10
"""How many kinds of problem are listed at the end."""


def predict_command(
    model: Annotated[Path, typer.Argument(help="The model's folder, such as RUN/model.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A table (.csv, .tsv, .parquet, or .jsonl with an object on each line), a folder of images or an "
            "image, or an .npz file."
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A new file; by default standard output.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Columns of the table to copy, such as an id, separated by commas; may be repeated."),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="What separates the cells of a CSV file; by default as in training.")
    ] = None,
    refuse_problems: Annotated[
        bool,
        typer.Option("--refuse-problems", help="Stop at the first row that cannot be used, and write nothing."),
    ] = False,
    allow_factory: Annotated[
        str | None, typer.Option(help="Import this package.module:factory, which the model names. It runs code.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines instead of CSV.")] = False,
) -> None:
    """Apply a trained model to new rows, images or arrays: what the model predicts of each.

    Of classes all probabilities are written. A row that cannot be used has no prediction, and its column `problem`
    says why. Tables are read and written piece by piece, so that they may be larger than memory. The file is there
    whole, or not at all.
    """
    check_new_file(out)
    found = predict(
        model,
        data,
        delimiter=delimiter,
        allowed_factory=allow_factory,
        keep=[name for text in keep or () for name in words(text)],
        refuse_problems=refuse_problems,
    )
    with new_text(out) as file:
        count, problems, outside = _write(found, file, as_json)
    _say(data, count, problems, outside)
    if out is not None:
        messages().print(f"Wrote {count:,} rows to {escape(str(out))}", soft_wrap=True)


def _write(found: Predictions, file: IO[str], as_json: bool) -> tuple[int, Counter[str], Counter[str]]:
    """How many rows were written, how many have which problem, and how many values were outside their ranges."""
    count, copied, problems, outside = 0, 1 + found.kept, Counter[str](), Counter[str]()
    table = csv.writer(file, lineterminator="\n")
    if not as_json:
        table.writerow(found.names)
    with late_progress("predicting") as show:
        for part in found.parts:
            if as_json:
                file.writelines(_line(found.names, row) for row in part.rows)
            else:
                table.writerows((*row[:copied], *map(_short, row[copied:])) for row in part.rows)
            count += len(part.rows)
            problems += part.problems
            outside += part.outside
            show(part.done)
    return count, problems, outside


def _short(cell: Any) -> Any:
    return f"{cell:.6f}" if isinstance(cell, float) else cell


def _line(names: tuple[str, ...], row: tuple[Any, ...]) -> str:
    plain = [None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row]
    return json.dumps(dict(zip(names, plain, strict=True)), default=str) + "\n"


def _say(data: Path, count: int, problems: Counter[str], outside: Counter[str]) -> None:
    for name, values in outside.items():
        lie = "value of {!r} lies" if values == 1 else "values of {!r} lie"
        text = (
            f"{data}: {values:,} {lie.format(name)} outside the range that the model was trained for; moved to its end"
        )
        messages().print(escape(text), soft_wrap=True)
    if not problems:
        return
    text = f"{data}: {problems.total():,} of {count:,} rows have no prediction; their column problem says why:"
    kinds = problems.most_common(MOST_KINDS)
    lines = [text, *(f"  {number:,} x {problem}" for problem, number in kinds)]
    if len(problems) > len(kinds):
        lines.append(f"  and {len(problems) - len(kinds)} other kinds")
    messages().print(escape("\n".join(lines)), soft_wrap=True)
