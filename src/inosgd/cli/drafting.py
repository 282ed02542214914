"""Drafts on the command line: what options say about a table, what is asked for, and the study that is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from inosgd.cli.console import messages, results
from inosgd.cli.folders import write_whole
from inosgd.cli.new import TableOptions
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

LISTS = ("target", "classes", "drop_missing")
NUMBERS = ("epsilon", "delta")


def draft_from_table(study: Path, table: Path, options: TableOptions, task: str, unit: bool) -> None:
    """Write the study of a table; what was not said is asked for where there is a terminal."""
    if unit:
        raise InvalidArgumentError(
            "--unit: it is for the example; name the column of your units with --answer unit=..."
        )
    given = said(options) | ({} if task == "classification" else {"task": task})
    answers = read_answers(options.answers, given)
    look = answers.look_at_rows or answers.unaccounted_ranges
    source = open_source(table, answers.delimiter, look=look)
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


def said(options: TableOptions) -> dict[str, Any]:
    """What was said, by key of `Answers`."""
    texts = {"target": options.target, "classes": options.classes, "owner": options.owner}
    texts |= _named("answer", options.answer or ())
    flags = {"look_at_rows": options.look_at_rows, "unaccounted_ranges": options.unaccounted_ranges}
    return {
        **{key: _value(f"answer {key}", key, text) for key, text in texts.items() if text is not None},
        **{key: True for key, value in flags.items() if value},
        **({} if options.column is None else {"columns": _named("column", options.column)}),
        **_budgets(options.budget or ()),
    }


def _with_answer(answers: Answers, key: str, text: str) -> Answers:
    values = answers.model_dump()
    if key.startswith("columns."):
        name = key.removeprefix("columns.")
        values["columns"] = {**values["columns"], name: declared(name, text)}
    else:
        values[key] = _value(key, key, text)
    return read_answers(None, values)


def _value(shown: str, key: str, text: str) -> Any:
    if key in LISTS:
        return words(text)
    return _number(shown, text) if key in NUMBERS else text.strip()


def _named(option: str, texts: Sequence[str]) -> dict[str, str]:
    """From ``NAME=VALUE`` to values by name; a value may contain ``=``."""
    found = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not (mark and name.strip() and value.strip()):
            raise InvalidArgumentError(f"--{option} {text!r}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _budgets(texts: Sequence[str]) -> dict[str, Any]:
    """Budgets of owners, and what all others allow."""
    named = _named("budget", [text for text in texts if "=" in text])
    others = [_number("budget", text) for text in texts if "=" not in text]
    budgets = {name: _number(f"budget {name}", value) for name, value in named.items()}
    return ({"budgets": budgets} if budgets else {}) | ({"epsilon": others[-1]} if others else {})


def _number(shown: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"--{shown} {text!r}: give a number") from None
