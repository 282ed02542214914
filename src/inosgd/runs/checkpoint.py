"""Checkpoints: everything that a training needs to go on to the same bits, in one folder that is whole or not there.

    step-00000050.record-00000053/
      model.safetensors        the model's state, loadable without inosgd
      optimizer.safetensors    the optimizer's tensors, and those of whatever else was saved with them
      state.json               step, position in the ledger, the optimizer's other values, digests of the two files
      streams.json             the states of the random streams: secret, as the data are

No file holds code: tensors are safetensors, everything else is JSON, nothing is pickled. All are private (0600).

Guarantee:
    A checkpoint is written into a hidden folder and forced to disk; its digests are recorded in the ledger; then it is
    renamed. Killed at any instant, it is there whole or not at all, and what has the name of a checkpoint is known to
    the ledger: one that is not was put there by another program. Where the process died between record and name,
    `inosgd.runs.LockedRun.open_ledger` gives it the name. `read_checkpoint` finds any changed byte by the ledger's
    digests, so a forged or older one is not taken for it. `inosgd.runs.saving.restore` puts back model, optimizer,
    streams and step, or raises and leaves the model untouched.

Keys of secure streams are on disk only as long as a crash could need them: in the newest two checkpoints while
training, in none after it (`erase_keys`). Their source forgets earlier keys, so no checkpoint leads back to the noise
of the steps before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inosgd import _validate
from inosgd.errors import CheckpointError
from inosgd.files import read_regular, sha256, write_private
from inosgd.ledger.history import KnownCheckpoint
from inosgd.ledger.records import Position
from inosgd.randomness import without_key

CHECKPOINT_FORMAT = 2
"""Raised when a key changes its meaning; readers refuse formats they do not know and ignore keys they do not know."""

TENSOR_FILES = ("model.safetensors", "optimizer.safetensors")
FILES = (*TENSOR_FILES, "state.json", "streams.json")

DAMAGE = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What reading a damaged or forged file may raise."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole: where it is, and what it says without its tensors.

    Attributes:
        path: Its folder.
        step: How many steps it has behind it.
        position: The end of the ledger when it was written.
        model_digest: The SHA-256 of its ``model.safetensors``.
        fields: All of ``state.json``.
        streams: The states of the random streams; secret.
        known: What the ledger says of it.
    """

    path: Path
    step: int
    position: Position
    model_digest: str
    fields: Mapping[str, Any] = field(repr=False)
    streams: Mapping[str, Any] = field(repr=False)
    known: KnownCheckpoint

    @property
    def model_path(self) -> Path:
        """The model's state, as safetensors."""
        return self.path / "model.safetensors"


def read_checkpoint(path: Path, known: KnownCheckpoint, *, tensors: bool = True) -> Checkpoint:
    """The checkpoint at ``path``, compared with what the ledger says of it: every byte, or all but the ``tensors``.

    Raises:
        CheckpointError: If a file is missing, or not the one that was recorded.
    """
    try:
        content = read_regular(path / "state.json")
        secret = read_regular(path / "streams.json")
        _check_recorded("state.json", content, known.state)
        _check_recorded("streams.json", secret, known.streams, known.erased)
        fields, streams = json.loads(content), json.loads(secret)
        _check_format(path, fields)
        for name in TENSOR_FILES:
            if tensors:
                _check_recorded(name, read_regular(path / name), fields["files"][name])
        position = Position(fields["ledger"]["records"], str(fields["ledger"]["hash"]))
        _validate.whole(0, step=fields["step"], records=position.records)
        return Checkpoint(path, fields["step"], position, fields["files"]["model.safetensors"], fields, streams, known)
    except DAMAGE as error:
        raise CheckpointError(
            f"checkpoint {path.name} is damaged: {error}; restore it from a copy, or go on from an earlier one"
        ) from error


def _check_recorded(name: str, content: bytes, *digests: str) -> None:
    if sha256(content) not in digests:
        raise ValueError(f"{name}: its content is not what the ledger recorded")


def erase_keys(checkpoint: Checkpoint) -> None:
    """Take the keys of secure streams out of the checkpoint: the noise after it can no longer be computed.

    A run goes on from such a checkpoint with new keys, which is allowed where no recorded step would be replayed.
    """
    kept = {name: without_key(state) for name, state in checkpoint.streams.items()}
    if kept != checkpoint.streams:
        write_private(checkpoint.path / "streams.json", as_json(kept))


def holds_keys(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint still has keys of secure streams."""
    return any(without_key(state) != state for state in checkpoint.streams.values())


def has_all_keys(checkpoint: Checkpoint) -> bool:
    """Whether the noise after the checkpoint can be computed again: no key of a secure stream was erased."""
    return not any(state.get("kind") == "secure" and state["key"] is None for state in checkpoint.streams.values())


def as_json(fields: Mapping[str, Any]) -> bytes:
    """A file of a checkpoint."""
    return json.dumps(fields, allow_nan=False).encode()


def _check_format(path: Path, fields: Mapping[str, Any]) -> None:
    if fields.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"checkpoint {path.name}: format={fields.get('format')!r}; this version reads format {CHECKPOINT_FORMAT}"
        )
