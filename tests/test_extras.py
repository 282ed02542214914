"""Without the packages of an extra, whatever needs them says in one sentence how to install them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from inosgd._extras import needs, require
from inosgd.errors import InosgdError, MissingExtraError

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

IMPORTS = """
import importlib, sys
for module, package, extra in {modules}:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("inosgd", package)]:
        del sys.modules[name]
    sys.modules[package] = None
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(type(error).__name__, error)
    else:
        print("imported", module)
    del sys.modules[package]
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What each module says without the package, all in one process."""
    words = [sys.executable, "-c", IMPORTS.format(modules=MODULES)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_a_module_names_the_extra_that_it_needs(said, number):
    _, package, extra = MODULES[number]
    assert said[number] == f"MissingExtraError {package} is not installed: pip install 'inosgd[{extra}]'"
    assert extra in EXTRAS


CORE = ("inosgd.training", "inosgd.runs.resuming", "inosgd.planning.planner", "inosgd.ledger.ledger", "inosgd.models")
CORE += ("inosgd.integrations.logging", "inosgd.accounts.book", "inosgd.accounts.draws")
ABSENT = ("typer", "rich", "pydantic", "tomlkit", "pyarrow", "PIL", "sklearn", "joblib", "altair", "vl_convert", "ray")
ABSENT += ("psycopg",)


def test_the_core_needs_no_extra():
    code = f"import importlib, sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    code += f"for name in {CORE}: importlib.import_module(name)\nimport inosgd\nfor name in inosgd.__all__: "
    code += "getattr(inosgd, name)"
    subprocess.run([sys.executable, "-c", code], check=True)


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
    }
