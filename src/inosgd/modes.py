"""Evaluation mode for the time of one block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards every module of it is in the mode that it had before.

    ``model.train()`` would put all modules into training mode, also those that the user keeps out of it: a frozen
    BatchNorm would then mix the examples of the next batch.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
