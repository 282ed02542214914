"""Every code block of the documentation does what it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inosgd.cli.commands import COMMANDS
from tests.docs.blocks import PAGES, Block, blocks_of, run_page

ALL = [(page, block) for page in PAGES for block in blocks_of(page.read_text(encoding="utf-8"))]
WITH_CODE = [page for page in PAGES if any(block.runs for block in blocks_of(page.read_text(encoding="utf-8")))]


FIRST = "README.md"
"""On this page models are tried and dp-accounting is asked, as for a reader; on the others in `make test-long`."""
RUNS = [pytest.param(page, page.name == FIRST, id=page.name) for page in WITH_CODE]
RUNS += [
    pytest.param(page, True, id=f"{page.name}, thorough", marks=pytest.mark.long)
    for page in WITH_CODE
    if page.name != FIRST
]


@pytest.mark.parametrize(("page", "thorough"), RUNS)
def test_the_blocks_of_a_page_run_in_order(page, thorough, request, tmp_path, monkeypatch):
    if thorough:
        request.getfixturevalue("engine_tries_models")
        request.getfixturevalue("dp_accounting_is_asked")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run_page(page)


def test_a_block_that_is_not_run_says_why():
    silent = [f"{page.name}, line {block.line}" for page, block in ALL if block.marker == "not run" and not block.said]
    assert silent == []


def test_blocks_name_their_language():
    nameless = [f"{page.name}, line {block.line}" for page, block in ALL if not block.language]
    assert nameless == []


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line, without running it."""
    name, rest = words[1], words[2:]
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    command: Any = COMMANDS[name].load(name)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, rest = rest[0], rest[1:]
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    unknown = [word for word in rest if word.startswith("-") and word.split("=")[0] not in known]
    return f"{command.name} has no option {unknown[0]}" if unknown else None


def test_commands_that_are_only_shown_exist_with_their_options():
    shown = [(page, block, words) for page, block in ALL if block.language == "bash" for words in block.commands]
    wrong = [
        f"{page.name}, line {block.line}: {found}"
        for page, block, words in shown
        if words[0] == "inosgd" and (found := problem(words))
    ]
    assert wrong == []


@pytest.mark.parametrize("line", ["inosgd unlearn run", "inosgd train study.toml --fast"])
def test_a_command_that_does_not_exist_would_be_noticed(line):
    assert problem(line.split()) is not None


def test_every_command_is_in_the_documentation():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in COMMANDS if f"inosgd {name}" not in text] == []


def test_a_broken_block_would_be_noticed(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.chdir(tmp_path)
    page.write_text("```python\nx = 1\n```\n\nand\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        run_page(page)
    page.write_text("```bash\nmake coffee\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="mark the block as not run"):
        run_page(page)


def test_markers_are_read():
    hours = "<!-- not run: it takes hours -->\n```bash\ninosgd evidence\n```\n"
    small = "<!-- run with: --seeds 1 -->\n\n```bash\nx\n```\n"
    first, second = blocks_of(f"{hours}\n{small}")
    assert first == Block(3, "bash", "inosgd evidence\n", "not run", "it takes hours")
    assert second.marker == "run with"
    assert second.said == "--seeds 1"
    assert not first.runs
    assert second.runs
