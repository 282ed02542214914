"""Drafts: a study file for a table of one's own, from its header and from what its user says is public.

The header is public, and so are names and sizes of owners. Ranges, categories and classes come from the user: what is
read off private rows would be published with the model, and no budget accounts for it. Two requests that say so are
exceptions: `Answers.look_at_rows` proposes kinds of columns by the first rows, and `Answers.unaccounted_ranges` leaves
ranges and categories to the training, which then says in every report that they were fitted.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inosgd.data.moments import moment
from inosgd.data.notation import USUAL_MISSING, Notation
from inosgd.data.pieces import table_pieces
from inosgd.data.tables import Table, check_file, closest, column_names, delimiter_of, shortened
from inosgd.errors import InvalidArgumentError
from inosgd.study.declarations import parse_feature
from inosgd.study.example import EXAMPLES, NOTATION, study_text
from inosgd.study.features import INDICATOR, TextFeature
from inosgd.study.reading import StudyFile, fix_of, parse_study
from inosgd.study.recognition import LOOKED_AT, Looked, kind_by_name, look_at

IGNORE = "ignore"
LISTED = 8
"""How many columns or owners a message names."""

_HIDDEN = "[16]"
_WIDTH = 34  # of keys and values, before a comment


class Answers(BaseModel):
    """What the user says about a table; what is None or empty was not said.

    Attributes:
        target: The column that is predicted, or several.
        owner: The column that says whose row it is.
        unit: The column that says which rows are protected together.
        task: The kind of task.
        classes: The classes of the target.
        columns: For each other column a declaration as in a study file, "ignore", or a short form (`declared`).
        budgets: What each owner allows.
        budgets_file: A CSV file owner,epsilon[,delta] instead, seen from the study.
        epsilon: What every owner allows whom ``budgets`` does not name.
        delta: Of every owner; by default a power of ten below a tenth of one over the number of rows.
        decimal: What separates decimals.
        delimiter: What separates cells; by default by the header.
        missing: "indicator" gives every feature an input that says that its value is missing.
        drop_missing: Columns without whose value a row is left out.
        look_at_rows: Whether kinds of columns may be proposed by the first rows. Unaccounted.
        unaccounted_ranges: Whether ranges and categories that are not said are fitted in training. Unaccounted.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    target: list[str] = []
    owner: str | None = None
    unit: str | None = None
    task: Literal["classification", "multi-label", "regression"] = "classification"
    classes: list[str] = []
    columns: dict[str, Any] = {}
    budgets: dict[str, Annotated[float, Field(gt=0)]] = {}
    budgets_file: str | None = None
    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    decimal: Literal[".", ","] | None = None
    delimiter: str | None = None
    missing: Literal["indicator"] | None = None
    drop_missing: list[str] = []
    look_at_rows: bool = False
    unaccounted_ranges: bool = False


@dataclass(frozen=True)
class Question:
    """Something that must be said before there is a study: a key of `Answers`, and how to say it."""

    key: str
    text: str
    flag: str


@dataclass(frozen=True, eq=False)
class Source:
    """A table as far as a draft looks at it.

    Attributes:
        path: The file.
        header: The names of its columns.
        delimiter: What separates cells, by the header; None if the ending of the file says it.
        looked: What the first rows look like, if that was asked for.
    """

    path: Path
    header: tuple[str, ...]
    delimiter: str | None
    looked: Looked | None = None

    def kind(self, column: str) -> str | None:
        """What the column probably is."""
        return kind_by_name(column) if self.looked is None else self.looked.kinds[column]


@dataclass(frozen=True, eq=False)
class Draft:
    """A study for a table, and what was decided without being asked."""

    file: StudyFile
    notes: tuple[str, ...]


def read_answers(path: Path | None, given: Mapping[str, Any]) -> Answers:
    """The answers in a TOML file, and those that are ``given`` otherwise, which come first.

    Raises:
        InvalidArgumentError: With all that is wrong with them.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InvalidArgumentError(f"answers={str(path)!r}: cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{path}: this is not valid TOML: {error}; correct the file there") from None
    for key, value in given.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    if isinstance(values.get("target"), str):
        values["target"] = [values["target"]]
    try:
        return Answers.model_validate(values)
    except ValidationError as error:
        raise InvalidArgumentError("; ".join(_wrong_answers(path, given, error))) from None


def _wrong_answers(path: Path | None, given: Mapping[str, Any], error: ValidationError) -> Iterator[str]:
    """What is wrong, each where it was said: by an option, or in the file."""
    keys = list(Answers.model_fields)
    for each in error.errors():
        where, key = each["loc"], ".".join(map(str, each["loc"]))
        by_option = where[0] in given and (len(where) == 1 or where[1] in given[str(where[0])])
        said = _option(key) if by_option or path is None else f"{path}: {key}"
        fix = fix_of(each["type"], each.get("ctx", {}), each["msg"])
        if each["type"] == "extra_forbidden":
            fix = f"there is no such answer; {closest(key, keys)}"
        yield f"{said}={shortened(repr(each['input']))}: {fix}"


def _option(key: str) -> str:
    """The option by which an answer is given, with the name in it if there is one."""
    root, _, name = key.partition(".")
    option = {"budgets": "--budget", "epsilon": "--budget", "columns": "--column"}.get(root)
    if option is None:
        option = f"--{root}" if root in ("target", "classes", "owner") else f"--answer {root}"
    return f"{option} {name}" if name else option


def open_source(path: Path, delimiter: str | None, *, look: bool) -> Source:
    """The table at ``path``: its header, and with ``look`` what the first rows look like."""
    check_file(path)
    found = delimiter if delimiter is not None else delimiter_of(path)
    header = column_names(path, found)
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated or not all(header):
        what = f"two columns are called {repeated[0]!r}" if repeated else "a column has no name"
        raise InvalidArgumentError(f"{path}: {what}; every column needs a name of its own: correct the first line")
    source = Source(path, tuple(header), found)
    return Source(path, tuple(header), found, look_at(_first_rows(source))) if look else source


def _first_rows(source: Source) -> Table:
    pieces = table_pieces(source.path, dict.fromkeys(source.header, "the header"), (), source.delimiter)
    table = next(pieces).table
    return table.only(np.arange(len(table)) < LOOKED_AT)


def open_questions(source: Source, answers: Answers) -> list[Question]:
    """Everything that is not said and must be."""
    _refuse_unknown(source, answers)
    found = []
    if not answers.target:
        found.append(Question("target", "The column to predict", "--target COLUMN"))
    if answers.owner is None:
        found.append(Question("owner", "The column that says whose row it is", "--owner COLUMN"))
    if not answers.budgets and answers.budgets_file is None and answers.epsilon is None:
        found.append(
            Question(
                "epsilon", "The ε that every owner allows", "--budget E, --budget OWNER=E or --answer budgets_file=FILE"
            )
        )
    if answers.task == "regression" and answers.target and not _targets_said(answers):
        for name in answers.target:
            text = f"The public range of {name!r}, which is predicted: LOW,HIGH"
            found.append(Question(f"columns.{name}", text, f"--column {_shell(name)}=LOW,HIGH"))
    return found + [_column_question(source, name) for name in _undeclared(source, answers)]


def _listed(questions: Sequence[Question], columns: Sequence[str]) -> Iterator[str]:
    """A line for each question, of which the last are about ``columns``: one line for all of these."""
    others = questions[: len(questions) - len(columns)]
    for question in others:
        yield f"\n  {question.flag}: {question.text}"
    if columns:
        roles = [question.key for question in others if question.key in ("target", "owner")]
        but = f", but those for --{' and --'.join(roles)}" if roles else ""
        yield f"\n  --column NAME=...{but}: {_WHAT}, for each of {', '.join(map(_shell, columns))}"


_WHAT = "a range LOW,HIGH, categories A,B,..., dates FIRST,LAST, boolean, or ignore"


def _targets_said(answers: Answers) -> bool:
    return answers.unaccounted_ranges or all(name in answers.columns for name in answers.target)


def _column_question(source: Source, name: str) -> Question:
    kind = source.kind(name)
    looks = "" if kind is None else f" (it looks {_look(kind)})"
    text = f"What is public about {name!r}{looks}? {_WHAT[0].upper()}{_WHAT[1:]}"
    return Question(f"columns.{name}", text, f"--column {_shell(name)}=...")


def _shell(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]+", name) else f"'{name}'"


def _undeclared(source: Source, answers: Answers) -> list[str]:
    """Columns of which nothing is said, and which are not recognised."""
    roles = {*answers.target, answers.owner, answers.unit}
    left = [name for name in source.header if name not in roles and name not in answers.columns]
    return [name for name in left if _proposed(source, answers, name) is None]


def _proposed(source: Source, answers: Answers, name: str) -> Any:
    """What is written of a column of which nothing is said; None if that cannot be known."""
    kind = source.kind(name)
    if kind in ("id", "text"):
        return IGNORE
    if kind == "boolean":
        return "boolean"
    if answers.unaccounted_ranges and kind in ("numeric", "categorical"):
        return kind
    return IGNORE if kind == "date" and answers.unaccounted_ranges else None


def declared(name: str, value: Any) -> Any:
    """A declaration as a study file has it, from one or from a short form of it.

    >>> declared("age", "0,120"), declared("sex", "f,m"), declared("visit", "2015-01-01,2025-12-31")
    ([0.0, 120.0], ['f', 'm'], {'date': ['2015-01-01', '2025-12-31']})

    Raises:
        InvalidArgumentError: Naming the column.
    """
    found = _from_short(value.strip()) if isinstance(value, str) else value
    if found != IGNORE:
        try:
            parse_feature(found)
        except ValueError as error:
            raise InvalidArgumentError(f"column {name}={shortened(str(value))!r}: {error}") from None
    return found


def _from_short(text: str) -> Any:
    if text.startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            return text
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2:
        return text
    if len(parts) == 2 and all(map(_is_number, parts)):
        return [float(part) for part in parts]
    if len(parts) == 2 and all(map(_is_date, parts)):
        return {"date": parts}
    return parts


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    try:
        moment(text)
    except (ValueError, OverflowError):
        return False
    return True


def _refuse_unknown(source: Source, answers: Answers) -> None:
    """Raise for columns that the table does not have, and for those that are named for two purposes."""
    named = {"target": answers.target, "column": list(answers.columns), "drop_missing": answers.drop_missing}
    named |= {key: [name] for key in ("owner", "unit") if (name := getattr(answers, key)) is not None}
    for key, names in named.items():
        for name in names:
            if name not in source.header:
                hint = closest(name, list(source.header))
                raise InvalidArgumentError(f"{key}={name!r}: {source.path} has no such column; {hint}")
    roles = [name for name in (answers.owner, answers.unit, *answers.target) if name is not None]
    if len(set(roles)) < len(roles):
        raise InvalidArgumentError(
            f"owner={answers.owner!r}: target, owner and unit are different columns; correct them"
        )


def draft_study(path: Path, source: Source, answers: Answers) -> Draft:
    """The study that the answers make of the table; it is valid, and nothing is written.

    Raises:
        InvalidArgumentError: If something must still be said, or contradicts the table.
    """
    questions = open_questions(source, answers)
    if questions:
        raise InvalidArgumentError(
            f"{source.path}: {len(questions)} things about it are public and must be said by you, as options or in a "
            f"file with --answers{''.join(_listed(questions, _undeclared(source, answers)))}"
        )
    owners = _owners(source, answers)
    budgets = _budgets(source, answers, owners)
    features, ignored, notes = _features(source, answers)
    parts = {
        **_task_parts(answers),
        "@PATH@": _key("path", _relative(source.path, path)),
        "@OWNER@": f"{_key('owner', answers.owner)}# the column that says whose row it is; or, instead,",
        "@UNIT@": _unit(answers),
        "@PROTECTED@": "rows" if answers.unit is None else "units",
        "@COIN@": "each row by a coin of its own" if answers.unit is None else "each unit, with all rows, by a coin",
        "@NOTATION@": _notation(source, answers, ignored),
        "@FEATURES@": "\n".join(f"{_quoted(name)} = {toml(value)}" for name, value in features.items()),
        "@DELTA@": f"{answers.delta or _delta(owners.total()):g}".replace("e-0", "e-"),
        "@BUDGETS@": budgets,
        "@BATCH@": str(_batch(owners.total())),
    }
    return Draft(parse_study(study_text(parts), path, path.absolute().parent), (*_said(source, owners), *notes))


def _said(source: Source, owners: Counter[str]) -> list[str]:
    notes = [
        f"Read of {source.path}: the header, and the column of owners, whose names and sizes are public "
        f"({len(owners):,} owners, {owners.total():,} rows)."
    ]
    if source.looked is not None:
        notes.append(
            f"Looked at the first {LOOKED_AT} rows to see what the columns are. What this study says because of them "
            "depends on them, and no budget accounts for that."
        )
    return notes


def _owners(source: Source, answers: Answers) -> Counter[str]:
    """How many rows each owner has."""
    found: Counter[str] = Counter()
    owner = answers.owner or ""
    for piece in table_pieces(source.path, {owner: "owner"}, (), source.delimiter):
        read = Table(source.path, piece.table.columns, piece.table.rows, Notation(USUAL_MISSING))
        present = read.only(~read.missing(owner), owner, complete=True)
        found.update(present.texts(owner).tolist() if len(present) else ())
    if not found:
        raise InvalidArgumentError(f"owner={owner!r}: no row of {source.path} has a value there; name another column")
    return found


def _budgets(source: Source, answers: Answers, owners: Counter[str]) -> str:
    if answers.budgets_file is not None:
        return f"{_key('file', answers.budgets_file)}# a CSV file owner,epsilon[,delta]"
    unknown = [name for name in answers.budgets if name not in owners]
    if unknown:
        hint = closest(unknown[0], list(owners))
        raise InvalidArgumentError(f"budget={unknown[0]!r}: there is no such owner in {source.path}; {hint}")
    without = [name for name in owners if name not in answers.budgets]
    if without and answers.epsilon is None:
        raise InvalidArgumentError(
            f"budget: nothing is said about {_shown(without)}; give --budget OWNER=E for each, or --budget E for all "
            "that are not named"
        )
    allowed = {name: answers.budgets.get(name, answers.epsilon) for name in sorted(owners)}
    return "\n[budgets.owners]\n" + "\n".join(f"{_quoted(name)} = {value!r}" for name, value in allowed.items())


def _features(source: Source, answers: Answers) -> tuple[dict[str, Any], list[str], list[str]]:
    """Declarations of the columns that the model reads, the others, and what is to be said about both."""
    features: dict[str, Any] = {}
    ignored: list[str] = []
    notes: list[str] = []
    gaps = () if source.looked is None else source.looked.missing
    for name in source.header:
        if name in answers.target and _numbers_as_classes(source, answers, name):
            notes.append(f"{name!r} looks numeric, and is predicted as a class; for a number give --task regression")
        if name in (*answers.target, answers.owner, answers.unit):
            continue
        said = name in answers.columns
        value = declared(name, answers.columns[name]) if said else _proposed(source, answers, name)
        if value == IGNORE:
            ignored.append(name)
        else:
            features[name] = _with_missing(value) if answers.missing or name in gaps else value
        if not said:
            kind = source.kind(name)
            what = "left out" if value == IGNORE else "declared as such"
            notes.append(f"{name!r} looks {_look(kind)}, and is {what}; change it with --column {_shell(name)}=...")
    if not features:
        raise InvalidArgumentError(f"{source.path}: no column is left for the model to read; declare one with --column")
    return features, ignored, notes


def _numbers_as_classes(source: Source, answers: Answers, target: str) -> bool:
    return answers.task == "classification" and not answers.classes and source.kind(target) == "numeric"


def _with_missing(value: Any) -> Any:
    """The declaration with an indicator of missing values, unless it says what stands for one."""
    feature = parse_feature(value)
    if isinstance(feature, TextFeature) or feature.missing is not None:
        return value
    return {**feature.to_json(), "missing": INDICATOR}


def _task_parts(answers: Answers) -> dict[str, str]:
    """What the study says of its task, beside the training settings of the example of this kind."""
    parts = dict(EXAMPLES["regression" if answers.task == "regression" else "classification"].parts)
    target = answers.target[0] if len(answers.target) == 1 else answers.target
    parts["@TARGET@"] = f"{_key('target', target)}# what is predicted"
    unsaid = "# classes = [...]                 # the classes found in the training rows are used, and become public"
    classes = f"{_key('classes', answers.classes)}# what is publicly known to occur" if answers.classes else unsaid
    parts["@CLASSES@"] = f"\n{classes}" if answers.task == "classification" else ""
    parts["@TASK@"] = f"[task]\n{_key('kind', answers.task).strip()}"
    if answers.task == "regression":
        said = [name for name in answers.target if name in answers.columns]
        ranges = [declared(name, answers.columns[name]) for name in said]
        if said:
            parts["@TASK@"] += "\n" + _key("range", ranges[0] if len(ranges) == 1 else ranges).strip()
    if answers.task != "classification":
        parts["@EVALUATION@"] = ""
    return parts | {"@SHARES@": ""}


def _unit(answers: Answers) -> str:
    if answers.unit is not None:
        return f"{_key('unit', answers.unit)}# which rows are protected together"
    return '# unit = "patient_id"             # a column that says which rows are of one person'


def _notation(source: Source, answers: Answers, ignored: Sequence[str]) -> str:
    looked_like = "," if source.looked is not None and source.looked.decimal_comma else None
    drops = list(answers.drop_missing)
    if source.looked is not None:
        drops += [name for name in (*answers.target, answers.owner) if name in source.looked.missing]
    said = {
        "unaccounted_scaling": True if answers.unaccounted_ranges else None,
        "delimiter": source.delimiter,
        "decimal": answers.decimal or looked_like,
        "drop_missing": list(dict.fromkeys(drops)) or None,
        "ignore": list(ignored) or None,
    }
    return "\n".join(
        default if said.get(key) is None else f"{key} = {toml(said[key])}" for key, default in NOTATION.items()
    )


def _delta(rows: int) -> float:
    """The largest power of ten that is at most a tenth of one over the number of rows; at most 1e-5."""
    return float(10.0 ** min(-5, -math.ceil(math.log10(max(rows, 1))) - 1))


def _batch(rows: int) -> int:
    """About a tenth of the rows, from 1 to 256."""
    return max(1, min(256, round(rows / 10)))


def _relative(data: Path, study: Path) -> str:
    """The table as the study names it."""
    folder = study.absolute().parent
    found = data.absolute()
    return found.relative_to(folder).as_posix() if found.is_relative_to(folder) else found.as_posix()


def _key(key: str, value: Any) -> str:
    return f"{key} = {toml(value)}".ljust(_WIDTH - 1) + " "


def _look(kind: str | None) -> str:
    return {"id": "like an id", "numeric": "numeric", "categorical": "categorical"}.get(str(kind), f"like a {kind}")


def toml(value: Any) -> str:
    """``value`` as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return f"{value:.12g}"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" * (len(names) > LISTED)
    return ", ".join(map(repr, names[:LISTED])) + more
