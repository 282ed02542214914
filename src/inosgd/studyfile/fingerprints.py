"""Fingerprints: checksums of the files that a run was trained on, so that it never goes on with others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from inosgd.errors import InvalidArgumentError


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(folder: Path, paths: Iterable[Path]) -> str:
    """One SHA-256 for many files: of their names, seen from ``folder``, and their digests, in the order of names."""
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in paths):
        total.update(f"{name}\0{file_digest(path)}\n".encode())
    return total.hexdigest()


def refuse_changes(recorded: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise unless the files are those that the run began with.

    A run that went on with other data would be charged to budgets as if it had not: what was spent and what is spent
    next would be about different examples.
    """
    for name in sorted({*recorded, *found}):
        if recorded.get(name) != found.get(name):
            raise InvalidArgumentError(
                f"{name}: it is not the file that this run began with (SHA-256 {_short(recorded.get(name))} then, "
                f"{_short(found.get(name))} now); put the old one back, or train anew with `inosgd train`"
            )


def _short(digest: str | None) -> str:
    return "absent" if digest is None else f"{digest[:12]}..."
