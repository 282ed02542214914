"""The notebooks in examples/ run from top to bottom, show what they promise, and are kept without outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def ran(path: Path) -> list[Any]:
    """Run all cells as a notebook does; the value of the last expression of each, None where there is none."""
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for cell in cells_of(path):
        if cell["cell_type"] == "code":
            *body, last = ast.parse("".join(cell["source"])).body
            ends = isinstance(last, ast.Expr)
            exec(compile(ast.Module(body if ends else [*body, last], []), str(path), "exec"), names)
            values.append(eval(compile(ast.Expression(last.value), str(path), "eval"), names) if ends else None)
    return values


def shown(value: Any) -> str:
    """What a notebook shows of a value."""
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


@pytest.fixture(autouse=True)
def _generator_stays():
    with torch.random.fork_rng():
        yield


def test_there_are_two_and_the_list_has_everything():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    files = [path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")]
    assert len(NOTEBOOKS) == 2
    assert all(f"[{name}]({name})" in listed for name in files)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path):
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert {cell["execution_count"] for cell in code} == {None}


def test_a_table_of_ones_own(capsys):
    values = [value for value in ran(FOLDER / "own_table.ipynb") if value is not None]
    table, plan, report = (shown(value) for value in values[-3:])
    assert re.search(r"\d+ training examples, \d+ held out", table)
    assert "<table>" in plan
    assert "Within budget?" in report
    assert report.count("<svg") == 2
    captured = capsys.readouterr()
    assert "step 40 of 40, done in" in captured.err
    assert "ledger: 40 steps" in captured.out


def test_moving_from_opacus():
    first, uniform, fair, charts = [shown(value) for value in ran(FOLDER / "from_opacus.ipynb") if value is not None]
    assert "uniform plan: 20 steps (1 epochs)" in first
    assert "<td>all</td>" in uniform
    assert "<td>hospital</td>" in fair
    assert charts.count("<svg") == 2
