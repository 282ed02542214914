"""The audit's folder: private, one file per finished model, so that an interrupted audit continues."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.audit import NOT_PRIVATE
from inosgd.errors import InvalidArgumentError
from inosgd.files import write_private

_NOTE = "NOT-PRIVATE.txt"


class AuditFolder:
    """A folder whose files belong to one configuration; what is there is not computed again.

    Everything in it comes from training data: the folder and its files are readable by their user alone.
    """

    def __init__(self, path: Path, configuration: Mapping[str, Any]) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        described = path / "configuration.json"
        wanted = json.loads(json.dumps(dict(configuration)))
        if described.exists():
            if json.loads(described.read_text(encoding="utf-8")) != wanted:
                raise InvalidArgumentError(
                    f"out={str(path)!r}: it holds an audit of other settings; choose another folder, or remove it"
                )
        elif any(not name.name.startswith(".") for name in path.iterdir()):
            raise InvalidArgumentError(f"out={str(path)!r}: it is not empty and not an audit; choose another folder")
        write_private(described, (json.dumps(wanted, indent=1) + "\n").encode())
        write_private(path / _NOTE, (NOT_PRIVATE + "\n").encode())

    def has(self, name: str) -> bool:
        """Whether ``name`` was kept; files are written whole, so that one which exists is complete."""
        return (self.path / f"{name}.npz").exists()

    def keep(self, name: str, **arrays: np.typing.NDArray[Any]) -> None:
        """Keep arrays under ``name``."""
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        write_private(self.path / f"{name}.npz", content.getvalue())

    def kept(self, name: str) -> dict[str, np.typing.NDArray[Any]]:
        """The arrays under ``name``; nothing in a file is executed."""
        with np.load(self.path / f"{name}.npz", allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}

    def write(self, name: str, text: str) -> None:
        """Put a text file there."""
        write_private(self.path / name, text.encode())


def shadow_name(number: int) -> str:
    """The name of a shadow model's file."""
    return f"shadow-{number:05d}"


def confidences_of(folder: AuditFolder, numbers: Sequence[int]) -> FloatArray:
    """The confidences of shadow models, one row each."""
    return np.stack([folder.kept(shadow_name(number))["confidences"] for number in numbers]).astype(np.float64)
