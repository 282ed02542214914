"""Run the program as its users do: arguments in, output and exit code out."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from inosgd.cli import main


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def inosgd(monkeypatch, capsys, tmp_path, tmp_path_factory):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["inosgd", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        captured = capsys.readouterr()
        code = ended.value.code
        return Outcome(0 if code is None else int(code), captured.out, captured.err)

    return run
