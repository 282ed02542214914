"""Without the packages of an extra, whatever needs them says in one sentence how to install them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from inosgd._extras import needs, require
from inosgd.errors import InosgdError, MissingExtraError
from tests.processes import forked

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]

MODULES = [
    ("inosgd.data.tables", "pyarrow", "data"),
    ("inosgd.data.parquet", "pyarrow", "data"),
    ("inosgd.data.image_folder", "PIL", "data"),
    ("inosgd.study.schema", "pydantic", "data"),
    ("inosgd.study.example", "sklearn", "data"),
    ("inosgd.tuning.candidates", "tomlkit", "data"),
    ("inosgd.parallel.runner", "joblib", "data"),
    ("inosgd.integrations.sklearn", "sklearn", "data"),
    ("inosgd.report.charts", "altair", "report"),
    ("inosgd.paper.datasets.download", "rich", "paper"),
]


def imported_without(modules: Sequence[str], packages: Sequence[str]) -> str:
    """What comes of importing modules anew where there are no such packages; for a process that ends soon after."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("inosgd", *packages)]:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(packages))
    try:
        found = [importlib.import_module(module) for module in modules]
        for module in found:
            for name in getattr(module, "__all__", ()):
                getattr(module, name)
    except ImportError as error:
        return f"{type(error).__name__} {error}"
    finally:
        for package in packages:
            del sys.modules[package]
    return "imported"


def send_imported_without(pipe: Connection, cases: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    pipe.send([imported_without(modules, packages) for modules, packages in cases])


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What each module says without its package, and what the core says without any, all in one process."""
    cases = [([module], [package]) for module, package, _ in MODULES]
    with forked(send_imported_without, [*cases, (CORE, ABSENT)]) as (pipe, _):
        return pipe.recv()


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_a_module_names_the_extra_that_it_needs(said, number):
    _, package, extra = MODULES[number]
    assert said[number] == f"MissingExtraError {package} is not installed: pip install 'inosgd[{extra}]'"
    assert extra in EXTRAS


CORE = (
    "inosgd",
    "inosgd.training",
    "inosgd.runs.resuming",
    "inosgd.planning.planner",
    "inosgd.ledger.ledger",
    "inosgd.models",
)
CORE += ("inosgd.integrations.logging", "inosgd.accounts.book", "inosgd.accounts.draws")
ABSENT = ("typer", "rich", "pydantic", "tomlkit", "pyarrow", "PIL", "sklearn", "joblib", "altair", "vl_convert", "ray")
ABSENT += ("psycopg",)


def test_the_core_needs_no_extra(said):
    assert said[-1] == "imported"


def test_the_program_without_its_packages_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from inosgd.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: typer is not installed: pip install 'inosgd[cli]'\n"


def test_other_errors_pass():
    with pytest.raises(ValueError, match="another"), needs("data"):
        raise ValueError("another")
    require("data", "numpy")


def test_the_error_is_ours_and_one_of_imports(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtraError) as raised:
        require("report", "altair")
    assert isinstance(raised.value, InosgdError)
    assert isinstance(raised.value, ImportError)
    assert (raised.value.extra, raised.value.name) == ("report", "altair")


def test_dev_has_everything():
    assert "inosgd[all]" in EXTRAS["dev"]
    (everything,) = EXTRAS["all"]
    assert set(everything.removeprefix("inosgd[").removesuffix("]").split(",")) == {
        "cli",
        "data",
        "report",
        "paper",
        "cluster",
        "accounts",
        "serve",
    }
