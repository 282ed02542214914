"""The README opens with a picture and two commands that exist. Its code is run with that of the other pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_commands_come_first():
    commands = re.search(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    assert commands is not None
    assert README[: commands.start()].count("\n") <= 20
    lines = [line.split("#")[0].strip() for line in commands.group(1).strip().splitlines()]
    named = [line for line in lines if not line.startswith("export ")]
    assert named == ["make compare", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command.removeprefix('make ')}:" in makefile for command in named)


def test_the_picture_comes_before_them_and_is_small():
    picture = re.search(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert picture is not None
    assert picture.start() < README.index("```bash")
    assert (ROOT / picture.group(1)).stat().st_size < 10_000


def test_it_stays_short():
    assert README.count("\n") <= 130
