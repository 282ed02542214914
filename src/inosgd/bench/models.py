"""The models whose steps are measured, each with a batch of random data of the usual size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class BenchModel:
    """How to build a model and a batch for it.

    Attributes:
        build: A new model, with random weights.
        inputs: A batch of so many random inputs.
        classes: How many classes the model tells apart.
        batch_size: The usual size of a batch.
        steps: How many steps make one measurement; short steps are measured together.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    classes: int
    batch_size: int
    steps: int = 1

    def make(self, batch_size: int | None = None, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The model, inputs and targets; the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            count = batch_size or self.batch_size
            return self.build(), self.inputs(count), torch.randint(0, self.classes, (count,))


def mlp() -> nn.Module:
    """Three hidden layers of 47 for 21 features."""
    layers = [nn.Linear(21, 47), nn.ReLU(), nn.Linear(47, 47), nn.ReLU(), nn.Linear(47, 47), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(47, 3))


def mnist_cnn() -> nn.Module:
    """The paper's network for MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def cifar_cnn() -> nn.Module:
    """The paper's network for CIFAR-10."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


class CharacterLstm(nn.Module):
    """From the characters of a name to one of 18 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 18)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Class scores from the last hidden state."""
        scores: torch.Tensor = self.head(self.lstm(self.embedding(characters))[0][:, -1])
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(32, width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(32, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(32, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        hidden = torch.relu(self.first_norm(self.first(inputs)))
        hidden = self.second_norm(self.second(hidden))
        return torch.relu(hidden + self.shortcut(inputs))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32 x 32, with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(channels, width, stride), ResidualBlock(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class SmallTransformer(nn.Module):
    """Two encoder layers over 128 tokens; dropout is off, so that every method does the same work."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, 64)
        self.position = nn.Embedding(128, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores from the mean over tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        hidden = self.embedding(tokens) + self.position(places)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: torch.Tensor = self.head(hidden.mean(1))
        return scores


def _images(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randn(count, *shape)


def _words(length: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randint(0, 259, (count, length))


MODELS: dict[str, BenchModel] = {
    "mlp": BenchModel(mlp, _images(21), 3, 256, steps=20),
    "mnist": BenchModel(mnist_cnn, _images(1, 28, 28), 10, 512),
    "lstm": BenchModel(CharacterLstm, _words(18), 18, 512),
    "cifar": BenchModel(cifar_cnn, _images(3, 32, 32), 10, 256),
    "resnet18": BenchModel(resnet18, _images(3, 32, 32), 10, 64),
    "transformer": BenchModel(SmallTransformer, _words(128), 10, 64),
}
