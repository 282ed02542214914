"""Reading files that may be truncated, corrupt or made to exhaust memory.

Every reader compares what a header promises with the bytes that are there before it makes room for them. Compressed
bytes can expand by at most `MAX_EXPANSION`, the limit of the deflate format: a header that promises more is a lie.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from inosgd.errors import InosgdError, InvalidArgumentError

MAX_EXPANSION = 1032
LIKELY_EXPANSION = 200
ALWAYS_ALLOWED = 1 << 28
"""Content that is more than `LIKELY_EXPANSION` times its packed size, and more than so many bytes, is a bomb."""

_CHUNK = 1 << 20
_SLACK = 1 << 10
_GZIP_MAGIC = b"\x1f\x8b"


class MissingDataError(InosgdError, FileNotFoundError):
    """Files of a data set that are not there; the message says which, and where to put them."""


def refuse(path: Path, what: str) -> InvalidArgumentError:
    """The error for a file that cannot be used, to be raised by the caller."""
    return InvalidArgumentError(f"{path}: {what}")


def refuse_bomb(path: Path, what: str, size: int, packed: int) -> None:
    """Raise if ``packed`` bytes cannot, or for real data would not, expand to ``size``."""
    if size > packed * MAX_EXPANSION + _SLACK:
        raise refuse(path, f"{what} claims {size:,} bytes, more than the file can hold")
    if size > max(ALWAYS_ALLOWED, packed * LIKELY_EXPANSION):
        raise refuse(path, f"{what} would expand {packed:,} bytes to {size:,}; if it is no bomb, store it uncompressed")


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A stream over the content of a file, unpacked if it is gzip, and the most bytes the content can have."""
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not packed:
                yield raw, size
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(BinaryIO, unpacked), size * MAX_EXPANSION
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refuse(path, f"truncated or corrupt gzip data ({error}); fetch the file again") from None
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from None


def read_at_most(stream: BinaryIO, size: int) -> bytes:
    """Up to ``size`` bytes: fewer only at the end of the stream. Memory grows with what arrives, not with ``size``."""
    content = bytearray()
    while len(content) < size:
        chunk = stream.read(min(_CHUNK, size - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def read_bytes(path: Path) -> bytes:
    """All bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from None


def read_text(path: Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(path, f"not UTF-8 text (byte {error.start}); fetch the file again") from None
