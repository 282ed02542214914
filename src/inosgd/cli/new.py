"""``inosgd new``: a study file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from inosgd.cli.console import results
from inosgd.cli.folders import write_whole
from inosgd.errors import InvalidArgumentError
from inosgd.study.example import EXAMPLES, example_data, example_study


def new_command(
    study: Annotated[Path, typer.Argument(help="The study file to write, such as study.toml.")],
    task: Annotated[
        Literal["classification", "regression"], typer.Option(help="What its model predicts: classes or numbers.")
    ] = "classification",
    unit: Annotated[
        bool, typer.Option("--unit", help="Patients with several rows each, protected as a whole.")
    ] = False,
) -> None:
    """Write a commented study file that runs as it is, with a small table to run it on."""
    if study.suffix != ".toml":
        raise InvalidArgumentError(f"study={str(study)!r}: study files end in .toml; call it {study.stem}.toml")
    if not study.parent.is_dir():
        raise InvalidArgumentError(f"study={str(study)!r}: there is no folder {str(study.parent)!r}; create it first")
    data = study.with_name(f"{study.stem}-data.csv")
    for path in (study, data):
        if path.exists():
            raise InvalidArgumentError(f"study={str(study)!r}: {path} already exists; choose another name")
    write_whole(data, example_data(task, units=unit))
    write_whole(study, example_study(data.name, task, units=unit))
    shown = results()
    made = f"made-up visits of patients, from {EXAMPLES[task].data}" if unit else EXAMPLES[task].data
    shown.print(f"Wrote {study}, and {data} with {made}.")
    shown.print(f"Train it with: inosgd train {study}")
