"""Saving: from the state of a training to a checkpoint on disk, to another process, and back to the same bits."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import nn

from inosgd.distributed import Peers
from inosgd.errors import CheckpointError
from inosgd.files import place, sha256, staged, write_private
from inosgd.ledger.history import KnownCheckpoint
from inosgd.ledger.records import Position
from inosgd.randomness import without_key
from inosgd.runs.checkpoint import CHECKPOINT_FORMAT, DAMAGE, TENSOR_FILES, Checkpoint, as_json, read_checkpoint
from inosgd.streams import Streams
from inosgd.training import TrainingState

Tensors = dict[str, torch.Tensor]


def write_checkpoint(folder: Path, state: TrainingState) -> Checkpoint:
    """Write a checkpoint of ``state`` into ``folder``; when this returns, it is on disk and in the state's ledger."""
    there = _same(folder, state)
    if there is not None:
        return there
    position = state.ledger.position
    path = folder / checkpoint_name(state.step, position)
    shutil.rmtree(staged(path), ignore_errors=True)
    staged(path).mkdir(mode=0o700)
    known = _write_parts(path, state, position)
    place(path)
    return read_checkpoint(path, known)


def _same(folder: Path, state: TrainingState) -> Checkpoint | None:
    """The newest checkpoint, if no step was taken and nothing given up since."""
    history = state.ledger.history
    newest = history.in_order()[-1:]
    if newest and newest[0].step == state.step and newest[0].record > history.returned:
        path = folder / newest[0].name
        return read_checkpoint(path, newest[0]) if path.exists() else None
    return None


def checkpoint_name(step: int, position: Position) -> str:
    """Names sort by step and then by place in the ledger, and no two states share one."""
    return f"step-{step:08d}.record-{position.records:08d}"


def restore(checkpoint: Checkpoint, state: TrainingState) -> None:
    """Put the checkpoint's model, optimizer, streams and step into ``state``, and tell its ledger where it goes on.

    Raises:
        CheckpointError: If model, optimizer or anything else differs from what was saved, naming the first key.
    """
    name = checkpoint.path.name
    contents = {file: _read(checkpoint.path / file) for file in TENSOR_FILES}
    _put(_checked(name, _Parts(checkpoint.fields, checkpoint.streams, contents), state), checkpoint.step, name, state)


def saved_also(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What was saved beside model and optimizer, by name.

    Raises:
        CheckpointError: If it cannot be read.
    """
    path = checkpoint.path / "optimizer.safetensors"
    found: Mapping[str, Any] = _decode(
        checkpoint.fields["also"], _load(f"{checkpoint.path.name}/{path.name}", _read(path))
    )
    return found


def copy_to_peers(peers: Peers, state: TrainingState) -> None:
    """Bring every process of a training to the ``state`` of the first; what it sends is never on disk.

    Raises:
        CheckpointError: If model, optimizer or anything else of a process differs from the first one's.
    """
    if peers.size == 1:
        return
    sent = peers.from_first(_packed(_parts(state, state.ledger.position)) if peers.first else b"")
    with peers.together():
        if not peers.first:
            parts = _unpacked(sent)
            what = "of the first process"
            _put(_checked(what, parts, state), parts.fields["step"], what, state)


class _Parts(NamedTuple):
    """What the files of a checkpoint hold."""

    fields: Mapping[str, Any]
    streams: Mapping[str, Any]
    contents: Mapping[str, bytes]


class _Saved(NamedTuple):
    """What a checkpoint holds, decoded."""

    model: Mapping[str, Any]
    optimizer: dict[str, Any]
    also: Mapping[str, Any]
    streams: Streams


def _checked(name: str, parts: _Parts, state: TrainingState) -> _Saved:
    """The content of a checkpoint, after comparing it with what it is to be loaded into; ``state`` is not touched."""
    fields = parts.fields
    try:
        model, tensors = (_load(f"{name}/{file}", parts.contents[file]) for file in TENSOR_FILES)
        saved = _Saved(
            _decode(fields["model"], model),
            _decode(fields["optimizer"], tensors),
            _decode(fields["also"], tensors),
            Streams.from_state(parts.streams),
        )
        _check_model(state.model, saved.model)
        _check_optimizer(state.optimizer, fields["optimizer_class"], saved.optimizer)
        _check_keys("also", state.also, saved.also)
    except DAMAGE as error:
        raise CheckpointError(f"checkpoint {name} cannot be used: {error!r}") from error
    return saved


def _put(saved: _Saved, step: int, name: str, state: TrainingState) -> None:
    """Load what was checked."""
    state.ledger.resume_at(step)
    try:
        state.optimizer.load_state_dict(saved.optimizer)
        for key, values in saved.also.items():
            state.also[key].load_state_dict(values)
        state.model.load_state_dict(saved.model)
    except (*DAMAGE, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {name} cannot be used: {error!r}") from error
    state.streams, state.step = saved.streams, step


def _write_parts(path: Path, state: TrainingState, position: Position) -> KnownCheckpoint:
    """Put the files of a checkpoint that will be at ``path`` on disk, and then into the ledger."""
    parts = _parts(state, position)
    fields, streams = as_json(parts.fields), as_json(parts.streams)
    for name, content in {**parts.contents, "streams.json": streams, "state.json": fields}.items():
        write_private(staged(path) / name, content)
    erased = as_json({name: without_key(each) for name, each in parts.streams.items()})
    digests = {"state": sha256(fields), "streams": sha256(streams), "erased": sha256(erased)}
    return state.ledger.mark_checkpoint(path.name, state.step, **digests)


def _parts(state: TrainingState, position: Position) -> _Parts:
    model_tensors: Tensors = {}
    tensors: Tensors = {}
    fields = {
        "format": CHECKPOINT_FORMAT,
        "step": state.step,
        "ledger": position._asdict(),
        "model": _encode(state.model.state_dict(), model_tensors, ""),
        "optimizer_class": _class_name(state.optimizer),
        "optimizer": _encode(state.optimizer.state_dict(), tensors, "optimizer"),
        "also": _encode({name: each.state_dict() for name, each in state.also.items()}, tensors, "also"),
    }
    contents = {
        "model.safetensors": safetensors.save(model_tensors),
        "optimizer.safetensors": safetensors.save(tensors),
    }
    digests = {name: sha256(data) for name, data in contents.items()}
    return _Parts({**fields, "files": digests}, state.streams.state(), contents)


def _packed(parts: _Parts) -> bytes:
    """The parts in a row, behind their lengths."""
    rows = [json.dumps(parts.fields).encode(), json.dumps(parts.streams).encode(), *parts.contents.values()]
    return np.array([len(row) for row in rows], dtype="<u8").tobytes() + b"".join(rows)


def _unpacked(content: bytes) -> _Parts:
    """The inverse of `_packed`."""
    count = 2 + len(TENSOR_FILES)
    ends = 8 * count + np.cumsum(np.frombuffer(content[: 8 * count], dtype="<u8").astype(np.int64))
    rows = [content[start:end] for start, end in pairwise([8 * count, *ends.tolist()])]
    return _Parts(json.loads(rows[0]), json.loads(rows[1]), dict(zip(TENSOR_FILES, rows[2:], strict=True)))


def _check_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    here = model.state_dict()
    _check_keys("model", here, saved)
    for key, value in saved.items():
        _check_same_kind(f"model key {key!r}", here[key], value)


def _check_optimizer(optimizer: torch.optim.Optimizer, saved_class: str, saved: Mapping[str, Any]) -> None:
    if _class_name(optimizer) != saved_class:
        raise CheckpointError(
            f"optimizer: the checkpoint was written with {saved_class}, this is {_class_name(optimizer)}; use the same"
        )
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != here:
        raise CheckpointError(
            f"optimizer: groups of {here} parameters here and {sizes} in the checkpoint; use the same"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in saved["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != parameters[index].shape:
                raise CheckpointError(
                    f"optimizer key {index}.{key}: the checkpoint has shape {tuple(value.shape)} and the parameter "
                    f"{tuple(parameters[index].shape)}; use the model that was saved"
                )


def _check_keys(what: str, here: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{what}: the checkpoint has a {type(saved).__name__} for it; use an earlier one")
    for key in saved:
        if key not in here:
            raise CheckpointError(f"{what} key {key!r} is in the checkpoint and not here; build what was saved")
    for key in here:
        if key not in saved:
            raise CheckpointError(f"{what} key {key!r} is not in the checkpoint; build what was saved")


def _check_same_kind(what: str, here: Any, saved: Any) -> None:
    if not isinstance(here, torch.Tensor):
        return
    if not isinstance(saved, torch.Tensor):
        raise CheckpointError(f"{what}: a {type(saved).__name__} in the checkpoint, and a tensor here")
    ours, theirs = (tuple(here.shape), here.dtype), (tuple(saved.shape), saved.dtype)
    for ours_now, saved_then in zip(ours, theirs, strict=True):
        if ours_now != saved_then:
            raise CheckpointError(f"{what}: {saved_then} in the checkpoint and {ours_now} here; build what was saved")


def _encode(value: Any, tensors: Tensors, path: str) -> Any:
    """``value`` as JSON, its tensors taken out into ``tensors``; what is neither is refused by its key."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _encode(item, tensors, _join(path, key))] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_encode(item, tensors, _join(path, index)) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else {"list": items}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"key {path!r}: a {type(value).__name__} is neither a tensor nor plain JSON and is not saved, because only "
        "code could restore it; keep it out of state_dict"
    )


def _decode(value: Any, tensors: Tensors) -> Any:
    """The inverse of `_encode`."""
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("a value is neither a tensor, a mapping, a list nor a number")
    kind, content = next(iter(value.items()))
    if kind == "tensor":
        return tensors[content]
    if kind == "mapping":
        return {key: _decode(item, tensors) for key, item in content}
    if kind == "float":
        return float(content)
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error


def _load(name: str, content: bytes) -> Tensors:
    try:
        return safetensors.load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{name} cannot be read: {error}") from error


def _class_name(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
