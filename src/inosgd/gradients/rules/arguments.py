"""The tensors among the arguments of a call, and calls with others in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def tensors_in(arguments: Iterable[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists and tuples among them."""
    found: list[torch.Tensor] = []
    for each in (*arguments, *keywords.values()) if keywords else arguments:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += tensors_in(each, {})
    return found


def swapped(
    replaced: Mapping[int, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with others in the place of some, which are known by their identity."""
    return tuple([replaced.get(id(leaf), leaf) for leaf in args]), {
        key: replaced.get(id(value), value) for key, value in kwargs.items()
    }
