"""RN: ResNet-18 with GroupNorm in the place of BatchNorm, for images of 32 x 32."""

from __future__ import annotations

import torch
from torch import nn

from inosgd import _validate
from inosgd.models._seeding import initialised_from

GROUPS = 32
"""How many groups each normalisation has."""


class ResidualBlock(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        hidden = torch.relu(self.first_norm(self.first(inputs)))
        hidden = self.second_norm(self.second(hidden))
        return torch.relu(hidden + self.shortcut(inputs))


def resnet18(classes: int = 10, *, channels: int = 3, seed: int) -> nn.Sequential:
    """ResNet-18 in its form for small images: a first convolution of 3 x 3 with stride 1, and no pooling after it.

    The paper says only "ResNet-18 trained from scratch". Its authors' code takes the form for images of 224 x 224 (7 x
    7 with stride 2, then pooling), whose last blocks see a single pixel of a 32 x 32 image. This is the form that is
    usual for CIFAR.
    """
    _validate.whole(1, classes=classes, channels=channels)
    with initialised_from(seed):
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(GROUPS, 64), nn.ReLU()]
        before = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [ResidualBlock(before, width, stride), ResidualBlock(width, width, 1)]
            before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
