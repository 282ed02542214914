"""``inosgd reproduce``: the paper's studies and questions by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inosgd.cli.compare import Condition, Seeds, Variants, carry_out, chosen_variants, show
from inosgd.cli.options import STUDY_SETTINGS, ReportOptions, StudySettings, settings, with_groups
from inosgd.cli.words import words_if_given
from inosgd.cli.workers import WorkerOptions
from inosgd.compare.entrant import Entrant, told_apart
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.location import data_folder
from inosgd.paper.experiments import EXPERIMENTS, chosen_methods, experiment_named
from inosgd.paper.registry import SCALES, SETTINGS, study_named


@with_groups
def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(SETTINGS)}.")],
    experiment: Annotated[str, typer.Option(help=f"What to find out: {', '.join(EXPERIMENTS)}.")] = "methods",
    methods: Annotated[str | None, typer.Option(help="Rows of the experiment `methods`, separated by commas.")] = None,
    variants: Variants = None,
    seeds: Seeds = 5,
    scale: Annotated[str, typer.Option(help=f"One of: {', '.join(SCALES)}.")] = "laptop",
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    condition: Condition = False,
    changed: StudySettings = None,
    *,
    workers: WorkerOptions,
    output: ReportOptions,
) -> None:
    """Train a study of the paper by every method and plan asked for, and show the score of each owner."""
    study = study_named(name, scale, data_folder(data)).changed(settings(changed, STUDY_SETTINGS))
    asked = experiment_named(experiment)
    entered = _entered(experiment, words_if_given(methods), chosen_variants(study, variants))
    question = f"{asked.question} ({asked.figure})"
    show(
        carry_out(study, entered, seeds, workers, output, condition=condition, question=question),
        as_json=output.as_json,
    )


def _entered(experiment: str, methods: list[str] | None, variants: list[str]) -> list[Entrant]:
    if methods is not None and experiment != "methods":
        raise InvalidArgumentError(f"methods={','.join(methods)!r}: only the experiment `methods` takes a choice")
    return told_apart(
        {
            variant: chosen_methods(variant, methods)
            if experiment == "methods"
            else EXPERIMENTS[experiment].rows(variant)
            for variant in variants
        }
    )
