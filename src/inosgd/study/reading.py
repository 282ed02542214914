"""Reading a study file: from TOML to a study that is valid as a whole, or to all of its problems at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.study.checks import problems_between_keys
from inosgd.study.problems import ABSENT, Problem, StudyFileError
from inosgd.study.schema import StudySchema

LARGEST_FILE = 16 * 2**20
KINDS = ("table", "images", "npz", "npy")
MOST_LEVELS = 32
MOST_SHOWN = 100
"""So many characters of a path stand in a message."""

_WITHIN_A_KEY = re.compile(r"[^=\[\]{},#\n]+")


@dataclass(frozen=True)
class StudyFile:
    """A study file that has been read and found valid; its data have not been looked at yet.

    Attributes:
        path: Where it came from, for messages.
        folder: What its paths are relative to.
        text: The file itself.
        schema: What it says.
    """

    path: Path
    folder: Path
    text: str
    schema: StudySchema

    def locate(self, name: str) -> Path:
        """A path of the file, seen from the file's folder.

        Raises:
            InvalidArgumentError: If nothing can be found there, because it is too long or leads through closed folders.
        """
        path = self.folder / name
        try:
            path.exists()
        except OSError as error:
            shown = name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}..."
            reason = str(error.strerror).lower()
            raise InvalidArgumentError(f"{self.path}: {shown!r} cannot be looked for ({reason}); correct it") from None
        return path

    def error(self, key: str, value: Any, fix: str) -> StudyFileError:
        """The error for one key, to be raised by the caller."""
        return StudyFileError(self.path, [Problem(key, value, fix)])


def read_study(path: Path, *, allowed_factory: str | None = None) -> StudyFile:
    """The study in the TOML file at ``path``, whose paths are relative to the folder it lies in.

    Args:
        path: A TOML file.
        allowed_factory: The one ``package.module:factory`` that may be imported (see `inosgd.study.models`).

    Raises:
        StudyFileError: With every problem found.
    """
    return parse_study(_text(path), path, path.absolute().parent, allowed_factory=allowed_factory)


def parse_study(text: str, path: Path, folder: Path, *, allowed_factory: str | None = None) -> StudyFile:
    """The study that ``text`` says, valid as a whole; ``path`` is its name in messages."""
    # Dotted keys take the parser time quadratic in their parts.
    if any(run.group().count(".") > MOST_LEVELS for run in _WITHIN_A_KEY.finditer(text)):
        raise InvalidArgumentError(f"{path}: a key of more than {MOST_LEVELS} parts; no study needs that, shorten it")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers with thousands of digits
        raise InvalidArgumentError(f"{path}: this is not valid TOML: {error}; correct the file there") from None
    try:
        schema = StudySchema.model_validate(values)
    except ValidationError as error:
        raise StudyFileError(path, [_problem(detail, values) for detail in error.errors()]) from None
    problems = problems_between_keys(schema, allowed_factory)
    if problems:
        raise StudyFileError(path, problems)
    return StudyFile(path, folder, text, schema)


def _text(path: Path) -> str:
    if not path.is_file():
        raise InvalidArgumentError(
            f"{path}: there is no such file; write an example with `inosgd new {path.name}`, or correct the path"
        )
    if path.stat().st_size > LARGEST_FILE:
        raise InvalidArgumentError(f"{path}: too large for a study file; is it the data? Name those in data.path")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{path}: this is not UTF-8 text; save it in the encoding UTF-8") from None
    if not text.strip():
        raise InvalidArgumentError(f"{path}: the file is empty; write an example with `inosgd new OTHER.toml`")
    return text


def _problem(detail: Mapping[str, Any], values: Mapping[str, Any]) -> Problem:
    """A problem in the words of a study file, from what pydantic found."""
    location = [part for index, part in enumerate(detail["loc"]) if not (index == 1 and part in KINDS)]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return Problem(key, ABSENT, "it is missing; add it")
    if kind == "union_tag_not_found":
        return Problem(f"{key}.kind", ABSENT, f"it is missing; give one of {_listed(KINDS)}")
    if kind == "union_tag_invalid":
        return Problem(f"{key}.kind", context["tag"], f"choose one of {_listed(KINDS)}")
    if kind == "extra_forbidden":
        names = _keys_at(location[:-1], values)
        return Problem(key, detail["input"], f"there is no such key; {closest(str(location[-1]), names)}")
    return Problem(key, detail["input"], fix_of(kind, context, str(detail["msg"])))


def fix_of(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What to give instead of a value, for what pydantic says of it."""
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"choose one of {context['expected']}"
    fixes = {
        "greater_than": "give a number greater than {gt:g}",
        "greater_than_equal": "give a number of at least {ge:g}",
        "less_than": "give a number below {lt:g}",
        "less_than_equal": "give a number of at most {le:g}",
        "finite_number": "give a finite number",
        "int_type": "give a whole number, without quotes",
        "int_from_float": "give a whole number",
        "float_type": "give a number, without quotes",
        "string_type": 'give text, in quotes: "..."',
        "string_too_short": "give some text",
        "string_too_long": "give a single character",
        "bool_type": "give true or false",
        "list_type": "give a list in brackets: [...]",
        "dict_type": "give a table: keys and values",
        "model_type": "give a table: keys and values",
        "too_short": "give at least {min_length}",
        "too_long": "give at most {max_length}",
    }
    return fixes[kind].format(**context) if kind in fixes else message.lower()


def _keys_at(location: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    """The keys that the schema knows at ``location``."""
    model: type[BaseModel] = StudySchema
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inner = [kind for kind in (annotation, *get_args(annotation)) if _is_section(kind)]
        if part == "data":
            inner = [kind for kind in inner if values["data"]["kind"] in get_args(kind.model_fields["kind"].annotation)]
        if not inner:
            return ["epsilon", "delta"]  # the only sections below a name that the user chose are budgets
        model = inner[0]
    return list(model.model_fields)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
