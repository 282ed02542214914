"""Run folders: complete, or not there."""

from __future__ import annotations

import datetime
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from inosgd.errors import InvalidArgumentError

SPOOLED = 1 << 26
"""So many bytes for standard output are collected in memory; more go to a temporary file."""


def check_new_file(out: Path | None) -> None:
    """Raise unless ``out`` can be written as a new file."""
    if out is not None and out.exists():
        raise InvalidArgumentError(f"out={str(out)!r}: it already exists; choose a new file")
    if out is not None and not out.parent.is_dir():
        raise InvalidArgumentError(f"out={str(out)!r}: there is no folder {str(out.parent)!r}; create it first")


def write_whole(path: Path, text: str) -> None:
    """Write a new file that is there whole or not at all."""
    working = path.parent / f".{path.name}.partial"
    working.write_text(text, encoding="utf-8")
    working.rename(path)


@contextmanager
def new_text(out: Path | None) -> Iterator[IO[str]]:
    """A file to write text to, piece by piece, that is there whole or not at all; standard output if ``out`` is None.

    What goes to standard output is collected first, so that nothing of it is seen if the block fails.
    """
    if out is None:
        with tempfile.SpooledTemporaryFile(SPOOLED, "w+", encoding="utf-8", newline="") as collected:
            yield collected
            collected.seek(0)
            shutil.copyfileobj(collected, sys.stdout)
        return
    working = out.parent / f".{out.name}.partial"
    try:
        with working.open("w", encoding="utf-8", newline="") as file:
            yield file
        working.rename(out)
    except BaseException:
        working.unlink(missing_ok=True)
        raise


@contextmanager
def run_folder(out: Path | None, name: str) -> Iterator[tuple[Path, Path]]:
    """A folder to write into, and the path it will have once the block has ended well.

    Work happens in a hidden folder beside the final one. If the block fails, the hidden folder is removed and
    nothing is left behind.
    """
    final = out if out is not None else Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if final.exists():
        raise InvalidArgumentError(f"out={str(final)!r}: it already exists; choose a new folder")
    parent_is_new = not final.parent.exists()
    final.parent.mkdir(parents=True, exist_ok=True)
    working = final.parent / f".{final.name}.partial"
    try:
        working.mkdir(mode=0o700)
    except FileExistsError:
        raise InvalidArgumentError(
            f"out={str(final)!r}: {working} is in the way; another run writes there, or one was killed: remove it"
        ) from None
    try:
        yield working, final
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        if parent_is_new:
            with suppress(OSError):  # another run may have come to live there
                final.parent.rmdir()
        raise
    working.rename(final)
