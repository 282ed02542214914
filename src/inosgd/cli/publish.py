"""``inosgd publish``: a model is about to be given away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from inosgd.cli.console import results
from inosgd.cli.studies import AllowFactory, study_of_run
from inosgd.errors import InvalidArgumentError
from inosgd.runs.checkpoint import Checkpoint
from inosgd.runs.files import MODEL
from inosgd.runs.folder import RunFolder
from inosgd.study.running import prepare_again, save_checkpoint


def publish_command(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    step: Annotated[int | None, typer.Option(help="The checkpoint after this step; by default the last.")] = None,
    to: Annotated[Path | None, typer.Option(help="Also write its model and card into this new folder.")] = None,
    allow_factory: AllowFactory = None,
) -> None:
    """Mark a checkpoint as published, before it is given away.

    What a published model has spent is never given back: budgets that are lowered later cannot roll back behind it.
    """
    if to is not None and to.exists():
        raise InvalidArgumentError(f"to={str(to)!r}: it already exists; choose a new folder")
    folder = RunFolder.open(run)
    with folder.lock() as locked:
        prepared = None if to is None else prepare_again(folder, study_of_run(folder, allow_factory=allow_factory))
        chosen = locked.mark_published(step)
        if to is not None and prepared is not None:
            save_checkpoint(folder, prepared, chosen, to)
    shown = results()
    shown.print(f"Published: the model after step {chosen.step}. What it has spent is never given back.")
    model = to or _saved(folder, chosen)
    shown.print(f"Model: {escape(str(model))}", soft_wrap=True)
    if model == chosen.model_path and "average" in dict(chosen.fields["also"]["mapping"]):
        shown.print("It is the last iterate; --to FOLDER writes the average, which this run is about.")


def _saved(folder: RunFolder, chosen: Checkpoint) -> Path:
    """The saved model with its card if it is the one of the checkpoint, else the checkpoint's weights.

    Raises:
        InvalidArgumentError: If a file of the saved model is not the one that the ledger knows.
    """
    known = [name for name, file in folder.read_ledger().history.files.items() if file.step == chosen.step]
    for name in known:
        folder.read_file(name)
    return folder.path / MODEL if known else chosen.model_path
