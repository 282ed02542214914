"""How batches go into models and logits come out of them, for models with arguments by name and results with parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from inosgd.errors import InvalidArgumentError


class Named(dict[str, Any]):
    """Inputs that a model takes by name."""


def inputs_and_targets(examples: Any, name: str) -> tuple[Any, Any]:
    """The two parts of a batch: a pair, or a dictionary with the targets under ``name`` and named inputs besides."""
    if isinstance(examples, Mapping):
        if name not in examples:
            raise InvalidArgumentError(
                f"examples: a dictionary of {sorted(map(str, examples))} without targets under {name!r}; add them, or "
                "say what they are called: supervised(loss, targets=...)"
            )
        return Named({key: value for key, value in examples.items() if key != name}), examples[name]
    if not isinstance(examples, tuple | list) or len(examples) != 2:
        raise InvalidArgumentError(
            f"examples: {type(examples).__name__} is neither a pair (inputs, targets) nor a dictionary with targets "
            f"under {name!r}; give one of them, or write losses of your own"
        )
    return examples[0], examples[1]


def logits_of(model: nn.Module, inputs: Any) -> torch.Tensor:
    """What the model returns for the inputs, or the ``logits`` in it."""
    found = outputs = model(**inputs) if isinstance(inputs, Named) else model(inputs)
    if not isinstance(outputs, torch.Tensor):
        found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(found, torch.Tensor):
        raise InvalidArgumentError(
            f"model: it returns {type(outputs).__name__} without logits; return a tensor, or logits by this name, or "
            "write losses of your own"
        )
    return found


def classes_second(outputs: torch.Tensor) -> torch.Tensor:
    """Outputs with the classes in the last dimension, as losses of torch expect them: in the second."""
    if outputs.dim() < 2:
        raise InvalidArgumentError(
            f"outputs of shape {tuple(outputs.shape)}: classes_last needs a dimension of examples and one of classes"
        )
    return outputs.movedim(-1, 1)
