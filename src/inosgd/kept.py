"""Kept: what takes seconds to make, is the same every time, and may be deleted at any time.

It lies in the user's folder for such things (``XDG_CACHE_HOME``, by default ``~/.cache``). What is found there is
believed only if it is whole and nobody but its user could have written it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
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
    """What `keep` put at ``path``; None unless it is whole, and nobody but its user could have written it."""
    if path is None:
        return None
    try:
        if not (stat.S_ISDIR(_ours(path.parent)) and stat.S_ISREG(_ours(path))):
            return None
        content, _, digest = path.read_bytes().rpartition(_MARK)
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


def _ours(path: Path) -> int:
    """The mode of what is at ``path``; 0 if it is not the user's alone to write."""
    found = path.lstat()
    return 0 if found.st_uid != os.getuid() or found.st_mode & 0o022 else found.st_mode
