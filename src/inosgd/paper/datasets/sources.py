"""Where publishers keep the data sets.

A checksum stands here only where the publisher states it (CIFAR) or where independent users of the files agree on it
(MNIST). Other files are held against their format when they are loaded, and their SHA-256 is noted beside the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from inosgd.paper.datasets.names import LANGUAGES

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Source:
    """A file to download.

    Attributes:
        urls: Where it is, and mirrors to try in turn.
        files: What it is or contains, and where that goes in the data folder. The key is a name inside the archive;
            of a file that is no archive, its own name.
        md5: Its MD5 checksum, if one is known for certain.
        largest: More bytes than this are refused.
    """

    urls: tuple[str, ...]
    files: dict[str, str]
    md5: str | None = None
    largest: int = 64 * MEGABYTE

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.urls[0].rsplit("/", 1)[-1]


def _mnist(name: str, md5: str) -> Source:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return Source(tuple(mirror + name for mirror in mirrors), {name: f"mnist/{name}"}, md5)


def _cifar(name: str, md5: str, *files: str) -> Source:
    url = f"https://www.cs.toronto.edu/~kriz/{name}"
    return Source((url,), {file: file for file in files}, md5, largest=200 * MEGABYTE)


SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        _mnist("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _mnist("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        _mnist("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        _mnist("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "cifar-10": (
        _cifar(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            *(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
            "cifar-10-batches-bin/test_batch.bin",
        ),
    ),
    "cifar-100": (
        _cifar(
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary/train.bin",
            "cifar-100-binary/test.bin",
        ),
    ),
    "cardiotocography": (
        Source(("https://archive.ics.uci.edu/static/public/193/data.csv",), {"data.csv": "cardiotocography/CTG.csv"}),
    ),
    "names": (
        Source(
            ("https://download.pytorch.org/tutorial/data.zip",),
            {f"data/names/{language}.txt": f"names/{language}.txt" for language in LANGUAGES},
        ),
    ),
}
"""What can be downloaded. Chest X-rays and embeddings are made from other files, see the catalogue."""
