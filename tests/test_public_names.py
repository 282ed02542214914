"""The public names are few, load when they are used, and no command waits for what it does not use."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from contextlib import closing

import pytest

import inosgd
from inosgd import SeededSource
from inosgd.runs.resuming import begin, train_durably
from tests import tiny
from tests.accounts.books import new_book

LAZY = ("inosgd", "inosgd.accounting", "inosgd.data", "inosgd.planning", "inosgd.runs")
SLOW = {"torch", "pandas", "sklearn", "altair", "vl_convert", "pyarrow", "PIL", "joblib", "ray", "dask", "tomlkit"}
"""What takes long to import, or is installed only with an extra."""


@pytest.mark.parametrize("package", LAZY)
def test_every_name_is_found_and_listed(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("package", LAZY)
def test_no_name_is_also_a_module(package):
    """Importing the module would put it in the name's place."""
    module = importlib.import_module(package)
    assert not set(module.__all__) & {found.name for found in pkgutil.iter_modules(module.__path__)}


def test_the_top_has_few_names_and_one_error():
    assert len(inosgd.__all__) <= 31
    assert [name for name in inosgd.__all__ if name.endswith("Error")] == ["InosgdError"]


PROGRAM = """
import sys
from inosgd.__main__ import main
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
else:
    code = 0
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def imported_by(folder, *arguments) -> set[str]:
    """The packages that a command has imported at its end."""
    words = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    quiet = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(words, cwd=folder, env=quiet, capture_output=True, text=True, check=True)
    code, *packages = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(packages)


def test_help_imports_the_command_line_only(tmp_path):
    assert not imported_by(tmp_path, "--help") & {*SLOW, "numpy", "scipy", "dp_accounting"}


def test_planning_imports_no_torch(tmp_path):
    words = ("plan", "--epsilon", "1,2", "--sizes", "100,100", "--steps", "10", "--batch", "10", "--out", "plan.json")
    found = imported_by(tmp_path, *words)
    assert not found & SLOW
    assert "dp_accounting" in found  # every plan is verified


def test_looking_at_a_ledger_imports_no_torch(tmp_path):
    run = tiny.new_run(tmp_path)
    trainer, model, optimizer = tiny.parts(tiny.PLAN)
    with run.lock() as locked:
        state = begin(locked, trainer, model, optimizer, SeededSource(0))
        with closing(state.ledger):
            train_durably(locked, trainer, state, every=2, steps=4)
    assert not imported_by(tmp_path, "ledger", run.path) & {*SLOW, "dp_accounting"}
    verified = imported_by(tmp_path, "ledger", run.path, "--verify")
    assert not verified & SLOW
    assert "dp_accounting" in verified


def test_account_books_are_kept_without_torch(tmp_path):
    new_book(f"sqlite:///{tmp_path}/book.db").close()
    assert not imported_by(tmp_path, "account", "show", "sqlite:///book.db") & SLOW


def test_a_new_study_is_written_without_torch(tmp_path):
    found = imported_by(tmp_path, "new", "study.toml")
    assert not found & (SLOW - {"sklearn", "joblib"})
    assert "sklearn" in found  # whose data it writes


def test_what_is_imported_would_be_seen(tmp_path):
    """The control: training does import torch."""
    assert "torch" in imported_by(tmp_path, "train", "--help")
