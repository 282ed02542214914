"""Folders of images: which file is whose example of what, and its pixels.

Either the folders say it (``hospital_a/melanoma/0001.png``) or a table beside them does, one row per file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from inosgd import _validate
from inosgd._extras import needs
from inosgd.errors import InosgdError, InvalidArgumentError

with needs("data"):
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
IGNORED = ("thumbs.db", "desktop.ini")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""What is decoded, whatever a file is called: of the other formats that Pillow knows some run programs (EPS)."""

MOST_PIXELS = 1 << 26
"""A larger image is refused before it is decoded."""

MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class ImageFile:
    """One example: where its pixels are, what it shows and whose it is."""

    path: Path
    target: str
    owner: str


@dataclass(frozen=True)
class ImageFormat:
    """The declared, public format of every image; one of another size is refused, or with ``resize`` resized."""

    height: int
    width: int
    channels: int
    resize: bool = False

    def __post_init__(self) -> None:
        _validate.whole(1, height=self.height, width=self.width)
        if self.height * self.width > MOST_PIXELS:
            raise _validate.fail("size", [self.height, self.width], f"give at most {MOST_PIXELS:,} pixels")
        if self.channels not in MODES:
            raise _validate.fail("channels", self.channels, "give 1 for grey or 3 for colour")


def list_images(folder: Path, layout: str) -> list[ImageFile]:
    """The images below ``folder`` in the order of their names; the two folders above each name owner and class."""
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder}: there is no such folder; correct the path")
    names = layout.split("/")
    found = []
    for path in sorted(_image_paths(folder)):
        parts = path.relative_to(folder).parts
        if len(parts) != len(names) + 1:
            raise InvalidArgumentError(f"{path}: images lie in folders {layout}/, seen from {folder}; move it there")
        named = dict(zip(names, parts, strict=False))
        found.append(ImageFile(path, target=named["class"], owner=named["owner"]))
    if not found:
        raise InvalidArgumentError(f"{folder}: there is no image in it; give images in folders {layout}/")
    return found


def find_images(place: Path) -> list[Path]:
    """The image at ``place``, or all images below it in the order of their names."""
    if place.is_file():
        return [place]
    found = sorted(_image_paths(place))
    if not found:
        raise InvalidArgumentError(f"{place}: there is no image in it; give a folder of images")
    return found


def read_images(paths: Iterable[Path], count: int, form: ImageFormat) -> torch.Tensor:
    """The pixels of ``count`` images as bytes: example, channel, row, column."""
    pixels = torch.empty((count, form.channels, form.height, form.width), dtype=torch.uint8)
    for row, path in enumerate(paths):
        pixels[row] = torch.from_numpy(_read_image(path, form))
    return pixels


def scaled_pixels(pixels: torch.Tensor) -> torch.Tensor:
    """Bytes mapped onto -1 to 1: the range of a byte is public."""
    return pixels.to(torch.float32) / 127.5 - 1.0


def inside(folder: Path, names: Sequence[str], source: Path) -> list[Path]:
    """The files called ``names`` in ``folder``; a name that leads out of it, or to nothing, is refused."""
    paths = [folder / name for name in names]
    root = folder.resolve()
    for row, path in enumerate(paths):
        if not _resolved(path).is_relative_to(root):
            raise InvalidArgumentError(f"{source}: row {row + 1}: {names[row]!r} is outside {folder}; move it there")
        if not os.path.isfile(path):
            raise InvalidArgumentError(f"{source}: row {row + 1}: there is no file {str(path)!r}; correct the name")
    return paths


def _resolved(path: Path) -> Path:
    """Where ``path`` leads; what cannot be a path leads nowhere."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return Path()


def _image_paths(folder: Path) -> Iterable[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_dir() or hidden or path.name.lower() in IGNORED:
            continue
        if path.suffix.lower() not in SUFFIXES:
            raise InvalidArgumentError(f"{path}: not an image ({', '.join(SUFFIXES)}); move it out of {folder}")
        yield path


def _read_image(path: Path, form: ImageFormat) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise InvalidArgumentError(f"{path}: {opened.height:,} x {opened.width:,} pixels; resize it")
            if opened.size != (form.width, form.height) and not form.resize:
                width, height = opened.size
                raise InvalidArgumentError(
                    f"{path}: {height} x {width} pixels, where data.size declares {form.height} x {form.width}; resize "
                    "it, or set data.resize = true"
                )
            image = opened.convert(MODES[form.channels])
            if image.size != (form.width, form.height):
                image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
            pixels = np.array(image, dtype=np.uint8)
    except InosgdError:
        raise
    except Exception as error:  # decoders raise almost anything on bytes that were made to confuse them
        raise InvalidArgumentError(f"{path}: cannot be read as an image ({error}); replace or remove it") from None
    return pixels[None] if form.channels == 1 else np.moveaxis(pixels, 2, 0)
