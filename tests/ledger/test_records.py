"""The chain shows any edit, loss or move, and survives being cut at any byte."""

from __future__ import annotations

import errno
import json
import os
import stat

import pytest

from inosgd.errors import InvalidArgumentError, LedgerError
from inosgd.ledger.records import Position, RecordFile, read_chain

BODIES = [{"kind": "ledger", "format": 2}, *({"kind": "step", "step": step} for step in range(5))]


@pytest.fixture
def path(tmp_path):
    file = RecordFile.create(tmp_path / "ledger.jsonl")
    for body in BODIES:
        file.append(body)
    file.close()
    return tmp_path / "ledger.jsonl"


def rewrite(path, change):
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def fault_of(path) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        read_chain(path)
    return caught.value


def test_records_come_back_and_the_file_is_private(path):
    chain = read_chain(path)
    assert list(chain.bodies) == BODIES
    assert chain.position.records == 6
    assert chain.torn == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidArgumentError, match="already there"):
        RecordFile.create(path)


def test_a_record_is_on_disk_when_it_is_appended(path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size), raising=False)
    file, _ = RecordFile.open(path)
    for step in (5, 6):
        file.append({"kind": "step", "step": step})
        assert sizes[-1] == path.stat().st_size
    assert len(sizes) == 2
    file.close()


def test_every_byte_counts(path):
    """Any single byte changed, in any record, is found; and the right record is named unless it is the last."""
    content = path.read_bytes()
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for index in range(0, len(content) - 1, 3):
        changed = bytearray(content)
        changed[index] ^= 1
        path.write_bytes(changed)
        record = 1 + sum(end < index for end in ends)
        error = fault_of(path)
        assert error.record in (record, record + 1)
        assert error.fault in ("edited", "lost", "reordered")


def test_an_edited_record_with_a_right_hash_of_its_own_breaks_the_next(path):
    import hashlib

    def forge(lines):
        text = lines[2][: -(64 + len(',"hash":""}\n'))].replace(b'"step":1', b'"step":7')
        lines[2] = text + b',"hash":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'
        return lines

    rewrite(path, forge)
    error = fault_of(path)
    assert (error.record, error.fault) == (4, "edited")


@pytest.mark.parametrize("lost", range(5))
def test_a_lost_record_is_named(path, lost):
    rewrite(path, lambda lines: lines[:lost] + lines[lost + 1 :])
    error = fault_of(path)
    assert (error.record, error.fault) == (lost + 1, "lost")
    assert f"record {lost + 1} (unknown kind) was lost" in str(error)


def test_reordered_and_repeated_records_are_named(path):
    lines = path.read_bytes().splitlines(keepends=True)
    rewrite(path, lambda _: [*lines[:2], lines[3], lines[2], *lines[4:]])
    assert (fault_of(path).record, fault_of(path).fault) == (3, "reordered")
    rewrite(path, lambda _: [*lines[:3], *lines[2:]])
    assert (fault_of(path).record, fault_of(path).fault) == (4, "reordered")


def test_losing_the_last_records_shows_only_against_a_position(path):
    """The negative control of positions: the chain alone is content."""
    before = read_chain(path).position
    rewrite(path, lambda lines: lines[:-1])
    assert read_chain(path).position.records == before.records - 1


def test_cut_at_any_byte_the_whole_records_are_kept_and_the_file_goes_on(path):
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    for size in range(start, len(content)):
        path.write_bytes(content[:size])
        file, chain = RecordFile.open(path)
        whole = 6 if size == len(content) - 1 else 5
        assert len(chain.bodies) == whole
        assert chain.torn == (0 if whole == 6 else size - start)
        file.append({"kind": "more"})
        file.close()
        assert [body["kind"] for body in read_chain(path).bodies][-1] == "more"
        assert len(read_chain(path).bodies) == whole + 1


def test_bytes_that_never_reached_the_disk_are_a_torn_record(path):
    with path.open("ab") as file:
        file.write(b'{"record":7,"kind":"st' + bytes(200) + b"\n")
    assert read_chain(path).torn == 223
    file, _ = RecordFile.open(path)
    file.close()
    assert read_chain(path).torn == 0


def test_a_whole_line_that_is_no_record_is_an_edit_and_not_torn(path):
    with path.open("ab") as file:
        file.write(b"spent nothing\n")
    assert (fault_of(path).record, fault_of(path).fault) == (7, "edited")


class Full:
    """A disk that takes some bytes of a record and then no more; it can also refuse to make room again."""

    def __init__(self, file, room, *, stuck=False):
        self._file, self._room, self._stuck = file, room, stuck

    def write(self, data):
        if self._room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(bytes(data[: self._room]))
        self._room -= written
        return written

    def truncate(self, size):
        if self._stuck:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.truncate(size)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("room", [0, 1, 60, 150])
def test_a_full_disk_leaves_the_records_before(path, room, stuck):
    file, _ = RecordFile.open(path)
    inner, file._file = file._file, Full(file._file, room, stuck=stuck)
    with pytest.raises(LedgerError, match=r"record 7 \(step\) .* could not be written: No space left") as caught:
        file.append({"kind": "step", "step": 5})
    assert caught.value.fault == "unwritten"
    with pytest.raises(LedgerError, match="open the ledger again"):
        file.append({"kind": "step", "step": 5})
    inner.close()
    chain = read_chain(path)
    assert len(chain.bodies) == 6
    assert chain.torn == (room if stuck else 0)
    file, _ = RecordFile.open(path)
    file.append({"kind": "step", "step": 5})
    file.close()
    assert len(read_chain(path).bodies) == 7


def test_in_memory_the_chain_is_the_same(path):
    file = RecordFile.create(None)
    for body in BODIES:
        file.append(body)
    assert file.position == read_chain(path).position
    assert isinstance(file.position, Position)
    assert json.loads(path.read_text().splitlines()[-1])["hash"] == file.position.hash


def test_two_that_write_one_file_are_refused_before_the_chain_breaks(path):
    """One whose lock was taken away, or a second ledger in the same process."""
    one, _ = RecordFile.open(path)
    other, _ = RecordFile.open(path)
    one.append({"kind": "step", "step": 5})
    with pytest.raises(LedgerError, match="another process has written to it since it was opened"):
        other.append({"kind": "step", "step": 5})
    one.append({"kind": "step", "step": 6})
    one.close()
    other.close()
    assert len(read_chain(path).bodies) == 8
