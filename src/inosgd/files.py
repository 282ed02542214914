"""Files that are there whole or not at all, private, and on disk when the function returns."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any


def staged(path: Path) -> Path:
    """Where the file or folder at ``path`` is made before it gets its name."""
    return path.parent / f".{path.name}.partial"


def stage(path: Path, content: bytes) -> None:
    """Put ``content`` on disk under a hidden name beside ``path``; only its user can read it. `place` ends it."""
    descriptor = os.open(staged(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def place(path: Path) -> None:
    """Give the file or folder that was made for ``path`` its name, replacing a file that was there at once."""
    staged(path).rename(path)
    sync_folder(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, replacing what was there at once; only its user can read it.

    The content reaches the disk before the name does: after a crash the old file is there, or the new one.
    """
    stage(path, content)
    place(path)


def read_regular(path: Path) -> bytes:
    """The content of a file; OSError if there is none, or a pipe or device in its place, which may have no end."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    return path.read_bytes()


def sha256(content: bytes) -> str:
    """The SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def folder_of(name: str, settings: Any) -> Path:
    """The folder below ``runs`` that ``settings``, which are JSON, determine: the same ones find it again."""
    return Path("runs") / f"{name}-{sha256(json.dumps(settings, sort_keys=True).encode())[:8]}"


def synchronise(descriptor: int) -> None:
    """Return when the file's content is on disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(folder: Path) -> None:
    """Return when the names in ``folder`` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
