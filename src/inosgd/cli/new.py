"""``inosgd new``: a study file to start from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from inosgd.cli.console import messages, results
from inosgd.cli.folders import write_whole
from inosgd.cli.options import with_groups
from inosgd.cli.words import words
from inosgd.errors import InvalidArgumentError
from inosgd.study.draft import (
    Answers,
    Question,
    Source,
    declared,
    draft_study,
    open_questions,
    open_source,
    read_answers,
)
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
        typer.Option(rich_help_panel=TABLE_PANEL, help="A TOML file with any of the following as keys."),
    ] = None
    target: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The column to predict, or several with commas.")
    ] = None
    owner: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The column that says whose row it is.")
    ] = None
    unit_column: Annotated[
        str | None,
        typer.Option(rich_help_panel=TABLE_PANEL, help="The column that says which rows are protected together."),
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
    epsilon: Annotated[
        float | None, typer.Option(rich_help_panel=TABLE_PANEL, help="What each owner allows that --budget leaves out.")
    ] = None
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER=E", rich_help_panel=TABLE_PANEL, help="What one owner allows; repeat it for each."),
    ] = None
    budgets: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="Instead a CSV file owner,epsilon, by the study.")
    ] = None
    delta: Annotated[float | None, typer.Option(rich_help_panel=TABLE_PANEL, help="The delta of every owner.")] = None
    decimal: Annotated[
        Literal[".", ","] | None, typer.Option(rich_help_panel=TABLE_PANEL, help="What separates decimals.")
    ] = None
    missing: Annotated[
        Literal["indicator"] | None,
        typer.Option(
            rich_help_panel=TABLE_PANEL, help="Allow missing values in every feature, by an input of its own."
        ),
    ] = None
    drop_missing: Annotated[
        str | None,
        typer.Option(rich_help_panel=TABLE_PANEL, help="Columns without whose value a row is left out, with commas."),
    ] = None
    delimiter: Annotated[
        str | None, typer.Option(rich_help_panel=TABLE_PANEL, help="What separates cells; by default by the header.")
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

    @property
    def given(self) -> dict[str, Any]:
        """What was said, by key of `Answers`."""
        texts = {"target": self.target, "classes": self.classes, "drop_missing": self.drop_missing}
        single = {
            "owner": self.owner,
            "unit": self.unit_column,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "budgets_file": self.budgets,
            "decimal": self.decimal,
            "missing": self.missing,
            "look_at_rows": self.look_at_rows or None,
            "unaccounted_ranges": self.unaccounted_ranges or None,
        }
        return {
            **{key: words(text) for key, text in texts.items() if text is not None},
            **{key: value for key, value in single.items() if value is not None},
            **({} if self.column is None else {"columns": _named("column", self.column)}),
            **({} if self.budget is None else {"budgets": _budgets(self.budget)}),
        }


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
        _from_table(study, options.table, options, task, unit)
        return
    if options.given or options.answers is not None or task == "multi-label":
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


def _from_table(study: Path, table: Path, options: TableOptions, task: str, unit: bool) -> None:
    if unit:
        raise InvalidArgumentError("--unit: it is for the example; name the column of your units with --unit-column")
    given = options.given | ({} if task == "classification" else {"task": task})
    answers = read_answers(options.answers, given)
    source = open_source(table, options.delimiter, look=answers.look_at_rows or answers.unaccounted_ranges)
    while sys.stdin.isatty() and (questions := open_questions(source, answers)):
        answers = _asked(source, answers, questions[0])
    draft = draft_study(study, source, answers)
    write_whole(study, draft.file.text)
    for note in draft.notes:
        messages().print(escape(note), soft_wrap=True)
    shown = results()
    shown.print(f"Wrote {escape(str(study))}.")
    shown.print(f"See whether it can be trained with: inosgd check {escape(str(study))}")


def _asked(source: Source, answers: Answers, question: Question) -> Answers:
    """The answers with one more; what cannot be used is said, and asked again."""
    while True:
        try:
            more = _with_answer(answers, question.key, typer.prompt(question.text, err=True))
            open_questions(source, more)  # whether it names a column that is there
        except InvalidArgumentError as error:
            messages().print(escape(str(error)), soft_wrap=True)
        else:
            return more


def _with_answer(answers: Answers, key: str, text: str) -> Answers:
    values = answers.model_dump()
    if key.startswith("columns."):
        name = key.removeprefix("columns.")
        values["columns"] = {**values["columns"], name: declared(name, text)}
    elif key == "epsilon":
        values["epsilon"] = _number("epsilon", text)
    else:
        values[key] = words(text) if key == "target" else text.strip()
    return read_answers(None, values)


def _named(option: str, texts: list[str]) -> dict[str, str]:
    """From ``NAME=VALUE`` to values by name; a name may contain ``=`` if its value does not."""
    found = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not (mark and name.strip() and value.strip()):
            raise InvalidArgumentError(f"--{option} {text!r}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _budgets(texts: list[str]) -> dict[str, float]:
    return {name: _number(f"budget {name}", value) for name, value in _named("budget", texts).items()}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"--{name} {text!r}: give a number") from None
