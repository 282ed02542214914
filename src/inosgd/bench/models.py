"""The models whose steps are measured, each with a batch of random data of the usual size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from inosgd import models
from inosgd.bench.networks import NETWORKS, VOCABULARY


@dataclass(frozen=True)
class BenchModel:
    """How to build a model and a batch for it.

    Attributes:
        build: A new model, with random weights from the keyword ``seed``.
        inputs: A batch of so many random inputs.
        classes: How many classes the model tells apart.
        batch_size: The usual size of a batch.
        places: How many targets an example has; None for one.
        steps: How many steps make one measurement; short steps are measured together.
    """

    build: Callable[..., nn.Module]
    inputs: Callable[[int], torch.Tensor]
    classes: int
    batch_size: int
    steps: int = 1
    places: int | None = None

    def make(self, batch_size: int | None = None, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The model, inputs and targets; the same for the same seed."""
        count = batch_size or self.batch_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = (count,) if self.places is None else (count, self.places)
            inputs, targets = self.inputs(count), torch.randint(0, self.classes, shape)
        return self.build(seed=seed), inputs, targets


def _images(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randn(count, *shape)


def _words(length: int, vocabulary: int = 256) -> Callable[[int], torch.Tensor]:
    """Bytes or words without padding, so that every place counts."""
    return lambda count: torch.randint(0, vocabulary, (count, length))


MODELS: dict[str, BenchModel] = {
    "mlp": BenchModel(partial(models.paper_mlp, 21, 3), _images(21), 3, 256, steps=20),
    "mnist": BenchModel(models.mnist_cnn, _images(1, 28, 28), 10, 512, steps=3),
    "lstm": BenchModel(models.character_lstm, _words(18), 18, 512, steps=3),
    "cifar": BenchModel(models.cifar_cnn, _images(3, 32, 32), 10, 256),
    "resnet18": BenchModel(models.resnet18, _images(3, 32, 32), 10, 64),
    "transformer": BenchModel(models.small_transformer, _words(128), 10, 64, steps=3),
}

_TEXT = _words(64, VOCABULARY)

OTHERS: dict[str, BenchModel] = {
    "resnet18-64": BenchModel(models.resnet18, _images(3, 64, 64), 10, 8),
    **{
        name: BenchModel(NETWORKS[name], _images(3, 64, 64), 10, 16)
        for name in ("vit-tiny", "vit-tiny-frozen-tokens", "mobilenetv3-small", "convnext-atto")
    },
    **{name: BenchModel(NETWORKS[name], _TEXT, 10, 16) for name in ("bert-mini", "lora-bert-mini")},
    **{name: BenchModel(NETWORKS[name], _TEXT, VOCABULARY, 16, places=64) for name in ("gpt2-tiny", "llama-tiny")},
}
"""Networks of other packages, which are measured if they are asked for by name."""

ALL = {**MODELS, **OTHERS}
