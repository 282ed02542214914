"""PC: the convolutional networks of Papernot et al. (2021) that the paper trains, with Tanh everywhere."""

from __future__ import annotations

from torch import nn

from inosgd import _validate
from inosgd.models._seeding import initialised_from


def mnist_cnn(classes: int = 10, *, seed: int) -> nn.Sequential:
    """For grey images of 28 x 28: two convolutions with overlapping pooling, a layer of 32, 26,010 parameters."""
    _validate.whole(1, classes=classes)
    with initialised_from(seed):
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
            nn.Linear(32, classes),
        )


def cifar_cnn(classes: int = 10, *, seed: int) -> nn.Sequential:
    """For colour images of 32 x 32: three blocks of two convolutions, a layer of 128, 550,570 parameters.

    The same for CIFAR-10, CIFAR-100 and Fish/Vehicles but for the number of classes.
    """
    _validate.whole(1, classes=classes)
    layers: list[nn.Module] = []
    channels = 3
    with initialised_from(seed):
        for width in (32, 64, 128):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
            channels = width
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes))
