"""Imports point one way: a module imports its own room, and rooms of the rows above it in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TOP = "__init__"
"""The room of the package itself, which offers names of the rooms above it."""


def rows_of(text: str) -> dict[str, int]:
    """Each room of the first block of text in a page, and the number of its row; words after ``#`` are remarks."""
    block = re.search(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    rows = [line.partition("#")[0].split() for line in block.group(1).splitlines()]
    return {room: number for number, row in enumerate(filter(None, rows)) for room in row}


ROWS = rows_of(MAP)


def sources() -> dict[str, str]:
    """Every module of the package by its name, such as ``planning.variants``."""
    package = ROOT / "src" / "inosgd"
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == TOP else parts)] = path.read_text(encoding="utf-8")
    return found


def room_of(module: str) -> str:
    return module.partition(".")[0]


def imports_of(source: str, rooms: Mapping[str, int] = ROWS) -> Iterator[tuple[int, str]]:
    """Line and room of everything imported from inosgd: at the top, inside functions, and for types alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute, so that they can be read here"
            module = node.module or ""
            named = [f"inosgd.{alias.name}" for alias in node.names] if module == "inosgd" else [module]
        else:
            continue
        for name in named:
            top, _, rest = name.partition(".")
            if top == "inosgd":
                yield node.lineno, room_of(rest) if room_of(rest) in rooms else TOP


def wrong_ways(modules: Mapping[str, str]) -> list[str]:
    """The imports that do not lead to the module's own room or to a row above it."""
    return [
        f"{module}, line {line}: {room_of(module)} must not import {room}"
        for module, source in modules.items()
        for line, room in imports_of(source)
        if room != room_of(module) and not ROWS[room] < ROWS[room_of(module)]
    ]


def test_every_room_is_on_the_map_and_the_map_has_no_other():
    assert {room_of(module) for module in sources()} == set(ROWS)


def test_imports_point_upward_only():
    assert wrong_ways(sources()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from inosgd.cli.main import app",
        "import inosgd.study.study",
        "from inosgd import compare",
        "from inosgd import Trainer",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from inosgd.runs.folder import RunFolder",
        "def later():\n    from inosgd.training import fit",
        "from inosgd.ledger.ledger import Ledger",
        "from inosgd import _validate, training",
    ],
)
def test_an_import_that_points_the_wrong_way_would_be_noticed(source):
    assert len(wrong_ways({"mechanism": source})) == 1


def test_imports_of_ones_own_room_and_of_rows_above_are_allowed():
    named = ["import re", "from inosgd import _validate", "import inosgd.plan", "import inosgd.ledger.records"]
    assert wrong_ways({"ledger.ledger": "\n".join(named)}) == []
