"""Downloading data sets: continued after a cut, checked, and there whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import json
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from inosgd._extras import needs
from inosgd.data.files import MissingDataError, read_text, refuse
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.catalogue import explain_missing, load, missing_files
from inosgd.paper.datasets.labelled import DataSet
from inosgd.paper.datasets.sources import SOURCES, Source

with needs("paper"):
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[str, int, int | None], None]
"""Told the name of a file, how many bytes of it are there, and how many there will be, if known."""

NOTES = "downloads.json"
"""The file in the data folder that holds the SHA-256 of everything downloaded."""

_ATTEMPTS = 3
_TIMEOUT = 30.0
_CHUNK = 1 << 16
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError)


def obtain(name: str, folder: Path, sources: Mapping[str, tuple[Source, ...]] = SOURCES) -> DataSet:
    """The data set ``name`` from ``folder``; files that are missing are downloaded first, with a progress bar.

    Raises:
        MissingDataError: If files are missing and cannot be downloaded: which ones, where to put them, and why.
        InvalidArgumentError: If what was downloaded is not what was expected. Nothing of it is kept.
    """
    missing = missing_files(name, folder)
    if not missing or name not in sources:
        return load(name, folder)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            arrived = download(name, folder, _reporter(bars), sources)
    except _NETWORK_ERRORS as error:
        what = explain_missing(name, folder, missing)
        raise MissingDataError(f"{what}; downloading failed: {_reason(error)}") from None
    try:
        return load(name, folder)
    except InvalidArgumentError:
        _discard(arrived, folder)
        raise


def download(
    name: str, folder: Path, report: Report, sources: Mapping[str, tuple[Source, ...]] = SOURCES
) -> list[Source]:
    """Download what ``name`` lacks in ``folder``, and say what that was.

    A file arrives under the name ``.NAME.partial``, is checked, and is then renamed. If the connection is cut and a
    checksum is known, the next attempt, now or in another run, continues where it stopped; without a checksum it
    starts again, because nothing would tell if the file had changed in between.
    """
    arrived = []
    for source in sources[name]:
        if all((folder / target).is_file() for target in source.files.values()):
            continue
        partial = folder / f".{source.name}.partial"
        _fetch_from_any(source, partial, report)
        sha256 = _check(source, partial, _noted(folder))
        _put_in_place(source, partial, folder)
        _note(folder, {**_noted(folder), source.urls[0]: sha256})
        arrived.append(source)
    return arrived


def _discard(arrived: list[Source], folder: Path) -> None:
    """Remove what was downloaded and turned out to be something else."""
    for source in arrived:
        for target in source.files.values():
            (folder / target).unlink(missing_ok=True)
    gone = {source.urls[0] for source in arrived}
    _note(folder, {url: sha256 for url, sha256 in _noted(folder).items() if url not in gone})


def _fetch_from_any(source: Source, partial: Path, report: Report) -> None:
    attempts = [url for _ in range(_ATTEMPTS) for url in source.urls]
    for number, url in enumerate(attempts, start=1):
        if source.md5 is None:
            partial.unlink(missing_ok=True)
        try:
            _fetch(url, partial, source, report)
            return
        except InvalidArgumentError:
            partial.unlink(missing_ok=True)
            raise
        except _NETWORK_ERRORS:
            if number == len(attempts):
                raise


def _fetch(url: str, partial: Path, source: Source, report: Report) -> None:
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "inosgd"})  # noqa: S310 - from a table of sources
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is there already; the checksum will tell
        raise
    with response:
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        length = response.headers.get("Content-Length")
        done = start if continued else 0
        total = done + int(length) if length is not None else None
        if total is not None and total > source.largest:
            raise refuse(partial, f"{url} offers {total:,} bytes, more than the {source.largest:,} expected at most")
        with partial.open("ab" if continued else "wb") as file:
            done = _copy(response, file, done, total, source, report)
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _copy(
    response: http.client.HTTPResponse, file: IO[bytes], done: int, total: int | None, source: Source, report: Report
) -> int:
    while chunk := response.read(_CHUNK):
        done += len(chunk)
        if done > source.largest:
            raise refuse(Path(source.name), f"more than the {source.largest:,} bytes expected at most")
        file.write(chunk)
        report(source.name, done, total)
    return done


def _check(source: Source, partial: Path, noted: Mapping[str, str]) -> str:
    """The SHA-256 of the file, which must have the known checksum, or the one that an earlier download had."""
    with partial.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if source.md5 is not None and md5 != source.md5:
        partial.unlink()
        raise refuse(partial, f"downloaded with MD5 {md5}, expected {source.md5}; removed, try again")
    before = noted.get(source.urls[0], sha256)
    if before != sha256:
        partial.unlink()
        raise refuse(
            partial,
            f"downloaded with SHA-256 {sha256}, an earlier download had {before}; removed. If the "
            f"publisher has a new version, remove the line from {NOTES}",
        )
    return sha256


def _noted(folder: Path) -> dict[str, str]:
    notes = folder / NOTES
    if not notes.exists():
        return {}
    try:
        noted = json.loads(read_text(notes))
    except json.JSONDecodeError as error:
        raise refuse(notes, f"not JSON ({error}); remove it") from None
    return {str(url): str(sha256) for url, sha256 in noted.items()} if isinstance(noted, dict) else {}


def _note(folder: Path, noted: Mapping[str, str]) -> None:
    working = folder / f".{NOTES}.partial"
    working.write_text(json.dumps(noted, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    working.replace(folder / NOTES)


def _put_in_place(source: Source, partial: Path, folder: Path) -> None:
    for target in source.files.values():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
    if source.name.endswith((".tar.gz", ".zip")):
        try:
            _unpack(source, partial, folder)
        finally:
            partial.unlink()
    else:
        partial.replace(folder / source.files[source.name])


def _unpack(source: Source, archive: Path, folder: Path) -> None:
    """Take the wanted files, and no others, out of an archive; where they go is ours to say, not the archive's."""
    try:
        if source.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                _take({name: packed.open(name) for name in source.files}, source, folder)
        else:
            with tarfile.open(archive) as packed_tar:
                _take({name: packed_tar.extractfile(name) for name in source.files}, source, folder)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise refuse(archive, f"not the archive expected from {source.urls[0]} ({error}); removed") from None


def _take(streams: Mapping[str, IO[bytes] | None], source: Source, folder: Path) -> None:
    for name, stream in streams.items():
        if stream is None:
            raise KeyError(f"{name} is no file")
        target = folder / source.files[name]
        working = target.with_name(f".{target.name}.partial")
        try:
            with stream, working.open("wb") as file:
                _copy_bounded(stream, file, source)
            working.replace(target)
        finally:
            working.unlink(missing_ok=True)


def _copy_bounded(stream: IO[bytes], file: IO[bytes], source: Source) -> None:
    done = 0
    while chunk := stream.read(_CHUNK):
        done += len(chunk)
        if done > source.largest:
            raise refuse(Path(source.name), f"it unpacks to more than the {source.largest:,} bytes expected at most")
        file.write(chunk)


def _reporter(bars: Progress) -> Report:
    tasks: dict[str, int] = {}

    def report(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)  # type: ignore[arg-type]

    return report


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
