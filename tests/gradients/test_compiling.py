"""Compiled code is built once, kept, and done without where it cannot be had."""

from __future__ import annotations

import shutil

import pytest

from inosgd import kept as kept_module
from inosgd.gradients import compiling
from inosgd.gradients.compiling import SWITCH, compiled

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    for name in ("CXX", SWITCH):
        monkeypatch.delenv(name, raising=False)
    compiled.cache_clear()
    file = tmp_path / "answer.cpp"
    file.write_text('extern "C" int answer() { return 42; }\n')
    yield file
    compiled.cache_clear()


def compiled_anew(source):
    """As in another process."""
    compiled.cache_clear()
    return compiled(source)


@pytest.fixture
def builds(monkeypatch):
    """A list that grows with every build."""
    plain, seen = compiling._built, []

    def build(source, compiler):
        seen.append(source)
        return plain(source, compiler)

    monkeypatch.setattr(compiling, "_built", build)
    return seen


def kept(tmp_path):
    return list((tmp_path / "kept" / "inosgd").iterdir())


def test_built_once(source, builds, tmp_path):
    assert compiled_anew(source).answer() == 42
    assert compiled_anew(source).answer() == 42
    assert len(builds) == len(kept(tmp_path)) == 1


def test_another_source_is_built_anew(source, builds):
    compiled_anew(source)
    source.write_text('extern "C" int answer() { return 43; }\n')
    assert compiled_anew(source).answer() == 43
    assert len(builds) == 2


def test_another_processor_builds_its_own(source, builds, monkeypatch):
    compiled_anew(source)
    monkeypatch.setattr(compiling, "_processor", lambda: "another one")
    compiled_anew(source)
    assert len(builds) == 2


@pytest.mark.parametrize("spoil", ["cut", "others"])
def test_what_others_could_have_written_is_built_again(spoil, source, builds, tmp_path):
    compiled_anew(source)
    (file,) = kept(tmp_path)
    if spoil == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        file.chmod(0o666)
    assert compiled_anew(source).answer() == 42
    assert len(builds) == 2


@pytest.mark.parametrize("case", ["no compiler", "broken source", "no source", "turned off", "no library"])
def test_done_without(case, source, monkeypatch):
    if case == "no compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    elif case == "broken source":
        source.write_text("this is no program")
    elif case == "turned off":
        monkeypatch.setenv(SWITCH, "0")
    elif case == "no source":
        source.unlink()
    elif case == "no library":
        monkeypatch.setattr(compiling, "_built", lambda source, compiler: b"not a library")
    assert compiled_anew(source) is None


@pytest.mark.parametrize("case", ["in the way", "no home"])
def test_where_nothing_can_be_kept_it_is_built_for_the_process(case, source, monkeypatch, tmp_path):
    if case == "in the way":
        (tmp_path / "kept").write_text("in the way")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(kept_module.Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError())))
    assert compiled_anew(source).answer() == 42
