"""Models for any data: small, without BatchNorm, and with Tanh unless told otherwise.

BatchNorm mixes the examples of a batch, so none of these has it. Bounded activations such as Tanh keep gradients short,
which loses less to clipping (Papernot et al. 2021). Small networks lose less to noise, which grows with the number of
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from inosgd import _validate
from inosgd.models._seeding import initialised_from
from inosgd.models.perceptron import perceptron
from inosgd.models.recurrent import SequenceClassifier, sequence_classifier

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "elu": nn.ELU}

SMALLEST_SIDE = 8
MOST_CHANNELS = 128
MOST_GROUPS = 8


def mlp(
    inputs: int, outputs: int, *, hidden: Sequence[int] = (64,), activation: str = "tanh", seed: int
) -> nn.Sequential:
    """A perceptron for tables and embeddings.

    Args:
        inputs: How many numbers an example has.
        outputs: How many classes, labels or targets there are.
        hidden: The widths of the hidden layers; () for a linear model.
        activation: One of `ACTIVATIONS`.
        seed: Where the initial weights come from.
    """
    return perceptron(inputs, *hidden, outputs, activation=_activation(activation), seed=seed)


def cnn(
    channels: int,
    height: int,
    width: int,
    outputs: int,
    *,
    first_width: int = 16,
    hidden: int = 64,
    group_norm: bool = False,
    activation: str = "tanh",
    seed: int,
) -> nn.Sequential:
    """A convolutional network for images of any size from 8 x 8.

    Blocks of convolution 3 x 3, GroupNorm if wanted, activation and pooling halve the image until its shorter side is
    below 8; channels double from ``first_width`` up to 128. What is left is averaged over its four quarters. So a
    larger image has more blocks, and no more weights behind them.

    Args:
        channels: 1 for grey images, 3 for colour.
        height: Rows of pixels.
        width: Columns of pixels.
        outputs: How many classes, labels or targets there are.
        first_width: The channels of the first block.
        hidden: The width of the layer before the last.
        group_norm: Whether every convolution is normalised, in up to 8 groups.
        activation: One of `ACTIVATIONS`.
        seed: Where the initial weights come from.
    """
    _validate.whole(1, channels=channels, outputs=outputs, first_width=first_width, hidden=hidden)
    _validate.whole(SMALLEST_SIDE, height=height, width=width)
    act = _activation(activation)
    with initialised_from(seed):
        layers: list[nn.Module] = []
        before = channels
        for index in range(_blocks(min(height, width))):
            after = max(first_width, min(first_width * 2**index, MOST_CHANNELS))
            norm = [nn.GroupNorm(math.gcd(MOST_GROUPS, after), after)] if group_norm else []
            layers += [nn.Conv2d(before, after, 3, padding=1), *norm, act(), nn.MaxPool2d(2)]
            before = after
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * before, hidden), act(), nn.Linear(hidden, outputs))


def lstm(
    symbols: int, outputs: int, *, embedding: int = 32, hidden: int = 64, padding: int | None = None, seed: int
) -> SequenceClassifier:
    """An LSTM for sequences of symbols, all of one length, filled up with ``padding`` if it is given.

    Args:
        symbols: Symbols are 0 to ``symbols`` - 1.
        outputs: How many classes, labels or targets there are.
        embedding: Numbers per symbol.
        hidden: The size of the LSTM's state.
        padding: The symbol that stands for nothing; see `inosgd.models.recurrent` for what it does to privacy.
        seed: Where the initial weights come from.
    """
    return sequence_classifier(symbols, outputs, embedding=embedding, hidden=hidden, padding=padding, seed=seed)


def _activation(name: str) -> Callable[[], nn.Module]:
    if name not in ACTIVATIONS:
        raise _validate.fail("activation", name, f"choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _blocks(side: int) -> int:
    """How often ``side`` is halved until it is below 8.

    >>> [_blocks(side) for side in (8, 28, 32, 64, 224)]
    [1, 2, 3, 4, 5]
    """
    return 0 if side < SMALLEST_SIDE else 1 + _blocks(side // 2)
