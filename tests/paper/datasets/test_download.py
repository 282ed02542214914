"""Downloads from a server on this machine: whole, cut and continued, wrong, and without a network."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inosgd.data.files import MissingDataError
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.catalogue import CATALOGUE
from inosgd.paper.datasets.download import NOTES, download, obtain
from inosgd.paper.datasets.names import LANGUAGES
from inosgd.paper.datasets.sources import SOURCES, Source
from tests.data.writers import idx_bytes, write_cardiotocography, write_cifar, write_names


class Server:
    """Files by address. ``cut_after`` ends the next answers early, one number of bytes for each."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: list[int] = []
        self.ranges: list[str | None] = []
        self.knows_ranges = True
        self.says_length = True
        self.url = ""


class Handler(http.server.BaseHTTPRequestHandler):
    told: Server

    def do_GET(self) -> None:
        content = self.told.files.get(self.path)
        wanted = self.headers.get("Range")
        self.told.ranges.append(wanted)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.told.knows_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if self.told.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + self.told.cut_after.pop(0) if self.told.cut_after else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    told = Server()
    handler = type("Told", (Handler,), {"told": told})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        told.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        listening.shutdown()
        thread.join()


LABELS = gzip.compress(idx_bytes(np.arange(10).repeat(50)), mtime=0)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def one_file(server: Server, checksum: str | None = None, largest: int = 10_000) -> dict[str, tuple[Source, ...]]:
    server.files["/labels.gz"] = LABELS
    return {"x": (Source((f"{server.url}/labels.gz",), {"labels.gz": "mnist/labels.gz"}, checksum, largest),)}


def ignore(name: str, done: int, total: int | None) -> None:
    """No bar."""


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_whole_file_is_put_in_place_and_noted(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    download("x", tmp_path, lambda *progress: told.append(progress), one_file(server, md5(LABELS)))
    assert left_in(tmp_path) == [NOTES, "mnist/labels.gz"]
    assert (tmp_path / "mnist" / "labels.gz").read_bytes() == LABELS
    assert json.loads((tmp_path / NOTES).read_text()) == {f"{server.url}/labels.gz": hashlib.sha256(LABELS).hexdigest()}
    assert told[-1] == ("labels.gz", len(LABELS), len(LABELS))


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    sources = one_file(server, md5(LABELS))
    download("x", tmp_path, ignore, sources)
    download("x", tmp_path, ignore, sources)
    assert len(server.ranges) == 1


def test_a_cut_is_continued_where_it_happened(server: Server, tmp_path: Path) -> None:
    server.cut_after = [20, 15]
    download("x", tmp_path, ignore, one_file(server, md5(LABELS)))
    assert server.ranges == [None, "bytes=20-", "bytes=35-"]
    assert (tmp_path / "mnist" / "labels.gz").read_bytes() == LABELS


def test_another_run_continues_as_well(server: Server, tmp_path: Path) -> None:
    sources = one_file(server, md5(LABELS))
    server.cut_after = [20, 1, 1]
    with pytest.raises(http.client.IncompleteRead):
        download("x", tmp_path, ignore, sources)
    assert left_in(tmp_path) == [".labels.gz.partial"]
    download("x", tmp_path, ignore, sources)
    assert server.ranges[-1] == "bytes=22-"
    assert (tmp_path / "mnist" / "labels.gz").read_bytes() == LABELS


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.knows_ranges = [20], False
    download("x", tmp_path, ignore, one_file(server, md5(LABELS)))
    assert (tmp_path / "mnist" / "labels.gz").read_bytes() == LABELS


def test_without_a_checksum_a_cut_file_is_fetched_from_the_start(server: Server, tmp_path: Path) -> None:
    server.cut_after = [20]
    download("x", tmp_path, ignore, one_file(server))
    assert server.ranges == [None, None]
    assert (tmp_path / "mnist" / "labels.gz").read_bytes() == LABELS


def test_a_partial_file_that_is_already_whole_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".labels.gz.partial").write_bytes(LABELS)
    download("x", tmp_path, ignore, one_file(server, md5(LABELS)))
    assert left_in(tmp_path) == [NOTES, "mnist/labels.gz"]


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"MD5 {md5(LABELS)}, expected {md5(b'other')}"):
        download("x", tmp_path, ignore, one_file(server, md5(b"other")))
    assert left_in(tmp_path) == []


def test_a_file_that_has_changed_since_is_refused(server: Server, tmp_path: Path) -> None:
    sources = one_file(server)
    download("x", tmp_path, ignore, sources)
    (tmp_path / "mnist" / "labels.gz").unlink()
    server.files["/labels.gz"] = LABELS + b"x"
    with pytest.raises(InvalidArgumentError, match="an earlier download had"):
        download("x", tmp_path, ignore, sources)
    assert left_in(tmp_path) == [NOTES]


@pytest.mark.parametrize("says_length", [True, False])
def test_more_than_expected_is_refused_and_nothing_is_left(server: Server, tmp_path: Path, says_length: bool) -> None:
    server.says_length = says_length
    with pytest.raises(InvalidArgumentError, match="more than the 30"):
        download("x", tmp_path, ignore, one_file(server, largest=30))
    assert left_in(tmp_path) == []


def test_mirrors_are_tried_in_turn(server: Server, tmp_path: Path) -> None:
    server.files["/mirror/labels.gz"] = LABELS
    urls = (f"{server.url}/gone/labels.gz", f"{server.url}/mirror/labels.gz")
    download("x", tmp_path, ignore, {"x": (Source(urls, {"labels.gz": "labels.gz"}, md5(LABELS)),)})
    assert (tmp_path / "labels.gz").read_bytes() == LABELS


def zipped_names(folder: Path) -> bytes:
    write_names(folder)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("../evil.txt", "out of the folder")
        for language in LANGUAGES:
            archive.write(folder / "names" / f"{language}.txt", f"data/names/{language}.txt")
    return stream.getvalue()


def tarred_cifar(folder: Path) -> bytes:
    write_cifar(folder)
    (folder / "cifar-10-batches-bin" / "readme.html").write_text("not wanted")
    for number in (3, 4, 5):
        (folder / "cifar-10-batches-bin" / f"data_batch_{number}.bin").write_bytes(
            (folder / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes()
        )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.add(folder / "cifar-10-batches-bin", "cifar-10-batches-bin")
    return stream.getvalue()


def test_archives_give_the_wanted_files_and_no_others(server: Server, tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "data"
    made.mkdir()
    folder.mkdir()
    server.files["/data.zip"], server.files["/cifar.tar.gz"] = zipped_names(made), tarred_cifar(made)
    sources = {
        "names": (Source((f"{server.url}/data.zip",), SOURCES["names"][0].files),),
        "cifar-10": (
            Source((f"{server.url}/cifar.tar.gz",), SOURCES["cifar-10"][0].files, md5(server.files["/cifar.tar.gz"])),
        ),
    }
    assert obtain("names", folder, sources).name == "names"
    assert len(obtain("cifar-10", folder, sources).train) == 100
    wanted = [*SOURCES["names"][0].files.values(), *SOURCES["cifar-10"][0].files.values(), NOTES]
    assert left_in(folder) == sorted(wanted)
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize("name", ["data.zip", "data.tar.gz"])
def test_what_is_no_archive_is_refused_and_nothing_is_left(server: Server, tmp_path: Path, name: str) -> None:
    server.files[f"/{name}"] = b"<html>moved</html>"
    sources = {"x": (Source((f"{server.url}/{name}",), {"a.txt": "names/a.txt"}),)}
    with pytest.raises(InvalidArgumentError, match=f"{name}.*not the archive expected"):
        download("x", tmp_path, ignore, sources)
    assert left_in(tmp_path) == []


def test_an_archive_that_unpacks_to_too_much_is_refused(server: Server, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"\0" * 1_000_000)
    server.files["/data.zip"] = stream.getvalue()
    sources = {"x": (Source((f"{server.url}/data.zip",), {"a.txt": "a.txt"}, largest=100_000),)}
    with pytest.raises(InvalidArgumentError, match="unpacks to more than the 100,000 bytes"):
        download("x", tmp_path, ignore, sources)
    assert left_in(tmp_path) == []


def test_a_page_in_place_of_the_data_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.files["/data.csv"] = b"<html>please log in to the network</html>"
    sources = {"cardiotocography": (Source((f"{server.url}/data.csv",), SOURCES["cardiotocography"][0].files),)}
    with pytest.raises(InvalidArgumentError, match=r"CTG\.csv: no column 'LB'"):
        obtain("cardiotocography", tmp_path, sources)
    assert left_in(tmp_path) == [NOTES]
    made = tmp_path / "made"
    made.mkdir()
    write_cardiotocography(made)
    server.files["/data.csv"] = (made / "cardiotocography" / "CTG.csv").read_bytes()
    assert len(obtain("cardiotocography", tmp_path, sources).train) == 24


def test_notes_that_cannot_be_read_are_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text("{")
    with pytest.raises(InvalidArgumentError, match="not JSON"):
        download("x", tmp_path, ignore, one_file(server))


def test_without_a_network_the_error_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    nowhere = Source(("http://127.0.0.1:9/CTG.csv",), {"CTG.csv": "cardiotocography/CTG.csv"})
    with pytest.raises(MissingDataError) as caught:
        obtain("cardiotocography", tmp_path, {"cardiotocography": (nowhere,)})
    assert "put cardiotocography/CTG.csv into" in str(caught.value)
    assert "downloading failed:" in str(caught.value)
    assert left_in(tmp_path) == []


def test_what_cannot_be_downloaded_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="inosgd embed"):
        obtain("cifar-10-embeddings", tmp_path)


def test_every_source_fills_the_catalogue() -> None:
    for name, sources in SOURCES.items():
        targets = {target for source in sources for target in source.files.values()}
        assert targets == {file for choice in CATALOGUE[name].files for file in choice.split("|")[: _choices(name)]}
        assert all(url.startswith("https://") for source in sources for url in source.urls)


def _choices(name: str) -> int:
    return 5 if name == "cifar-10" else 1
