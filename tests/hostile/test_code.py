"""Nothing that is read runs code: a pickle with a trap in every place where a file is read."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from inosgd.errors import InosgdError
from inosgd.study.data import load_data
from inosgd.study.from_file import file_model
from inosgd.study.reading import read_study
from tests.hostile.readers import READERS, zip_of
from tests.study.writers import write_study

SOURCES = Path(__file__).parents[2] / "src" / "inosgd"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def traps(path: Path) -> dict[str, bytes]:
    """The same trap in every wrapping that some library would open."""
    plain = pickle.dumps(Trap(path))
    saved = io.BytesIO()
    torch.save({"weights": Trap(path)}, saved)
    objects = io.BytesIO()
    np.save(objects, np.array([Trap(path)], dtype=object), allow_pickle=True)
    names = ("features", "labels", "inputs", "target", "owner", "x")
    return {
        "pickle": plain,
        "torch": saved.getvalue(),
        "npy": objects.getvalue(),
        "npz": zip_of(**{f"{name}.npy": objects.getvalue() for name in names}),
        "npz of pickles": zip_of(**{f"{name}.npy": plain for name in names}),
        "npz of names": zip_of(**dict.fromkeys(names, plain)),
    }


@pytest.mark.parametrize("wrapping", ["pickle", "torch", "npy", "npz", "npz of pickles", "npz of names"])
@pytest.mark.parametrize("name", READERS)
def test_a_pickle_in_the_place_of_any_file_does_not_run(name, wrapping, tmp_path):
    caught = tmp_path / "caught"
    with pytest.raises(InosgdError):
        READERS[name].on(traps(caught)[wrapping], tmp_path / "files")
    assert not caught.exists()


def test_the_trap_works_where_pickles_are_opened(tmp_path):
    """The control: careless loading would have run it."""
    found = traps(tmp_path / "caught")
    pickle.loads(found["pickle"])
    assert (tmp_path / "caught").is_dir()
    (tmp_path / "caught").rmdir()
    with zipfile.ZipFile(io.BytesIO(found["npz"])) as archive:
        np.load(io.BytesIO(archive.read("x.npy")), allow_pickle=True)
    assert (tmp_path / "caught").is_dir()


def test_the_sources_open_no_pickle_and_evaluate_no_text():
    """What could run a file's content does not occur in the sources at all."""
    banned = (
        "import pickle",
        "torch.load(",
        "allow_pickle=True",
        "joblib.load",
        "yaml",
        "marshal",
        "shelve",
        " exec(",
        'eval("',
    )
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in banned if word in text], path


@pytest.fixture
def factory_study(tmp_path):
    """A study whose model is a factory in a file beside it, which leaves a mark when it is imported."""
    name = f"trap_{tmp_path.name.replace('-', '_')}"
    mark = tmp_path / "imported"
    (tmp_path / f"{name}.py").write_text(
        f"import os\nos.mkdir({str(mark)!r})\nfrom torch import nn\n"
        "def build(inputs, classes, *, seed):\n    return nn.Linear(inputs[0], classes)\n",
        encoding="utf-8",
    )
    return (
        write_study(tmp_path, ('name = "mlp"', f'name = "{name}:build"'), ("arguments = { hidden = [4] }", "")),
        name,
        mark,
    )


def test_a_factory_that_a_study_names_is_not_imported_unless_it_is_allowed_by_its_own_name(factory_study):
    study, name, mark = factory_study
    for allowed in (None, "", name, f"{name}:other", "os:system"):
        with pytest.raises(InosgdError):
            found = read_study(study, allowed_factory=allowed)
            file_model(found, allowed, load_data(found), 0)
        assert not mark.exists()
        assert name not in sys.modules
    found = read_study(study, allowed_factory=f"{name}:build")
    assert file_model(found, f"{name}:build", load_data(found), 0) is not None
    assert mark.exists()  # the control: named in full, it is
    sys.modules.pop(name)
    sys.path.remove(str(study.parent.resolve()))


def test_a_saved_model_that_names_a_factory_does_not_import_it(tmp_path):
    import json

    from inosgd.study.prediction import predict
    from tests.hostile.readers import saved_model

    mark = tmp_path / "imported"
    (tmp_path / "trap_in_a_model.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n", encoding="utf-8")
    fields = json.loads(saved_model()["model.json"])
    fields["architecture"]["name"] = "trap_in_a_model:build"
    fields["torch_code"] = f"import os; os.mkdir({str(mark)!r})"
    for name, content in saved_model().items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(InosgdError, match="would run its code"):
        list(predict(tmp_path, tmp_path / "new.csv").parts)
    assert not mark.exists()


def test_working_in_a_folder_of_hostile_modules_imports_none_of_them(tmp_path):
    """`inosgd` started in a folder with files called like libraries uses the libraries."""
    for name in ("torch", "numpy", "json", "pydantic", "safetensors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')", encoding="utf-8")
    program = Path(sys.executable).parent / "inosgd"
    if not program.exists():
        pytest.skip("the program is not installed beside this Python")
    done = subprocess.run([program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "hijacked" not in done.stdout + done.stderr
