"""Importing the packages that networks come from.

The wheels of torchvision on PyPI are built for CUDA, and their compiled operators do not load beside a torch without
it. No network that is measured or compared uses them: it is enough to declare the two whose absence stops the import.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import torch


def imported(module: str) -> Any:
    """The module, after torchvision, which most of these packages import if it is there."""
    _prepare_torchvision()
    return importlib.import_module(module)


@cache
def _prepare_torchvision() -> object:
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        return library  # kept, because what it declares is undone with it
