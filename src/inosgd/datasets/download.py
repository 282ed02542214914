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

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from inosgd.datasets.catalogue import explain_missing, load, missing_files
from inosgd.datasets.files import MissingDataError, refuse
from inosgd.datasets.labelled import DataSet
from inosgd.datasets.sources import SOURCES, Source

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
    if missing and name in sources:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
                download(name, folder, _reporter(bars), sources)
        except _NETWORK_ERRORS as error:
            what = explain_missing(name, folder, missing)
            raise MissingDataError(f"{what}; downloading failed: {_reason(error)}") from None
    return load(name, folder)


def download(name: str, folder: Path, report: Report, sources: Mapping[str, tuple[Source, ...]] = SOURCES) -> None:
    """Download what ``name`` lacks in ``folder``.

    A file arrives under the name ``.NAME.partial``, is checked, and is then renamed. If the connection is cut and a
    checksum is known, the next attempt, now or in another run, continues where it stopped; without a checksum it
    starts again, because nothing would tell if the file had changed in between.
    """
    for source in sources[name]:
        if all((folder / target).is_file() for target in source.files.values()):
            continue
        partial = folder / f".{source.name}.partial"
        _fetch_from_any(source, partial, report)
        _check(source, partial, folder / NOTES)
        _put_in_place(source, partial, folder)


def _fetch_from_any(source: Source, partial: Path, report: Report) -> None:
    attempts = [url for _ in range(_ATTEMPTS) for url in source.urls]
    for number, url in enumerate(attempts, start=1):
        if source.md5 is None:
            partial.unlink(missing_ok=True)
        try:
            _fetch(url, partial, source, report)
            return
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


def _check(source: Source, partial: Path, notes: Path) -> None:
    """Hold the file against its checksum, or against the one noted when it was downloaded before; note it."""
    with partial.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    noted = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    if source.md5 is not None and md5 != source.md5:
        partial.unlink()
        raise refuse(partial, f"downloaded with MD5 {md5}, expected {source.md5}; removed, try again")
    if noted.get(source.urls[0], sha256) != sha256:
        partial.unlink()
        raise refuse(
            partial,
            f"downloaded with SHA-256 {sha256}, an earlier download had {noted[source.urls[0]]} "
            f"({notes}); removed, look into it",
        )
    noted[source.urls[0]] = sha256
    working = notes.with_name(f".{notes.name}.partial")
    working.write_text(json.dumps(noted, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    working.replace(notes)


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
