"""Files that are there whole or not at all, private, and on disk when the function returns."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inosgd.records import sync_folder


def write_private(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, replacing what was there at once; only its user can read it.

    The content reaches the disk before the name does: after a crash the old file is there, or the new one.
    """
    working = path.parent / f".{path.name}.partial"
    descriptor = os.open(working, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    working.rename(path)
    sync_folder(path.parent)


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Put ``fields`` at ``path`` as JSON that carries its own digest."""
    text = json.dumps(fields, allow_nan=False)
    write_private(path, json.dumps({"digest": sha256(text.encode()), "fields": fields}, allow_nan=False).encode())


def read_json(path: Path) -> dict[str, Any]:
    """The fields that `write_json` wrote; ValueError if a byte of them has changed."""
    content = json.loads(path.read_bytes())
    fields: dict[str, Any] = content["fields"]
    if sha256(json.dumps(fields, allow_nan=False).encode()) != content["digest"]:
        raise ValueError(f"{path.name}: its content does not match its digest")
    return fields


def sha256(content: bytes) -> str:
    """The SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
