"""``inosgd embed``: from images to the features of a pretrained network."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer

from inosgd import _validate
from inosgd.cli.console import messages, progress_bar, results
from inosgd.cli.folders import check_new_file
from inosgd.data.image_folder import ImageFormat, find_images, read_images
from inosgd.data.networks import Network, embed, load_network
from inosgd.errors import InvalidArgumentError
from inosgd.files import write_private
from inosgd.paper.datasets.catalogue import CATALOGUE
from inosgd.paper.datasets.download import obtain
from inosgd.paper.datasets.location import data_folder

PARTS = ("train", "test")


def embed_command(
    images: Annotated[str, typer.Argument(help="A data set, or a folder with a folder of images for each class.")],
    out: Annotated[Path, typer.Option(help="The .npz file to write, which must not exist.")],
    model: Annotated[str, typer.Option(help="The name of a timm model.")] = "efficientnet_b1",
    weights: Annotated[Path | None, typer.Option(help="Its weights, safetensors; downloaded if not given.")] = None,
    random_weights: Annotated[bool, typer.Option("--random-weights", help="Untrained: to try out only.")] = False,
    size: Annotated[int | None, typer.Option(help="Pixels in height and width; the model's if not given.")] = None,
    part: Annotated[str, typer.Option(help="The part of a data set: train or test.")] = "train",
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; INOSGD_DATA if not given.")] = None,
    batch: Annotated[int, typer.Option(help="Images at a time; features do not depend on it.")] = 64,
) -> None:
    """Turn images into features, labels and class names, one .npz file that `inosgd` trains on."""
    _validate.whole(1, batch=batch)
    check_new_file(out)
    if out.suffix != ".npz":
        raise InvalidArgumentError(f"out={str(out)!r}: give a name that ends in .npz")
    network = load_network(model, weights, random_weights=random_weights, size=size)
    source = _source(images, part, data, network)
    starts = range(0, len(source), batch)
    with progress_bar() as progress:
        shown = progress.track(starts, description=f"embedding {len(source)} images")
        features = embed(network, (source.pixels(start, start + batch) for start in shown))
    written = io.BytesIO()
    np.savez_compressed(written, features=features, labels=source.labels, classes=np.array(source.classes))
    write_private(out, written.getvalue())
    results().print(
        f"{out}: {features.shape[0]} images, {features.shape[1]} features each, {len(source.classes)} classes"
    )
    if random_weights:
        messages().print("the weights were random: these features mean nothing")


@dataclass(frozen=True, eq=False)
class _Files:
    paths: list[Path]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return len(self.paths)

    def pixels(self, start: int, end: int) -> torch.Tensor:
        chosen = self.paths[start:end]
        return read_images(chosen, len(chosen), ImageFormat(self.size, self.size, channels=3, resize=True))


@dataclass(frozen=True, eq=False)
class _Arrays:
    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, start: int, end: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.images[start:end]))


def _source(images: str, part: str, data: Path | None, network: Network) -> _Files | _Arrays:
    if part not in PARTS:
        raise _validate.fail("part", part, "give train or test")
    if images in CATALOGUE:
        whole = obtain(images, data_folder(data))
        examples = whole.train if part == "train" else whole.test
        if examples.inputs.dtype != np.uint8:
            raise InvalidArgumentError(
                f"images={images!r}: this data set has no images; give one that has, or a folder"
            )
        return _Arrays(examples.inputs, examples.targets, whole.classes)
    if not Path(images).is_dir():
        known = ", ".join(CATALOGUE)
        raise _validate.fail("images", images, f"there is no such folder; give one, or a data set of: {known}")
    return _files(Path(images), network.size)


def _files(folder: Path, size: int) -> _Files:
    paths = find_images(folder)
    loose = [path for path in paths if path.parent == folder]
    if loose:
        raise InvalidArgumentError(f"{loose[0]}: images lie in a folder for each class below {folder}; move it there")
    names = [path.relative_to(folder).parts[0] for path in paths]
    classes = tuple(sorted(set(names)))
    labels = np.array([classes.index(name) for name in names], dtype=np.int64)
    return _Files(paths, labels, classes, size)
