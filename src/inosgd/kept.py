"""Kept: what takes seconds to make, is the same every time, and may be deleted at any time.

It lies in the user's folder for such things (``XDG_CACHE_HOME``, by default ``~/.cache``). What is found there is
believed only if it is whole and no other user could have written it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inosgd.files import sha256

_MARK = b"\n// sha256 "


def kept_at(name: str) -> Path | None:
    """Where something of this name is kept; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "inosgd" / name


def read_kept(path: Path | None) -> bytes | None:
    """What `keep` put at ``path``; None unless it is whole, and no other user could have written it."""
    if path is None:
        return None
    try:
        with _opened(path.parent, os.O_DIRECTORY) as folder, _opened(path.name, 0, folder) as file:
            content, _, digest = _all_of(file).rpartition(_MARK)
    except OSError:
        return None
    return content if digest == sha256(content).encode() else None


def keep(path: Path | None, content: bytes) -> None:
    """Put ``content`` at ``path``, with its digest behind it; where that is not possible it is made again next time."""
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, working = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its user only
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content + _MARK + sha256(content).encode())
            os.replace(working, path)
        except OSError:
            os.unlink(working)


@contextmanager
def _opened(name: Path | str, kind: int, folder: int | None = None) -> Iterator[int]:
    """A descriptor of what is there, no link, and the user's alone to write; OSError otherwise."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        plain = stat.S_ISDIR(found.st_mode) if kind else stat.S_ISREG(found.st_mode)
        if not plain or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{name}: another user could have written it")
        yield descriptor
    finally:
        os.close(descriptor)


def _all_of(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()
