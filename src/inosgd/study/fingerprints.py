"""Fingerprints: checksums of the files that a run was trained on, so that it never goes on with others.

They are plain SHA-256 and stay in memory. What is written down are `inosgd.runs.keyed` digests of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from inosgd.data.image_folder import SUFFIXES, find_images
from inosgd.data.tables import DELIMITERS
from inosgd.errors import InvalidArgumentError
from inosgd.runs.keyed import keyed_digest
from inosgd.study.reading import StudyFile
from inosgd.study.schema import ImageData, MappedData, label_names
from inosgd.study.study import Study, StudyData


def fingerprints_of(study: Study, data: StudyData) -> dict[str, str]:
    """What stands for the data of a study: checksums of its files, or one of its examples if it has none."""
    if study.file is not None:
        return study_fingerprints(study.file)
    inputs, targets = data.examples.all()
    digest = hashlib.sha256()
    for part in (inputs.numpy(), targets.numpy(), data.owners.assignment):
        digest.update(part.tobytes())
    return {study.name: digest.hexdigest()}


def study_fingerprints(study: StudyFile) -> dict[str, str]:
    """A checksum of every file and folder that the study file names, by its name there."""
    data = study.schema.data
    names = [*([data.path] if isinstance(data.path, str) else data.path), *(data.held_out.path or [])]
    if isinstance(data, MappedData):
        names = [f"{folder}/{array}.npy" for folder in names for array in (data.inputs, *label_names(data))]
    if isinstance(data, ImageData):
        names += [index for index in (data.index, data.held_out.index) if index is not None]
    if study.schema.budgets.file is not None:
        names.append(study.schema.budgets.file)
    return {name: fingerprint(study.locate(name)) for name in names}


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of a folder that of the names and digests of its files, in the order of names."""
    if not path.exists():
        raise InvalidArgumentError(f"{path}: there is no such file or folder; correct the path")
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for each in _files(path):
        total.update(f"{each.relative_to(path).as_posix()}\0{fingerprint(each)}\n".encode())
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Images alone; or arrays; or images with the table that lists them."""
    others = [path for path in folder.rglob("*") if path.suffix.lower() in (".npy", ".parquet", *DELIMITERS)]
    if not others:
        return find_images(folder)
    return sorted([*others, *(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)])


def keyed(key: bytes, fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Fingerprints as they may be written down: a party without the key cannot test guesses at the data with them."""
    return {name: keyed_digest(key, digest.encode()) for name, digest in fingerprints.items()}


def refuse_changes(recorded: Mapping[str, str], found: Mapping[str, str], budgets: str | None = None) -> None:
    """Raise unless the files are those that the run began with.

    A run that went on with other data would be charged to budgets as if it had not: what was spent and what is spent
    next would be about different examples. ``budgets`` is the file of budgets, which has a command of its own.
    """
    for name in sorted({*recorded, *found}):
        if recorded.get(name) != found.get(name):
            fix = "train anew with `inosgd train`" if name != budgets else "change budgets with `inosgd budgets`"
            raise InvalidArgumentError(
                f"{name}: it is not the file that this run began with; put the old one back, or {fix}"
            )
