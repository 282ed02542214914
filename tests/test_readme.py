"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_python_examples_run(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "hospital" in printed


def test_the_two_commands_come_first():
    commands = re.search(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    assert commands is not None
    assert commands.start() < 60
    named = [line.split("#")[0].strip() for line in commands.group(1).strip().splitlines()]
    assert named == ["make compare", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command.removeprefix('make ')}:" in makefile for command in named)


@pytest.mark.parametrize("document", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name)
def test_relative_links_resolve(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), target
