"""Data sets by name: their loaders, and the files that each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inosgd import _validate
from inosgd.data.files import MissingDataError
from inosgd.paper.datasets import embeddings
from inosgd.paper.datasets.cardiotocography import load_cardiotocography
from inosgd.paper.datasets.chest_xray import load_chest_xray
from inosgd.paper.datasets.cifar import load_cifar_10, load_cifar_100
from inosgd.paper.datasets.idx import load_mnist
from inosgd.paper.datasets.labelled import DataSet
from inosgd.paper.datasets.names import LANGUAGES, load_names


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded.

    Attributes:
        load: From the folder of all data to the data set.
        files: What must be in that folder. Of alternatives, separated by ``|``, one must be there.
        source: Where people get it.
    """

    load: Callable[[Path], DataSet]
    files: tuple[str, ...]
    source: str


CATALOGUE = {
    "mnist": Entry(
        load_mnist,
        tuple(
            f"mnist/{name}.gz|mnist/{name}"
            for part in ("train", "t10k")
            for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        ),
        "yann.lecun.com/exdb/mnist",
    ),
    "cifar-10": Entry(
        load_cifar_10,
        (
            "|".join(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
            "cifar-10-batches-bin/test_batch.bin",
        ),
        "the binary version of CIFAR-10 from www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cifar-100": Entry(
        load_cifar_100,
        ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
        "the binary version of CIFAR-100 from www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cardiotocography": Entry(
        load_cardiotocography,
        ("cardiotocography/CTG.csv",),
        "data.csv of data set 193 at archive.ics.uci.edu, named CTG.csv",
    ),
    "names": Entry(
        load_names,
        tuple(f"names/{language}.txt" for language in LANGUAGES),
        "data/names in download.pytorch.org/tutorial/data.zip",
    ),
    "chest-xray": Entry(
        load_chest_xray,
        ("chest_xray/train_images_64.npz", "chest_xray/test_images_64.npz"),
        "images of data.mendeley.com/datasets/rscbjbr9sj, reduced to grey 64 x 64: arrays images and labels "
        "(0 normal, 1 bacterial, 2 viral)",
    ),
    "chest-xray-embeddings": Entry(
        embeddings.load_chest_xray_embeddings,
        embeddings.CHEST_XRAY_FILES,
        "`inosgd embed`, from images of data.mendeley.com/datasets/rscbjbr9sj",
    ),
    "cifar-10-embeddings": Entry(
        embeddings.load_cifar_10_embeddings,
        (*embeddings.CIFAR_10_FILES, embeddings.FISH_VEHICLES_FILES[0]),
        "`inosgd embed`, from CIFAR-10, and from CIFAR-100 for the scale",
    ),
    "fish-vehicles-embeddings": Entry(
        embeddings.load_fish_vehicles_embeddings,
        (*embeddings.FISH_VEHICLES_FILES, embeddings.CIFAR_10_FILES[0]),
        "`inosgd embed`, from CIFAR-100 (arrays features and fine, its class numbers), and from CIFAR-10 for the scale",
    ),
}


def load(name: str, folder: Path) -> DataSet:
    """The data set ``name`` from its files in ``folder``.

    Raises:
        MissingDataError: If files are missing: which ones, and where to get them.
        InvalidArgumentError: If a file is truncated, corrupt or of the wrong size: which one, and what is wrong.
    """
    missing = missing_files(name, folder)
    if missing:
        raise MissingDataError(explain_missing(name, folder, missing))
    return CATALOGUE[name].load(folder)


def missing_files(name: str, folder: Path) -> list[str]:
    """The files of the data set ``name`` that are not in ``folder``."""
    if name not in CATALOGUE:
        raise _validate.fail("data set", name, f"give one of: {', '.join(CATALOGUE)}")
    choices = [file.split("|") for file in CATALOGUE[name].files]
    return [files[0] for files in choices if not any((folder / file).is_file() for file in files)]


def explain_missing(name: str, folder: Path, missing: list[str]) -> str:
    """What to put where."""
    return f"data set {name!r}: put {', '.join(missing)} into {folder} (from {CATALOGUE[name].source})"
