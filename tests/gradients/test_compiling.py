"""Compiled code is built once, kept, and done without where it cannot be had."""

from __future__ import annotations

import shutil

import pytest

from inosgd.gradients import compiling
from inosgd.gradients.compiling import SWITCH, compiled

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.delenv("CXX", raising=False)
    file = tmp_path / "answer.cpp"
    file.write_text('extern "C" int answer() { return 42; }\n')
    return file


@pytest.fixture
def builds(monkeypatch):
    """A list that grows with every build."""
    plain, seen = compiling._build, []

    def build(source, compiler):
        seen.append(source)
        return plain(source, compiler)

    monkeypatch.setattr(compiling, "_build", build)
    return seen


def kept(tmp_path):
    return list((tmp_path / "kept" / "inosgd").iterdir())


def test_built_once(source, builds, tmp_path):
    assert compiled(source).answer() == 42
    assert compiled(source).answer() == 42
    assert len(builds) == len(kept(tmp_path)) == 1


def test_another_source_is_built_anew(source, builds):
    compiled(source)
    source.write_text('extern "C" int answer() { return 43; }\n')
    assert compiled(source).answer() == 43
    assert len(builds) == 2


def test_another_processor_builds_its_own(source, builds, monkeypatch):
    compiled(source)
    monkeypatch.setattr(compiling, "_processor", lambda: "another one")
    compiled(source)
    assert len(builds) == 2


@pytest.mark.parametrize("spoil", ["cut", "others"])
def test_what_others_could_have_written_is_built_again(spoil, source, builds, tmp_path):
    compiled(source)
    (file,) = kept(tmp_path)
    if spoil == "cut":
        content = file.read_bytes()
        file.unlink()  # this process has the file in its memory: it must not shrink under it
        file.write_bytes(content[:-100])
    else:
        file.chmod(0o666)
    assert compiled(source).answer() == 42
    assert len(builds) == 2


@pytest.mark.parametrize("case", ["no compiler", "broken source", "turned off", "nowhere to keep it", "no library"])
def test_done_without(case, source, monkeypatch, tmp_path):
    if case == "no compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    elif case == "broken source":
        source.write_text("this is no program")
    elif case == "turned off":
        monkeypatch.setenv(SWITCH, "0")
    elif case == "nowhere to keep it":
        (tmp_path / "kept").write_text("in the way")
    elif case == "no library":
        monkeypatch.setattr(compiling, "_build", lambda source, compiler: b"not a library")
    assert compiled(source) is None
