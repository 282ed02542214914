"""A small transformer, for measuring: the paper has none."""

from __future__ import annotations

import torch
from torch import nn

from inosgd import _validate
from inosgd.models._seeding import initialised_from


class SmallTransformer(nn.Module):
    """Two encoder layers over sequences of up to 128 tokens, without dropout."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, 64)
        self.position = nn.Embedding(128, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores from the mean over tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        hidden = self.embedding(tokens) + self.position(places)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: torch.Tensor = self.head(hidden.mean(1))
        return scores


def small_transformer(classes: int = 10, *, seed: int) -> SmallTransformer:
    """The transformer, initialised from ``seed``."""
    _validate.whole(1, classes=classes)
    with initialised_from(seed):
        return SmallTransformer(classes)
