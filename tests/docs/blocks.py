"""Code blocks of the documentation: found, and run as a reader would run them, in one folder per page.

Python blocks of a page share one namespace. Of a shell block, lines that begin with ``inosgd`` are run inside this
process. One of these comments may stand in the line before a block:

    <!-- not run: REASON -->      the block is shown and not run
    <!-- run with: ARGUMENTS -->  the arguments are added to each of its commands, to keep the tests fast
    <!-- run for: STEPS -->       the studies that its commands write are trained for so many steps, likewise
    <!-- run if: PACKAGE -->      the block is about another package, and run where that is installed
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from inosgd.cli.program import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("python", "bash")

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)(?:<!--[ ](?P<marker>not[ ]run|run[ ]with|run[ ]for|run[ ]if):[ ]*(?P<said>.*?)[ ]*-->\n\s*)?"
    r"^[ ]*```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^[ ]*```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, the line it is on, and what the comment before it says."""

    line: int
    language: str
    code: str
    marker: str | None
    said: str

    @property
    def runs(self) -> bool:
        absent = self.marker == "run if" and importlib.util.find_spec(self.said) is None
        return self.language in RUN and self.marker != "not run" and not absent

    @property
    def extra_arguments(self) -> list[str]:
        return shlex.split(self.said) if self.marker == "run with" else []

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command; comments and the ends of continued lines are gone."""
        lines = self.code.replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [each for each in words if each]


def blocks_of(text: str) -> list[Block]:
    return [_block(text, found) for found in _BLOCK.finditer(text)]


def _block(text: str, found: re.Match[str]) -> Block:
    code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
    line = text.count("\n", 0, found.start("code")) + 1
    return Block(line, found["language"], code, found["marker"], found["said"] or "")


def run_page(page: Path) -> None:
    """Run every block of a page in order, in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not block.runs:
            continue
        if block.language == "python":
            _run_python(block, page, namespace)
        else:
            for command in block.commands:
                run_command([*command, *block.extra_arguments], f"{page.name}, line {block.line}")
                if block.marker == "run for":
                    _train_for(block.said, Path(command[2]))


def _run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
    with warnings.catch_warnings():
        if block.marker == "run if":
            warnings.simplefilter("ignore")  # warnings of another package are its own affair
        exec(code, namespace)


def run_command(words: list[str], place: str) -> None:
    if words[0] != "inosgd":
        raise AssertionError(f"{place}: only inosgd is run here, not {words[0]!r}; mark the block as not run, and why")
    outcome = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    if outcome.exit_code:
        raise AssertionError(f"{place}: {shlex.join(words)} ended with {outcome.exit_code}:\n{outcome.output}")


def _train_for(steps: str, study: Path) -> None:
    text = study.read_text(encoding="utf-8")
    study.write_text(re.sub(r"^steps = \d+", f"steps = {steps}", text, flags=re.MULTILINE), encoding="utf-8")
