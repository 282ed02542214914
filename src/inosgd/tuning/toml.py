"""Writing TOML: what `tomllib` read, as text again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from inosgd.errors import InvalidArgumentError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any]) -> str:
    """Tables of tables of plain values as TOML; reading it gives ``values`` back.

    >>> print(toml_text({"training": {"steps": 3, "tail": {"share": 0.5}}}), end="")
    [training]
    steps = 3
    [training.tail]
    share = 0.5
    """
    return "".join(line + "\n" for line in _table(values, ()))


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (plain or not tables) else []
    lines = [*head, *(f"{_key(key)} = {_value(value)}" for key, value in plain.items())]
    for key, value in tables.items():
        lines += _table(value, (*path, key))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    raise InvalidArgumentError(f"value={value!r}: TOML of a study has text, numbers, true, false, lists and tables")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
