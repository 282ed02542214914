"""The files of a run against its ledger: every file that matters is known to the chain before it has its name.

A file is written under a hidden name and forced to disk, its SHA-256 is recorded in the ledger, and then it is renamed
(`put`; checkpoints do the same). So a kill leaves one of three things: a hidden file that the ledger does not know and
that is never read; a hidden file that it knows, which `complete` renames; or the file. A file without the right digest
is damaged, older or forged, and a checkpoint, plan or model that the ledger does not know was put there.

What is not covered, because no training goes on from it and no promise rests on it, is in `NOT_COVERED`. SECURITY.md
has a table of all files. The chain has no secret: this finds accidents and edits, but not a party that rewrites the
files together with the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inosgd.errors import CheckpointError, InosgdError, InvalidArgumentError, LedgerError
from inosgd.files import place, read_regular, sha256, stage, staged
from inosgd.ledger.history import History, KnownCheckpoint, replay
from inosgd.ledger.ledger import Ledger, check_kept, last_mark
from inosgd.ledger.records import Chain, Position, check_position, read_chain
from inosgd.ledger.verification import Finding
from inosgd.runs.checkpoint import FILES, Checkpoint, holds_keys, read_checkpoint

DESCRIPTION, KEY, LEDGER, POSITION, METRICS = "run.json", "data.key", "ledger.jsonl", "position.json", "metrics.jsonl"
CHECKPOINTS, PLANS, MODEL = "checkpoints", "plans", "model"

YARDSTICK = "yardstick-not-private.json"
"""The score of a training without privacy, where one was asked for."""

NOT_COVERED = (METRICS, "report.html", "lock", YARDSTICK)
"""Results on held-out examples, the page about them, who is at work, and a yardstick."""

WITH_KEYS = 2
"""How many checkpoints keep the keys of secure streams while a run trains."""


def put(folder: Path, ledger: Ledger, contents: Mapping[str, bytes], step: int | None = None) -> None:
    """Write files below ``folder``, each known to the ledger before it has its name."""
    for name, content in contents.items():
        stage(folder / name, content)
    ledger.mark_files({name: sha256(content) for name, content in contents.items()}, step)
    for name in contents:
        place(folder / name)


def complete(folder: Path, history: History) -> None:
    """Give their names to files and checkpoints that a killed process had recorded and not yet renamed."""
    for name, known in history.files.items():
        if _sha256(folder / name) != known.sha256 and _sha256(staged(folder / name)) == known.sha256:
            place(folder / name)
    for checkpoint in history.checkpoints.values():
        path = folder / CHECKPOINTS / checkpoint.name
        if not path.exists() and staged(path).exists():
            place(path)


def read_known(folder: Path, history: History, name: str) -> bytes:
    """The content of a file that training goes on from.

    Raises:
        InvalidArgumentError: If it is missing, or not the one that the ledger knows.
    """
    known = history.files.get(name)
    if known is None:
        raise InvalidArgumentError(f"{folder / name}: the ledger knows no such file; restore the run from a copy")
    with suppress(OSError):
        content = read_regular(folder / name)
        if sha256(content) == known.sha256:
            return content
    raise InvalidArgumentError(str(_wrong(folder, name, history).message))


def check_needed(folder: Path, history: History) -> None:
    """Raise unless every file that was there before a step is the one that the ledger knows; the key may be gone."""
    for name, known in history.files.items():
        if known.step is None and not (name == KEY and not (folder / name).exists()):
            read_known(folder, history, name)


def check_checkpoints_known(folder: Path, chain: Chain, history: History) -> None:
    """Raise if there is a checkpoint that the ledger does not know: it lost records, or another program wrote it."""
    for path in sorted((folder / CHECKPOINTS).glob("step-*")):
        if path.name not in history.checkpoints and path.name not in history.given_up:
            raise _unknown_checkpoint(path, chain)


def read_checkpoints(folder: Path, history: History, *, tensors: bool) -> Iterator[Checkpoint | CheckpointError]:
    """The checkpoints that stand, the newest last; for one that is not what the ledger says, the error."""
    for known in history.in_order():
        try:
            yield read_checkpoint(folder / CHECKPOINTS / known.name, known, tensors=tensors)
        except CheckpointError as error:
            yield error


@dataclass(frozen=True)
class Comparison:
    """What is wrong with the files of a run, and what is worth knowing and not wrong."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def compare(folder: Path, planned: int | None) -> Comparison:
    """Every file below ``folder`` against the ledger; ``planned`` is the plan's number of steps, if it is known."""
    chain = read_chain(folder / LEDGER)
    history = replay(chain)
    seen = [
        *_position(folder, chain),
        *_files(folder, history),
        *_checkpoints(folder, history, planned),
        *_unknown(folder, chain, history),
    ]
    findings = tuple(each for each in seen if isinstance(each, Finding))
    return Comparison(findings, tuple(each for each in seen if isinstance(each, str)))


Seen = Iterator[Finding | str]
"""A finding, or a note."""


def _position(folder: Path, chain: Chain) -> Seen:
    last = last_mark(chain).records
    try:
        kept = check_kept(folder / POSITION, chain)
    except LedgerError as error:
        yield Finding(error.record, str(error))
    else:
        if kept.records < last:
            yield (
                f"{POSITION} is of record {kept.records}, and record {last} should be in it: it is an older one, or a "
                "process was killed; resume brings it up to date"
            )


def _files(folder: Path, history: History) -> Seen:
    for name, known in history.files.items():
        if _sha256(folder / name) == known.sha256:
            continue
        if _sha256(staged(folder / name)) == known.sha256:
            yield f"{name}: a process was killed before it gave the file its name; resume does"
        elif name == KEY and not (folder / name).exists():
            yield f"{KEY} is not there: no resume can compare the data; restore it from a copy to go on"
        else:
            yield _wrong(folder, name, history)


def _wrong(folder: Path, name: str, history: History) -> Finding:
    known = history.files[name]
    how = "is not the file that the ledger knows" if (folder / name).exists() else "is missing"
    again = "" if known.step is None else ", or resume the run, which writes it again"
    return Finding(known.record, f"{name} {how} (record {known.record}); restore it from a copy{again}")


def _checkpoints(folder: Path, history: History, planned: int | None) -> Seen:
    published = dict(history.published_models)
    standing = history.in_order()
    keep = () if standing and standing[-1].step == planned else standing[-WITH_KEYS:]
    for known, found in zip(standing, read_checkpoints(folder, history, tensors=True), strict=True):
        if isinstance(found, CheckpointError):
            yield _spoiled(folder, known, found)
            continue
        if published.get(found.step) == found.model_digest:
            del published[found.step]
        if holds_keys(found) and known not in keep:
            yield Finding(
                known.record,
                f"checkpoint {known.name}: its streams.json holds keys that should be erased by now; resume the run, "
                "which erases them",
            )
    for step, digest in published.items():
        if digest is not None:
            yield Finding(
                None, f"the model that was published after step {step} is not there; restore its checkpoint from a copy"
            )


def _spoiled(folder: Path, known: KnownCheckpoint, error: CheckpointError) -> Finding | str:
    path = folder / CHECKPOINTS / known.name
    if not path.exists():
        with suppress(CheckpointError):
            read_checkpoint(staged(path), known)
            return f"checkpoint {known.name}: a process was killed before it gave it its name; resume does"
    return Finding(known.record, f"{error} (record {known.record})")


def _unknown(folder: Path, chain: Chain, history: History) -> Seen:
    """Whatever lies below the folder and is not in the ledger, nor named as not covered."""
    for path in sorted((folder / CHECKPOINTS).glob("step-*")):
        if _sha256(path / "streams.json") in (None, history.thinned.get(path.name)) and path.name in history.thinned:
            yield f"checkpoint {path.name}: a process was killed before it removed one of many; resume does"
        elif path.name in history.given_up:
            record = history.given_up[path.name]
            yield Finding(record, f"checkpoint {path.name} was given up; resume the run, which removes it")
        elif path.name not in history.checkpoints:
            error = _unknown_checkpoint(path, chain)
            yield Finding(error.record if isinstance(error, LedgerError) else None, str(error))
    known = {*history.files, LEDGER, POSITION, *NOT_COVERED}
    known |= {f"{CHECKPOINTS}/{name}/{file}" for name in history.checkpoints for file in FILES}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in known and (path.is_symlink() or not path.is_dir()):
            yield from _stranger(name, history)


def _stranger(name: str, history: History) -> Seen:
    room, *parts = name.split("/")
    if any(part.startswith(".") for part in (room, *parts)):
        yield f"{name} was left by a process that was killed, or set aside; nothing reads it"
    elif room == CHECKPOINTS and parts and (parts[0] in history.given_up or parts[0].startswith("step-")):
        if parts[0] in history.checkpoints:
            yield Finding(None, f"{name}: the ledger knows no such file of a checkpoint; remove it")
    elif room in (CHECKPOINTS, PLANS, MODEL):
        yield Finding(None, f"{name}: the ledger does not know it; remove it")
    else:
        yield f"{name} is not of this run: the ledger does not know it"


def _unknown_checkpoint(path: Path, chain: Chain) -> InosgdError:
    """What a checkpoint that the ledger does not know shows about the two."""
    try:
        fields = json.loads(read_regular(path / "state.json"))
        position = Position(int(fields["ledger"]["records"]), str(fields["ledger"]["hash"]))
        check_position(position, chain, f"checkpoint {path.name} was written")
    except LedgerError as error:
        return error
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError):
        pass
    return CheckpointError(
        f"checkpoint {path.name} is not in the ledger: the ledger lost its last records, or another program put the "
        "checkpoint there; restore the ledger from a copy, or remove the checkpoint"
    )


def _sha256(path: Path) -> str | None:
    """None if there is no file that can be read."""
    try:
        return sha256(read_regular(path))
    except OSError:
        return None
