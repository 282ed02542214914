"""Multi-layer perceptrons: the paper's MLP, and its heads on the embeddings of pretrained models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.models._seeding import initialised_from


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.Tanh, seed: int) -> nn.Sequential:
    """A perceptron with the given layer widths, initialised from ``seed``; torch's global generator is untouched.

    >>> perceptron(64, 32, 10, seed=0)
    Sequential(
      (0): Linear(in_features=64, out_features=32, bias=True)
      (1): Tanh()
      (2): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    if len(widths) < 2:
        raise InvalidArgumentError(f"widths={widths!r}: give at least the numbers of inputs and outputs")
    for width in widths:
        _validate.whole(1, width=width)
    with initialised_from(seed):
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def paper_mlp(inputs: int, classes: int, *, seed: int) -> nn.Sequential:
    """MLP: three hidden layers of 47 with ReLU, for tables (21 features in the paper's CA)."""
    return perceptron(inputs, 47, 47, 47, classes, activation=nn.ReLU, seed=seed)


def linear_head(inputs: int, classes: int, *, seed: int) -> nn.Sequential:
    """SC: one linear layer on embeddings (the paper's come from SimCLRv2, 4096 numbers each)."""
    return perceptron(inputs, classes, seed=seed)


def hidden_head(inputs: int, classes: int, *, seed: int) -> nn.Sequential:
    """EN: one hidden layer of 512 with ReLU on embeddings (the paper's come from EfficientNet-B1)."""
    return perceptron(inputs, 512, classes, activation=nn.ReLU, seed=seed)
