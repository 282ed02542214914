"""The script that draws charts is put together once."""

from __future__ import annotations

import pytest

from inosgd.report import library as module

SCRIPT = "const words = 'αβγ </script>';\n"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A list that grows whenever the script is put together."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(module, "_bundle", lambda: calls.append(1) or SCRIPT)
    module.library.cache_clear()
    yield calls
    module.library.cache_clear()


def test_it_is_put_together_once(made):
    first = module.library()
    module.library.cache_clear()  # as in another process
    assert module.library() == first == SCRIPT.replace("</script", "<\\/script")
    assert made == [1]


def test_what_is_not_whole_is_put_together_again(made):
    module.library()
    place = module.place_of_library()
    place.write_bytes(place.read_bytes().replace(b"words", b"alert"))
    module.library.cache_clear()
    assert "words" in module.library()
    assert made == [1, 1]


def test_a_folder_that_cannot_be_written_costs_time_only(made, tmp_path):
    (tmp_path / "inosgd").write_text("in the way")
    assert "words" in module.library()
