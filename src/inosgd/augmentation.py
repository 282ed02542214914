"""Augmentation: several randomly cropped and flipped copies of an image, as rows of one unit (De et al. 2022).

The copies' gradients are averaged before they are clipped, so K copies cost what one costs in privacy, and K times the
computation. What is done to a copy is a function of a word of its own, which `inosgd.units.DrawnRows` has from the
step, the unit and the place of the row in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.randomness import WordArray


@dataclass(frozen=True)
class Augmentation:
    """Copies of each row, shifted by up to ``padding`` pixels in either direction and flipped by a coin.

    Guarantee:
        A copy is a function of its row and its word alone.

    Attributes:
        copies: K, how many copies stand for a row.
        padding: Pixels of zeros around an image, of which a part of the original size is cut out.
        flip: Whether copies are flipped from left to right by a fair coin.
    """

    copies: int = 4
    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        _validate.whole(1, copies=self.copies)
        _validate.whole(0, padding=self.padding)

    def __call__(self, examples: Any, words: WordArray) -> Any:
        """The examples, changed by ``words``; their first tensor has images: (rows, channels, height, width)."""
        if isinstance(examples, torch.Tensor):
            return self._changed(examples, words)
        if not isinstance(examples, tuple) or not examples or not isinstance(examples[0], torch.Tensor):
            raise InvalidArgumentError(
                f"examples: a {type(examples).__name__} cannot be augmented; give images, or pairs (images, targets)"
            )
        return type(examples)((self._changed(examples[0], words), *examples[1:]))

    def _changed(self, images: torch.Tensor, words: WordArray) -> torch.Tensor:
        if images.dim() != 4 or not images.is_floating_point():
            raise InvalidArgumentError(
                f"examples of shape {tuple(images.shape[1:])} and type {images.dtype}: augmentation crops images, as "
                "floating-point numbers of shape (channels, height, width); leave it out for other data"
            )
        span = np.uint64(2 * self.padding + 1)
        down, right = (((words >> np.uint64(shift)) & _LOW) % span for shift in (0, 24))
        flipped = (words >> np.uint64(63)).astype(bool) if self.flip else np.zeros(len(words), dtype=bool)
        height, width = images.shape[2:]
        rows = _moved(down, height, images.device)
        columns = _moved(right, width, images.device)
        columns = torch.where(torch.from_numpy(flipped).to(images.device)[:, None], columns.flip(1), columns)
        padded = F.pad(images, [self.padding] * 4)
        of_row = torch.arange(len(images), device=images.device)[:, None, None]
        cut = padded.permute(0, 2, 3, 1)[of_row, rows[:, :, None], columns[:, None, :]]
        return cut.permute(0, 3, 1, 2).contiguous()


_LOW = np.uint64(2**24 - 1)


def _moved(shifts: WordArray, size: int, device: torch.device) -> torch.Tensor:
    """For each copy the rows or columns of the padded image that it consists of."""
    return torch.from_numpy(shifts.astype(np.int64)).to(device)[:, None] + torch.arange(size, device=device)
