"""Files are private and whole."""

from __future__ import annotations

import stat

from inosgd.files import place, stage, write_private


def test_a_file_is_replaced_at_once_and_private(tmp_path):
    path = tmp_path / "a"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_staged_file_is_private_and_has_no_name_yet(tmp_path):
    path = tmp_path / "a"
    stage(path, b"one")
    assert not path.exists()
    (hidden,) = tmp_path.iterdir()
    assert stat.S_IMODE(hidden.stat().st_mode) == 0o600
    place(path)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
