"""The script that draws charts is put together once, and what is kept is believed only if it is whole and ours."""

from __future__ import annotations

import os
import stat

import pytest

from inosgd.report import library as module
from inosgd.report.library import keep, kept_at, read_kept

SCRIPT = "const words = 'αβγ </script>';\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module.library.cache_clear()
    yield kept_at()
    module.library.cache_clear()


def test_what_is_kept_is_read_again(path):
    keep(path, SCRIPT)
    assert read_kept(path) == SCRIPT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_it_is_put_together_once(path, monkeypatch):
    made = []
    monkeypatch.setattr(module, "_bundle", lambda: made.append(1) or SCRIPT)
    first = module.library()
    module.library.cache_clear()  # as in another process
    assert module.library() == first == SCRIPT.replace("</script", "<\\/script")
    assert made == [1]


@pytest.mark.parametrize("spoil", ["cut", "edited", "bytes", "others", "link", "folder", "absent"])
def test_nothing_else_is_believed(path, spoil, tmp_path):
    keep(path, SCRIPT)
    if spoil == "cut":
        path.write_text(path.read_text()[:-5])
    elif spoil == "edited":
        path.write_text(path.read_text() + "alert(1)")
    elif spoil == "bytes":
        path.write_bytes(b"\xff\xfe")
    elif spoil == "others":
        path.chmod(0o666)
    else:
        os.rename(path, tmp_path / "moved.js")
        if spoil == "link":
            path.symlink_to(tmp_path / "moved.js")
        elif spoil == "folder":
            path.mkdir()
    assert read_kept(path) is None


def test_a_folder_that_cannot_be_written_costs_time_only(path, monkeypatch, tmp_path):
    (tmp_path / "inosgd").write_text("in the way")
    monkeypatch.setattr(module, "_bundle", lambda: SCRIPT)
    assert "words" in module.library()


def test_a_relative_place_is_not_taken(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert kept_at().is_absolute()
