"""Files are private and whole."""

from __future__ import annotations

import os
import stat

from inosgd.files import place, stage, synchronise, write_private


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


def handed_to_disk(monkeypatch, path):
    """What is synchronised from now on: which file, with how many bytes, and whether ``path`` existed by then."""
    seen = []

    def synchronised(descriptor: int) -> None:
        found = os.fstat(descriptor)
        seen.append((found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else None, path.exists()))

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synchronised, raising=False)
    return seen


def test_content_is_on_disk_before_its_name_and_the_name_at_the_end(tmp_path, monkeypatch):
    path = tmp_path / "a"
    seen = handed_to_disk(monkeypatch, path)
    write_private(path, b"one")
    assert seen == [(path.stat().st_ino, 3, False), (tmp_path.stat().st_ino, None, True)]


def test_what_was_written_is_on_disk(tmp_path, monkeypatch):
    seen = handed_to_disk(monkeypatch, tmp_path / "a")
    with (tmp_path / "a").open("wb", buffering=0) as file:
        file.write(b"one")
        synchronise(file.fileno())
        assert seen == [(os.fstat(file.fileno()).st_ino, 3, True)]
