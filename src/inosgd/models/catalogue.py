"""The paper's models under its abbreviations (App. D.1.2), all called alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from inosgd import _validate
from inosgd.models.paper_cnn import cifar_cnn, mnist_cnn
from inosgd.models.perceptron import hidden_head, linear_head, paper_mlp
from inosgd.models.recurrent import character_lstm
from inosgd.models.residual import resnet18


class ModelFactory(Protocol):
    """A fresh model from the shape of one example, the number of classes and a seed."""

    def __call__(self, inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
        """The model; the same for the same seed, and torch's global generator is untouched.

        Args:
            inputs: The shape of one example's tensor: ``(21,)``, ``(1, 28, 28)``, ``(length,)`` of a padded name.
            classes: How many classes there are.
            seed: Where the initial weights come from.
        """


def _mlp(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    return paper_mlp(_features("MLP", inputs), classes, seed=seed)


def _paper_cnn(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    """PC has one form for MNIST and one for CIFAR: the image says which."""
    forms: dict[tuple[int, ...], Callable[..., nn.Module]] = {(1, 28, 28): mnist_cnn, (3, 32, 32): cifar_cnn}
    if tuple(inputs) not in forms:
        shapes = " or ".join(map(str, forms))
        raise _validate.fail("inputs", tuple(inputs), f"PC takes images of {shapes}; for others use the model cnn")
    return forms[tuple(inputs)](classes, seed=seed)


def _resnet18(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    if len(inputs) != 3 or min(inputs[1:]) < 8:
        raise _validate.fail("inputs", tuple(inputs), "RN takes images: give (channels, height, width) from 8 pixels")
    return resnet18(classes, channels=inputs[0], seed=seed)


def _linear_head(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    return linear_head(_features("SC", inputs), classes, seed=seed)


def _hidden_head(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    return hidden_head(_features("EN", inputs), classes, seed=seed)


def _character_lstm(inputs: Sequence[int], classes: int, *, seed: int) -> nn.Module:
    _features("LS", inputs)
    return character_lstm(classes, seed=seed)


def _features(model: str, inputs: Sequence[int]) -> int:
    if len(inputs) != 1:
        raise _validate.fail("inputs", tuple(inputs), f"{model} takes flat examples: give the shape as (count,)")
    return int(inputs[0])


MODELS: dict[str, ModelFactory] = {
    "MLP": _mlp,
    "PC": _paper_cnn,
    "RN": _resnet18,
    "SC": _linear_head,
    "EN": _hidden_head,
    "LS": _character_lstm,
}
