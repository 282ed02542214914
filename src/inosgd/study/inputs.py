"""Inputs of several parts: text beside numbers, which a model reads as a dictionary of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Shape = tuple[int, ...] | dict[str, tuple[int, ...]]
"""The shape of one example, or of each of its parts."""


@dataclass(frozen=True, eq=False, repr=False)
class NamedInputs:
    """Tensors by name, all with one row per example; what is taken of them is a dictionary. Sensitive."""

    tensors: dict[str, torch.Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, rows: Any) -> dict[str, torch.Tensor]:
        return {name: tensor[rows] for name, tensor in self.tensors.items()}

    def only(self, rows: torch.Tensor) -> NamedInputs:
        """Some of the examples."""
        return NamedInputs(self[rows])

    def followed_by(self, other: NamedInputs) -> NamedInputs:
        """These examples, then those of ``other``."""
        return NamedInputs({name: torch.cat([tensor, other.tensors[name]]) for name, tensor in self.tensors.items()})


def as_shape(sizes: Sequence[int] | Mapping[str, Sequence[int]]) -> Shape:
    """A shape from what JSON keeps of it.

    >>> as_shape([3, 28, 28]), as_shape({"numbers": [4], "note": [80]})
    ((3, 28, 28), {'numbers': (4,), 'note': (80,)})
    """
    if isinstance(sizes, Mapping):
        return {str(name): tuple(part) for name, part in sizes.items()}
    return tuple(sizes)
