"""Run the program as its users do: arguments in, output and exit code out."""

from __future__ import annotations

import dataclasses
import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from inosgd.cli import main
from tests.bench.conftest import in_this_process

__all__ = ["in_this_process"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def inosgd(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
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


@pytest.fixture(scope="module")
def inosgd_once(tmp_path_factory):
    """The program for a module's own fixtures: runs that many tests look at are done once."""
    folder = tmp_path_factory.mktemp("once")

    def run(*arguments: object) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            patched.chdir(folder)
            patched.setattr(sys, "argv", ["inosgd", *map(str, arguments)])
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Outcome(code, out.getvalue(), err.getvalue())

    run.folder = folder
    return run
