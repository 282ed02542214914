"""Records: an append-only file of JSON lines, each chained to the one before it by SHA-256.

A line is a JSON object in UTF-8 that ends with its own hash:

    {"record":3,"kind":"step", ... ,"previous":"<hash of record 2>","hash":"<hash of record 3>"}

``record`` counts from 1, ``previous`` of record 1 is 64 zeros, and ``hash`` is the SHA-256, in hexadecimal, of the
line's bytes before ``,"hash":``. So any change of a byte shows in that line, and a line that is lost, inserted or
moved shows in the line after it. What a chain cannot show by itself is the loss of its last lines: a party that relies
on it keeps a `Position` elsewhere. A chain has no secret; it finds accidents and edits, not a forger who rewrites
every line and every position that was kept.

Guarantee:
    When `RecordFile.append` returns, the record is on disk (``fdatasync``), and so are all before it. When it raises,
    or the machine dies in the middle, the file ends with the records before, or with a part of the new one: a torn
    record, which `RecordFile.open` removes. Records are written and synchronised one at a time, so only the last one
    can be torn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from inosgd.errors import InvalidArgumentError, LedgerError
from inosgd.files import sync_folder, synchronise

Body = Mapping[str, Any]
"""What a record says: a ``kind`` and its own keys."""

START = "0" * 64
_HASH_KEY = b',"hash":"'
_SUFFIX_BYTES = len(_HASH_KEY) + 64 + len(b'"}')


class Position(NamedTuple):
    """A place in a chain: how many records there were, and the hash of the last."""

    records: int
    hash: str


@dataclass(frozen=True)
class Chain:
    """The records of a file, and what was found behind the last whole one.

    Attributes:
        bodies: What each record says.
        hashes: The hash of each.
        bytes: How many bytes the whole records take.
        torn: How many bytes of a torn record follow; 0 if none.
        unended: Whether the last record is whole but for the end of its line.
    """

    bodies: tuple[dict[str, Any], ...]
    hashes: tuple[str, ...]
    bytes: int
    torn: int = 0
    unended: bool = False

    @property
    def position(self) -> Position:
        """The end of the chain."""
        return Position(len(self.hashes), self.hashes[-1] if self.hashes else START)


def encode(body: Body, position: Position) -> tuple[bytes, Position]:
    """The line of the record that says ``body`` behind ``position``, and the position after it."""
    fields = {"record": position.records + 1, **body, "previous": position.hash}
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    digest = hashlib.sha256(text).hexdigest()
    return text + _HASH_KEY + digest.encode() + b'"}\n', Position(position.records + 1, digest)


def read_chain(path: Path) -> Chain:
    """All records of the file at ``path``, checked; nothing is changed.

    Raises:
        LedgerError: For the first record that was edited, lost or moved. A torn last record is no error.
    """
    content = path.read_bytes()
    bodies: list[dict[str, Any]] = []
    position, size = Position(0, START), 0
    hashes: list[str] = []
    lines = _lines(content)
    for index, line in enumerate(lines):
        if index == len(lines) - 1 and _is_torn(line):
            break
        body, position = _decode(line.removesuffix(b"\n"), position, content)
        bodies.append(body)
        hashes.append(position.hash)
        size += len(line)
    unended = bool(size) and content[size - 1 : size] != b"\n"
    return Chain(tuple(bodies), tuple(hashes), size, len(content) - size, unended)


def check_position(position: Position, chain: Chain, when: str) -> None:
    """Raise `LedgerError` unless the chain has the record that was its last ``when`` something was."""
    records, digest = position
    if not 1 <= records <= len(chain.hashes):
        raise LedgerError(
            f"the ledger has {len(chain.hashes)} records, and had {records} when {when}: its last records were lost; "
            "restore it from a copy, because what is missing has been spent",
            record=len(chain.hashes) + 1,
            fault="lost",
        )
    if chain.hashes[records - 1] != digest:
        raise LedgerError(
            f"record {records} is not the one that was the last when {when}: the ledger was rewritten or belongs to "
            "another run; restore it from a copy",
            record=records,
            fault="edited",
        )


class RecordFile:
    """A chain that grows. Without a path it lives in memory; with ``durable=False`` the disk may lag behind."""

    def __init__(self, path: Path | None, position: Position, file: BinaryIO | None, *, durable: bool = True) -> None:
        self._path, self.position, self._file, self._durable = path, position, file, durable
        self._size = 0 if file is None else file.seek(0, os.SEEK_END)
        self._broken = False

    @classmethod
    def create(cls, path: Path | None, *, durable: bool = True) -> RecordFile:
        """An empty chain; the file is new and only its user can read it. An existing one is never touched."""
        if path is None:
            return cls(None, Position(0, START), None)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            raise InvalidArgumentError(f"path={str(path)!r}: a ledger is already there; choose a new folder") from None
        if durable:
            sync_folder(path.parent)
        return cls(path, Position(0, START), os.fdopen(descriptor, "ab", buffering=0), durable=durable)

    @classmethod
    def open(cls, path: Path) -> tuple[RecordFile, Chain]:
        """The chain at ``path``, to go on with; a torn last record is cut off, and what is left is on disk."""
        chain = read_chain(path)
        file = path.open("ab", buffering=0)
        if chain.torn:
            file.truncate(chain.bytes)
        if chain.unended:
            file.write(b"\n")
        os.fsync(file.fileno())
        return cls(path, chain.position, file), chain

    def append(self, body: Body) -> Position:
        """Write a record; when this returns it is on disk."""
        if self._broken:
            raise self._unwritten(body, "an earlier record could not be written; open the ledger again")
        line, position = encode(body, self.position)
        if self._file is not None:
            self._write(self._file, body, line)
        self.position = position
        return position

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _write(self, file: BinaryIO, body: Body, line: bytes) -> None:
        try:
            if os.fstat(file.fileno()).st_size != self._size:
                raise self._unwritten(body, "another process has written to it since it was opened; end that process")
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
            if self._durable:
                synchronise(file.fileno())
            self._size += len(line)
        except OSError as error:
            self._broken = True
            with suppress(OSError):  # if this fails too, the torn record is cut off when the file is opened again
                file.truncate(self._size)
            raise self._unwritten(body, f"{error.strerror or error}; make room") from error

    def _unwritten(self, body: Body, why: str) -> LedgerError:
        number = self.position.records + 1
        return LedgerError(
            f"record {number} ({body.get('kind')}) of {self._path} could not be written: {why}, then resume; nothing "
            "of it was released",
            record=number,
            fault="unwritten",
        )


def _lines(content: bytes) -> list[bytes]:
    """The lines with their ends; only a last one may lack it."""
    pieces = content.split(b"\n")
    ended = [piece + b"\n" for piece in pieces[:-1]]
    return [*ended, pieces[-1]] if pieces[-1] else ended


def _is_torn(line: bytes) -> bool:
    """Whether a last line was cut short: no end of line and no right hash, or bytes that never reached the disk."""
    if b"\0" in line:
        return True
    return not line.endswith(b"\n") and _own_hash(line) is None


def _own_hash(line: bytes) -> str | None:
    """The hash that the line claims, if it is the right one for what the line says."""
    text, suffix = line[:-_SUFFIX_BYTES], line[-_SUFFIX_BYTES:]
    if not suffix.startswith(_HASH_KEY):
        return None
    digest = hashlib.sha256(text).hexdigest()
    return digest if suffix == _HASH_KEY + digest.encode() + b'"}' else None


def _decode(line: bytes, position: Position, content: bytes) -> tuple[dict[str, Any], Position]:
    expected = position.records + 1
    try:
        fields = json.loads(line)
        number, kind, previous = int(fields.pop("record")), str(fields["kind"]), fields.pop("previous")
        fields.pop("hash")
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise _fault(expected, "unreadable", "edited", "it is not a record") from None
    digest = _own_hash(line)
    if digest is None:
        raise _fault(expected, kind, "edited", "its content does not match its hash")
    if number != expected:
        moved = number < expected or b'\n{"record":%d,' % expected in content
        fault = "reordered" if moved else "lost"
        raise _fault(expected, "unknown kind", fault, f"record {number} ({kind}) stands in its place")
    if previous != position.hash:
        raise _fault(expected, kind, "edited", "it does not follow from the record before it")
    return fields, Position(expected, digest)


def _fault(number: int, kind: str, fault: str, why: str) -> LedgerError:
    return LedgerError(f"record {number} ({kind}) was {fault}: {why}", record=number, fault=fault)
