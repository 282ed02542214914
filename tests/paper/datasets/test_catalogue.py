from __future__ import annotations

from pathlib import Path

import pytest

from inosgd.data.files import MissingDataError
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.paper.datasets import ASSIGNMENTS, CATALOGUE, assign, load
from inosgd.paper.datasets.location import data_folder
from tests.data.writers import write_everything


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    write_everything(made)
    return made


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_data_set_loads_and_knows_its_name(folder: Path, name: str) -> None:
    data = load(name, folder)
    assert data.name == name
    assert len(data.train) > 0
    assert len(data.test) > 0


@pytest.mark.parametrize("name", CATALOGUE)
def test_missing_files_are_listed_with_where_they_go(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingDataError) as caught:
        load(name, tmp_path)
    for file in CATALOGUE[name].files:
        assert file.split("|")[0] in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert CATALOGUE[name].source in str(caught.value)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_file_that_is_listed_is_needed(tmp_path: Path, name: str) -> None:
    write_everything(tmp_path)
    for file in CATALOGUE[name].files:
        content = {path: (tmp_path / path).read_bytes() for path in file.split("|") if (tmp_path / path).exists()}
        for path in content:
            (tmp_path / path).unlink()
        with pytest.raises(MissingDataError, match=file.split("|")[0].rsplit("/", 1)[-1]):
            load(name, tmp_path)
        for path, kept in content.items():
            (tmp_path / path).write_bytes(kept)
    load(name, tmp_path)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_file_is_refused_when_it_is_rubbish(tmp_path: Path, name: str) -> None:
    write_everything(tmp_path)
    for file in CATALOGUE[name].files:
        path = tmp_path / file.split("|")[0]
        content = path.read_bytes()
        path.write_bytes(b"\x80rubbish")
        with pytest.raises(InvalidArgumentError, match=path.name):
            load(name, tmp_path)
        path.write_bytes(content)


@pytest.mark.parametrize("assignment", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_assignments_are_for_known_data_sets(folder: Path, assignment) -> None:
    for name in assignment.data_sets:
        assert len(assign(assignment, load(name, folder), seed=0).owners) > 0


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="data set='imagenet': give one of: mnist"):
        load("imagenet", tmp_path)


def test_the_folder_is_the_one_given_or_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INOSGD_DATA", raising=False)
    assert data_folder(tmp_path) == tmp_path
    with pytest.raises(MissingDataError, match="give --data DIR, or set INOSGD_DATA"):
        data_folder(None)
    monkeypatch.setenv("INOSGD_DATA", str(tmp_path))
    assert data_folder(None) == tmp_path
    with pytest.raises(InosgdError, match=r"data='.*absent': there is no such folder"):
        data_folder(tmp_path / "absent")
    monkeypatch.setenv("INOSGD_DATA", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match=r"INOSGD_DATA='.*absent': there is no such folder"):
        data_folder(None)
