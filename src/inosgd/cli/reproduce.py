"""``inosgd reproduce``: the paper's studies and questions by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inosgd.cli.compare import Condition, Seeds, Variants, carry_out, chosen_variants, show
from inosgd.cli.studies import AsJson, Out, WithReport
from inosgd.cli.words import words_if_given
from inosgd.cli.workers import Address, Backend, Jobs, chosen_workers
from inosgd.compare.entrant import Entrant, told_apart
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.location import data_folder
from inosgd.paper.experiments import EXPERIMENTS, chosen_methods, experiment_named, with_fairness
from inosgd.paper.registry import SCALES, SETTINGS, study_named
from inosgd.plan_config import Fairness


def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(SETTINGS)}.")],
    experiment: Annotated[str, typer.Option(help=f"What to find out: {', '.join(EXPERIMENTS)}.")] = "methods",
    methods: Annotated[str | None, typer.Option(help="Rows of the experiment `methods`, separated by commas.")] = None,
    variants: Variants = None,
    seeds: Seeds = 5,
    scale: Annotated[str, typer.Option(help=f"One of: {', '.join(SCALES)}.")] = "laptop",
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the study's.")] = None,
    exponent: Annotated[
        float, typer.Option(help="Of fair plans: 0 most signal, inf equal signals.")
    ] = Fairness().exponent,
    max_ratio: Annotated[
        float, typer.Option(help="Of fair plans: the cap on signal per example, or inf.")
    ] = Fairness().max_ratio,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    condition: Condition = False,
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    out: Out = None,
    report: WithReport = True,
    as_json: AsJson = False,
) -> None:
    """Train a study of the paper by every method and plan asked for, and show the score of each owner."""
    study = study_named(name, scale, data_folder(data))
    study = study.changed({} if learning_rate is None else {"learning_rate": learning_rate})
    asked, fairness = experiment_named(experiment), Fairness(exponent=exponent, max_ratio=max_ratio)
    entered = _entered(experiment, words_if_given(methods), chosen_variants(study, variants), fairness)
    question = f"{asked.question} ({asked.figure})"
    with chosen_workers(backend, jobs, address, continues=True) as workers:
        found = carry_out(study, entered, seeds, workers, out=out, condition=condition, page=report, question=question)
    show(found, as_json=as_json)


def _entered(experiment: str, methods: list[str] | None, variants: list[str], fairness: Fairness) -> list[Entrant]:
    if methods is not None and experiment != "methods":
        raise InvalidArgumentError(f"methods={','.join(methods)!r}: only the experiment `methods` takes a choice")
    rows = {
        variant: chosen_methods(variant, methods) if experiment == "methods" else EXPERIMENTS[experiment].rows(variant)
        for variant in variants
    }
    return told_apart({variant: [with_fairness(row, fairness) for row in each] for variant, each in rows.items()})
