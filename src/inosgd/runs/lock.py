"""The lock of a folder: one process at a time works in it, and the lock ends with the process, however it ends."""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from inosgd.errors import InvalidArgumentError, RunLockedError

_held: set[tuple[int, int, int]] = set()
"""The folders that this process has locked, by `_identity`: a file lock does not keep a process from itself."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, no other process, and nothing else in this one, holds the lock of ``folder``.

    By whatever path, link or mount the folder is reached, it is one folder and has one lock.

    Raises:
        RunLockedError: If another process holds it; the error names it.
    """
    identity = _identity(folder)
    if identity in _held:
        raise _in_use(folder, f"this process ({os.getpid()})")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise _in_use(folder, file.read().strip() or "another process") from None
        _sign(file)
        _held.add(identity)
        try:
            yield
        finally:
            _held.discard(identity)


def check_locked(folder: Path) -> None:
    """Raise unless this process holds the lock; a forked process holds none."""
    if _identity(folder) not in _held:
        raise InvalidArgumentError(
            f"run {str(folder)!r} is not locked: work inside `with run.lock() as locked:`, on what it gives"
        )


def is_at_work(folder: Path) -> bool:
    """Whether the process that signed the lock of ``folder`` lives; one on another machine is taken to.

    No lock is taken, so that looking keeps no process from its work.
    """
    lock = folder / "lock"
    if not lock.is_file():
        return False
    signed = re.match(r"process (\d+) on (\S+) since", lock.read_text(encoding="utf-8"))
    if signed is None:
        return False
    if signed[2] != socket.gethostname():
        return True
    try:
        os.kill(int(signed[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _identity(folder: Path) -> tuple[int, int, int]:
    """This process and the folder itself, whatever path leads to it."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        raise InvalidArgumentError(f"run={str(folder)!r}: there is no run; give the folder of one") from None
    return os.getpid(), found.st_dev, found.st_ino


def _sign(file: IO[str]) -> None:
    file.seek(0)
    file.truncate()
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n")
    file.flush()


def _in_use(path: Path, holder: str) -> RunLockedError:
    return RunLockedError(f"run {str(path)!r} is in use by {holder}; wait for it to end, or end it", holder)
