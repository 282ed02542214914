"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.Tanh, seed: int) -> nn.Sequential:
    """A perceptron with the given layer widths, initialised from ``seed``; torch's global generator is untouched.

    >>> perceptron(64, 32, 10, seed=0)
    Sequential(
      (0): Linear(in_features=64, out_features=32, bias=True)
      (1): Tanh()
      (2): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
