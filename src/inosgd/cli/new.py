"""``inosgd new``: a study file to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from inosgd.cli.console import results
from inosgd.cli.folders import write_whole
from inosgd.cli.options import with_groups
from inosgd.errors import InvalidArgumentError
from inosgd.study.example import EXAMPLES, example_data, example_study

TABLE_PANEL = "A study of your own table, with --from"


@dataclass(frozen=True)
class TableOptions:
    """What is said about a table of one's own."""

    table: Annotated[
        Path | None,
        typer.Option("--from", rich_help_panel=TABLE_PANEL, help="A table of your own: .csv, .tsv or .parquet."),
    ] = None
    answers: Annotated[
        Path | None,
        typer.Option(rich_help_panel=TABLE_PANEL, help="A TOML file with answers by key: target, owner, columns, ..."),
    ] = None
    target: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The column to predict, or several with commas.")
    ] = None
    owner: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The column that says whose row it is.")
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=...",
            rich_help_panel=TABLE_PANEL,
            help="What is publicly known of a column: LOW,HIGH or A,B,... or FIRST,LAST for dates, boolean, ignore, or "
            "as in a study file. Repeat it for each.",
        ),
    ] = None
    classes: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The classes of the target, with commas.")
    ] = None
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OWNER=]E",
            rich_help_panel=TABLE_PANEL,
            help="The epsilon that an owner allows, or that all others allow. Repeat it for each.",
        ),
    ] = None
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=...",
            rich_help_panel=TABLE_PANEL,
            help="Another answer: unit (a column), budgets_file, delta, decimal, delimiter, missing=indicator, "
            "drop_missing (columns).",
        ),
    ] = None
    look_at_rows: Annotated[
        bool,
        typer.Option(
            "--look-at-rows",
            rich_help_panel=TABLE_PANEL,
            help="Let the first rows tell kinds of columns, missing values and decimal commas. These rows are private: "
            "no budget accounts for it.",
        ),
    ] = False
    unaccounted_ranges: Annotated[
        bool,
        typer.Option(
            "--unaccounted-ranges",
            rich_help_panel=TABLE_PANEL,
            help="Have ranges and categories that you do not give read off the private rows in training. No budget "
            "accounts for it, and every report will say so. Looks at rows, too.",
        ),
    ] = False


@with_groups
def new_command(
    study: Annotated[Path, typer.Argument(help="The study file to write, such as study.toml.")],
    task: Annotated[
        Literal["classification", "regression", "multi-label"],
        typer.Option(help="What its model predicts: classes, numbers, or, with --from, several labels."),
    ] = "classification",
    unit: Annotated[
        bool, typer.Option("--unit", help="Patients with several rows each, protected as a whole.")
    ] = False,
    *,
    options: TableOptions,
) -> None:
    """Write a commented study file that runs as it is, with a small table to run it on.

    With --from it is a study of your own table. What is public about the table must come from you: what is predicted,
    whose rows they are, ranges, categories and budgets. What is not said is asked for, or listed without a terminal.
    """
    _check_new(study)
    if options.table is not None:
        from inosgd.cli.drafting import draft_from_table  # reads tables, which takes seconds to import

        draft_from_table(study, options.table, options, task, unit)
        return
    if options != TableOptions() or task == "multi-label":
        raise InvalidArgumentError("--from: name your table; the other options are about it, or leave them out")
    data = study.with_name(f"{study.stem}-data.csv")
    if data.exists():
        raise InvalidArgumentError(f"STUDY {str(study)!r}: {data} already exists; choose another name")
    write_whole(data, example_data(task, units=unit))
    write_whole(study, example_study(data.name, task, units=unit))
    shown = results()
    made = f"made-up visits of patients, from {EXAMPLES[task].data}" if unit else EXAMPLES[task].data
    shown.print(f"Wrote {study}, and {data} with {made}.")
    shown.print(f"Train it with: inosgd train {study}")


def _check_new(study: Path) -> None:
    if study.suffix != ".toml":
        raise InvalidArgumentError(f"STUDY {str(study)!r}: study files end in .toml; call it {study.stem}.toml")
    if not study.parent.is_dir():
        raise InvalidArgumentError(f"STUDY {str(study)!r}: there is no folder {str(study.parent)!r}; create it first")
    if study.exists():
        raise InvalidArgumentError(f"STUDY {str(study)!r}: it already exists; choose another name")
