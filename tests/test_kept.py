"""What is kept is read again, and believed only if it is whole and ours."""

from __future__ import annotations

import os
import stat

import pytest

from inosgd import kept
from inosgd.kept import keep, kept_at, read_kept

CONTENT = "αβγ\n// sha256 of something else\n".encode() + b"\x00\xff"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return kept_at("thing")


def test_what_is_kept_is_read_again(path):
    keep(path, CONTENT)
    assert read_kept(path) == CONTENT
    assert path.read_bytes().startswith(CONTENT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("spoil", ["cut", "edited", "empty", "others", "open folder", "link", "folder", "absent"])
def test_nothing_else_is_believed(path, spoil, tmp_path):
    keep(path, CONTENT)
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif spoil == "edited":
        path.write_bytes(b"x" + path.read_bytes())
    elif spoil == "empty":
        path.write_bytes(b"")
    elif spoil == "others":
        path.chmod(0o666)
    elif spoil == "open folder":
        path.parent.chmod(0o777)
    else:
        os.rename(path, tmp_path / "moved")
        if spoil == "link":
            path.symlink_to(tmp_path / "moved")
        elif spoil == "folder":
            path.mkdir()
    assert read_kept(path) is None


def test_a_folder_that_cannot_be_written_keeps_nothing(path, tmp_path):
    (tmp_path / "inosgd").write_text("in the way")
    keep(path, CONTENT)
    assert read_kept(path) is None


def test_what_cannot_be_put_there_leaves_nothing(path):
    path.mkdir(parents=True)
    keep(path, CONTENT)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    def nowhere(_):
        raise RuntimeError("could not determine home directory")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(kept.Path, "home", classmethod(nowhere))
    assert kept_at("thing") is None
    keep(None, CONTENT)
    assert read_kept(None) is None


def test_a_relative_place_is_not_taken(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert kept_at("thing").is_absolute()
