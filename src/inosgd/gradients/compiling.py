"""Compiling: code in C++ that is built on first use where there is a compiler, and done without where there is none.

A build takes about a second. It is kept (see `inosgd.kept`) under a name made of the source, the compiler and the
processor, so that another machine with the same home builds its own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from inosgd.files import sha256
from inosgd.kept import keep, kept_at, read_kept

SWITCH = "INOSGD_COMPILE"
"""The environment variable that turns compiled code off when it is 0."""

OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC")
"""No option that changes what NaN and infinity mean, and none that lets the compiler choose how often to round."""

_SECONDS = 120


@cache
def compiled(source: Path) -> ctypes.CDLL | None:
    """The library that ``source`` builds; None where it is turned off, or cannot be built or loaded."""
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None or os.environ.get(SWITCH) == "0":
        return None
    try:
        place = kept_at(f"{source.stem}-{_fingerprint(source, compiler)}.so")
        content = read_kept(place)
        if content is None:
            content = _built(source, compiler)
            keep(place, content)
        return _loaded(content)
    except (OSError, subprocess.SubprocessError):
        return None


def _loaded(content: bytes) -> ctypes.CDLL:
    """The library of these bytes, from a file that no other user could have changed since they were read."""
    with tempfile.TemporaryDirectory(prefix="inosgd-") as folder:
        file = Path(folder) / "library.so"
        file.write_bytes(content)
        return ctypes.CDLL(str(file))


def _fingerprint(source: Path, compiler: str) -> str:
    found = os.stat(compiler)
    texts = [file.read_text(encoding="utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    parts = (*texts, compiler, found.st_size, found.st_mtime_ns, *OPTIONS, _processor())
    return sha256(repr(parts).encode())[:16]


def _processor() -> str:
    """What the processor can do, as far as the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


def _built(source: Path, compiler: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="inosgd-") as folder:
        target = Path(folder) / "built.so"
        command = [compiler, *OPTIONS, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)  # noqa: S603
        return target.read_bytes()
