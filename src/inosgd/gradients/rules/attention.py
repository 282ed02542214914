"""Multi-head attention as ``torch.nn`` has it, and so the transformer layers.

Attention itself has no parameters: it mixes places within an example. Its parameters sit in four affine maps, of
queries, keys, values and of the result, and each of those has the gradients of a linear layer on a sequence. The
attention is written out here so that the maps' output gradients can be recorded.

Whatever the module's layout, values are seen here as (examples, places, features). They lie in memory as they came
(``batch_first`` or not), so that nothing is copied from one order to the other.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import Blocks, Dense, affine
from inosgd.gradients.rules.rule import Gradients

ATTENTION = functional.multi_head_attention_forward
_SIGNATURE = inspect.signature(ATTENTION)

Settings = Mapping[str, Any]
"""The arguments of ``torch.nn.functional.multi_head_attention_forward`` by name."""


_WEIGHTS = ("in_proj_weight", *[f"{letter}_proj_weight" for letter in "qkv"], "in_proj_bias", "bias_k", "bias_v")
_OF_RESULT = ("out_proj_weight", "out_proj_bias")


class Recording(Protocol):
    """What is asked of a `Recorder`."""

    def where(self, parameter: nn.Parameter, /) -> str:
        """See `Recorder.where`."""

    def add(
        self, outputs: Sequence[torch.Tensor], parts: Callable[..., Gradients], kept: Sequence[torch.Tensor], where: str
    ) -> None:
        """See `Recorder.add`."""


def weights_of_attention(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """Those among the arguments that are parameters of the four maps."""
    given = _SIGNATURE.bind(*arguments, **keywords).arguments
    return [given[name] for name in (*_WEIGHTS, *_OF_RESULT) if given.get(name) is not None]


def recorded_attention(
    recorder: Recording, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What ``multi_head_attention_forward`` would return, with every use of a weight recorded."""
    bound = _SIGNATURE.bind(*arguments, **keywords)
    bound.apply_defaults()
    settings = bound.arguments
    _check(recorder, settings)
    queries, keys, values = _project(recorder, settings)
    keys, values = _with_bias_rows(recorder, settings, keys, values)
    mixed, weights = _attend(settings, queries, keys, values)
    output = _map(settings, mixed, settings["out_proj_weight"], settings["out_proj_bias"])
    _record_map(recorder, [settings["out_proj_weight"]], settings["out_proj_bias"], [mixed], [output])
    return output.transpose(0, 1), weights


def _check(recorder: Recording, settings: Settings) -> None:
    where = recorder.where(settings["out_proj_weight"])
    if settings["query"].dim() != 3:
        raise InvalidArgumentError(f"module {where!r}: attention without a dimension of examples; give it a batch")
    if settings["static_k"] is not None or settings["static_v"] is not None:
        raise InvalidArgumentError(f"module {where!r}: static keys or values have no rule; use ReferenceEngine")


def _project(recorder: Recording, settings: Settings) -> list[torch.Tensor]:
    """Queries, keys and values, each (examples, places, features)."""
    given = [settings["query"], settings["key"], settings["value"]]
    inputs = [each.transpose(0, 1) for each in given]
    weight, bias = settings["in_proj_weight"], settings["in_proj_bias"]
    if settings["use_separate_proj_weight"]:
        weights = [settings[f"{letter}_proj_weight"] for letter in "qkv"]
    elif given[0] is given[1] is given[2]:
        output = _map(settings, inputs[0], weight, bias)
        _record_map(recorder, [weight], bias, inputs[:1], [output])
        return list(output.chunk(3, 2))
    else:
        weights = [weight]
    blocks = weights if len(weights) == 3 else weight.chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    outputs = [_map(settings, *each) for each in zip(inputs, blocks, biases, strict=True)]
    _record_map(recorder, weights, bias, inputs, outputs)
    return outputs


def _map(settings: Settings, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """An affine map of every place, with the result in memory in the order of the query."""
    if settings["query"].is_contiguous():  # one place after the other, each with all its examples
        return functional.linear(inputs.transpose(0, 1), weight, bias).transpose(0, 1)
    return functional.linear(inputs, weight, bias)


def _record_map(
    recorder: Recording,
    weights: Sequence[nn.Parameter],
    bias: nn.Parameter | None,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    """One or three affine maps with one bias, whose weights are one parameter (rows in blocks) or one each."""

    def parts(*gradients: torch.Tensor) -> Gradients:
        maps = [(d, a.detach()) for d, a in zip(gradients, inputs, strict=True)]
        found: dict[tuple[nn.Parameter, ...], Any] = {}
        if bias is not None and bias.requires_grad:
            found[(bias,)] = Blocks(tuple(Dense((d.sum(1),)) for d, _ in maps))
        forms = [affine(d, [a], 0) for d, a in maps]
        groups = [forms] if len(weights) == 1 else [[form] for form in forms]
        for weight, blocks in zip(weights, groups, strict=True):
            if weight.requires_grad:
                found[(weight,)] = Blocks(tuple(blocks))
        return found

    if any(p is not None and p.requires_grad for p in (*weights, bias)):
        recorder.add(outputs, parts, inputs, recorder.where(weights[0]))


def _with_bias_rows(
    recorder: Recording, settings: Settings, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with a trained place (``add_bias_kv``) and then a place of zeros (``add_zero_attn``) added."""
    extended = []
    for places, bias in ((keys, settings["bias_k"]), (values, settings["bias_v"])):
        added = [places]
        if bias is not None:
            added.append(bias.repeat(len(places), 1, 1))
            _record_rows(recorder, bias, added[1])
        if settings["add_zero_attn"]:
            added.append(places.new_zeros(len(places), 1, places.shape[2]))
        extended.append(torch.cat(added, dim=1) if added[1:] else places)
    return extended[0], extended[1]


def _record_rows(recorder: Recording, bias: nn.Parameter, rows: torch.Tensor) -> None:
    """Every example has a copy of the bias of its own: the copy's gradient is the example's."""

    def parts(gradient: torch.Tensor) -> Gradients:
        return {(bias,): Dense((gradient.unsqueeze(1),))}

    if bias.requires_grad:
        recorder.add([rows], parts, [], recorder.where(bias))


def _attend(
    settings: Settings, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """softmax(q k^T / sqrt(width) + mask) v in every head: the mixed values and, if asked for, the softmax."""
    heads = settings["num_heads"]
    q, k, v = (each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in (queries, keys, values))
    mask = _mask(settings, q, k.shape[2])
    dropout = settings["dropout_p"] if settings["training"] else 0.0
    if not settings["need_weights"]:
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        return mixed.transpose(1, 2).flatten(2), None
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    weights = functional.dropout(weights, dropout) if dropout else weights
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return mixed, weights.mean(1) if settings["average_attn_weights"] else weights


def _mask(settings: Settings, q: torch.Tensor, sources: int) -> torch.Tensor | None:
    """What to add to the scores, broadcast over (examples, heads, targets, sources); None for nothing."""
    of_places, of_padding = _additive(settings["attn_mask"], q), _additive(settings["key_padding_mask"], q)
    if of_places is not None and of_places.dim() == 3:
        of_places = of_places.view(*q.shape[:3], -1)
    if of_padding is not None:
        of_padding = of_padding[:, None, None, :]
    masks = [functional.pad(m, (0, sources - m.shape[-1])) for m in (of_places, of_padding) if m is not None]
    return sum(masks[1:], masks[0]) if masks else None


def _additive(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A mask of booleans (True: not allowed) as one of numbers to add (minus infinity)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(mask, -math.inf)
