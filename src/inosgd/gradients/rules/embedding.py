"""Embedding tables."""

from __future__ import annotations

import torch
from torch import nn

from inosgd.gradients.rules.forms import Lookups, SharedLookups
from inosgd.gradients.rules.rule import Gradients, LayerCall, register_rule


def embedding_rule(call: LayerCall) -> Gradients:
    """Place t looks up row index_t: the gradient of row v is the sum of d_t over the places with index_t = v.

    The row ``padding_idx`` is not trained: places that look it up count as d_t = 0.
    """
    table: nn.Embedding = call.module
    indices = call.input.reshape(len(call.input), -1)
    outputs = call.gradient.reshape(*indices.shape, table.embedding_dim)
    if table.padding_idx is not None:
        outputs = outputs.masked_fill((indices == table.padding_idx).unsqueeze(2), 0)
    if _shared(indices):
        return {(call.module.weight,): SharedLookups(outputs, indices[0], table.num_embeddings)}
    return {(call.module.weight,): Lookups(outputs, indices, table.num_embeddings)}


def _shared(indices: torch.Tensor) -> bool:
    """Whether the indices are one row for all examples (``expand``) that has nothing twice.

    Then the rows do not depend on who is in the batch.
    """
    return len(indices) > 1 and indices.stride(0) == 0 and len(set(indices[0].tolist())) == indices.shape[1]


register_rule(nn.Embedding, embedding_rule)
