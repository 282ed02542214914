"""What a configuration is: a way to build a model and a batch for it, and how its outputs become losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

Losses = Callable[[nn.Module, Any], torch.Tensor]

CLASSES = 4
WORDS = 61
COUNT = 5


@dataclass(frozen=True)
class Configuration:
    """A model with a batch.

    Attributes:
        package: Where the model comes from.
        build: A new model with random weights.
        batch: ``batch(count)`` random examples: a tensor or tuple for ``model(*batch)``, a dictionary for
            ``model(**batch)``.
        losses: One loss per example.
    """

    package: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    losses: Losses


def made(configuration: Configuration, count: int = COUNT) -> tuple[nn.Module, Any]:
    """The model in training mode and a batch; parameters are moved, so that nothing that starts at 0 stays there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch = configuration.build().train(), configuration.batch(count)
        with torch.no_grad():
            for parameter in {id(each): each for each in model.parameters() if each.requires_grad}.values():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model, batch


def called(model: nn.Module, batch: Any) -> Any:
    """The model's outputs."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    """The logits if there are any, or all floating-point tensors."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, torch.Tensor):
        return [logits]
    values = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def distances(model: nn.Module, batch: Any) -> torch.Tensor:
    """Half the mean squared distance of all outputs to a pattern, per example."""
    found = tensors_in(called(model, batch))
    return torch.stack([_distance(each) for each in found]).sum(0)


def _distance(output: torch.Tensor) -> torch.Tensor:
    flat = output.flatten(1)
    return (flat - torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype)).square().mean(1) / 2


def next_words(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean cross entropy of each next word, per document."""
    (logits,) = tensors_in(called(model, batch))
    words = batch["input_ids"]
    logits = logits[:, -words.shape[1] :]  # without places of a prompt that is tuned
    return F.cross_entropy(logits[:, :-1].movedim(-1, 1), words[:, 1:], reduction="none").mean(1)


def classes(model: nn.Module, batch: Any) -> torch.Tensor:
    """Cross entropy; all examples are of the second class."""
    logits = tensors_in(called(model, batch))[0].flatten(1)
    return F.cross_entropy(logits, torch.ones(len(logits), dtype=torch.long), reduction="none")


def images(pixels: int = 32, channels: int = 3) -> Callable[[int], torch.Tensor]:
    """Batches of square images."""
    return lambda count: torch.randn(count, channels, pixels, pixels)


def normal(*shape: int) -> Callable[[int], torch.Tensor]:
    """Batches of normal numbers."""
    return lambda count: torch.randn(count, *shape)


def words(length: int = 7, **more: Callable[[int], torch.Tensor]) -> Callable[[int], dict[str, torch.Tensor]]:
    """Batches of word numbers by name, with whatever else the model takes."""
    return lambda count: {
        "input_ids": torch.randint(3, WORDS, (count, length)),
        **{name: each(count) for name, each in more.items()},
    }


def padding(length: int = 7) -> Callable[[int], torch.Tensor]:
    """A mask of padding: the first example is as long as it can be, the others shorter and shorter."""
    return lambda count: (torch.arange(length)[None] < (length - torch.arange(count) % 4)[:, None]).long()
