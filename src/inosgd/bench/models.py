"""The models whose steps are measured, each with a batch of random data of the usual size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from inosgd import models


@dataclass(frozen=True)
class BenchModel:
    """How to build a model and a batch for it.

    Attributes:
        build: A new model, with random weights from the keyword ``seed``.
        inputs: A batch of so many random inputs.
        classes: How many classes the model tells apart.
        batch_size: The usual size of a batch.
        steps: How many steps make one measurement; short steps are measured together.
    """

    build: Callable[..., nn.Module]
    inputs: Callable[[int], torch.Tensor]
    classes: int
    batch_size: int
    steps: int = 1

    def make(self, batch_size: int | None = None, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The model, inputs and targets; the same for the same seed."""
        count = batch_size or self.batch_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs, targets = self.inputs(count), torch.randint(0, self.classes, (count,))
        return self.build(seed=seed), inputs, targets


def _images(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randn(count, *shape)


def _words(length: int) -> Callable[[int], torch.Tensor]:
    """Bytes without padding, so that every place counts."""
    return lambda count: torch.randint(0, 256, (count, length))


MODELS: dict[str, BenchModel] = {
    "mlp": BenchModel(partial(models.paper_mlp, 21, 3), _images(21), 3, 256, steps=20),
    "mnist": BenchModel(models.mnist_cnn, _images(1, 28, 28), 10, 512, steps=3),
    "lstm": BenchModel(models.character_lstm, _words(18), 18, 512, steps=3),
    "cifar": BenchModel(models.cifar_cnn, _images(3, 32, 32), 10, 256),
    "resnet18": BenchModel(models.resnet18, _images(3, 32, 32), 10, 64),
    "transformer": BenchModel(models.small_transformer, _words(128), 10, 64, steps=3),
}
