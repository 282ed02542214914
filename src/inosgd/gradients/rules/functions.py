"""Functions treated as layers: what the rule of a layer is shown, and functions that are made of others.

A function with a rule (linear maps, convolutions, embeddings, normalisation) has the gradients of its layer. Attention
and recurrent cells are made of linear maps and of steps without parameters: each map is recorded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _VF, nn
from torch.nn import functional

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.arguments import tensors_in
from inosgd.gradients.rules.attention import ATTENTION, recorded_attention, weights_of_attention
from inosgd.gradients.rules.carried import Lookup
from inosgd.gradients.rules.convolution import convolution_rule
from inosgd.gradients.rules.embedding import embedding_rule
from inosgd.gradients.rules.linear import linear_rule, product_rule
from inosgd.gradients.rules.normalization import group_norm_rule, layer_norm_rule, rms_norm_rule
from inosgd.gradients.rules.recurrent import CELLS, recorded_recurrence
from inosgd.gradients.rules.rule import Rule

if TYPE_CHECKING:
    from inosgd.gradients.rules.watch import Watch


class Ruled(NamedTuple):
    """A function with a rule: what the rule is shown as the layer."""

    rule: Rule
    layer: Callable[..., SimpleNamespace | None]


def lookups_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lookup | None:
    """Which rows of a parameter a function of constants looks up, if it does nothing else."""
    if func is functional.embedding and len(args) > 1 and isinstance(args[1], nn.Parameter):
        layer = _embedding(*args, **kwargs)
        return None if layer is None else Lookup(layer, args[0])
    if getattr(func, "__name__", "") == "__getitem__" and isinstance(args[0], nn.Parameter) and args[0].dim() == 2:
        index = args[1]
        if isinstance(index, torch.Tensor) and index.dtype == torch.int64 and bool((index >= 0).all()):
            return Lookup(SimpleNamespace(**vars(_embedding(index, args[0]))), index)
    return None


def _linear(inputs: torch.Tensor, /, weight: torch.Tensor, bias: torch.Tensor | None = None) -> SimpleNamespace | None:
    return SimpleNamespace(weight=weight, bias=bias) if weight.dim() == 2 else None


def _convolution(
    inputs: torch.Tensor,
    /,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> SimpleNamespace | None:
    kernel = tuple(weight.shape[2:])
    if padding == "same":
        return None

    def tupled(value: Any) -> tuple[int, ...]:
        return tuple(value) * (len(kernel) // len(value)) if isinstance(value, list | tuple) else (value,) * len(kernel)

    return SimpleNamespace(
        weight=weight,
        bias=bias,
        kernel_size=kernel,
        stride=tupled(stride),
        padding=tupled(0 if padding == "valid" else padding),
        dilation=tupled(dilation),
        groups=groups,
        padding_mode="zeros",
    )


def _embedding(
    inputs: torch.Tensor,
    /,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> SimpleNamespace | None:
    if max_norm is not None or scale_grad_by_freq:
        raise InvalidArgumentError(
            "embedding with max_norm or scale_grad_by_freq: an example's row would depend on the others; leave both out"
        )
    index = padding_idx if padding_idx is None or padding_idx >= 0 else padding_idx + len(weight)
    rows, width = weight.shape
    return SimpleNamespace(weight=weight, padding_idx=index, num_embeddings=rows, embedding_dim=width)


def _trailing_norm(
    inputs: torch.Tensor,
    /,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float | None = 1e-5,
) -> SimpleNamespace | None:
    return SimpleNamespace(weight=weight, bias=bias, normalized_shape=tuple(normalized_shape), eps=eps)


def _rms_norm(
    inputs: torch.Tensor,
    /,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> SimpleNamespace | None:
    return SimpleNamespace(weight=weight, normalized_shape=tuple(normalized_shape), eps=eps)


def _group_norm(
    inputs: torch.Tensor,
    /,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> SimpleNamespace | None:
    given = SimpleNamespace(weight=weight, bias=bias, num_groups=num_groups, eps=eps)
    return None if weight is None else given


def _product(inputs: torch.Tensor, /, weight: torch.Tensor) -> SimpleNamespace | None:
    suits = isinstance(weight, torch.Tensor) and weight.dim() == 2 and inputs.dim() > 1
    return SimpleNamespace(weight=weight, bias=None) if suits else None


def _biased_product(
    watch: Watch, bias: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, **keywords: Any
) -> torch.Tensor:
    """``torch.addmm``, whose first argument is the bias."""
    used = [each for each in map(watch.carried, (weight, bias)) if each is not None]
    if keywords or bias.dim() != 1 or not watch.is_of_batch(inputs) or any(map(watch.is_of_batch, (bias, weight))):
        return watch.mapped(torch.addmm, (bias, inputs, weight), keywords, used)  # type: ignore[no-any-return]
    output = torch.addmm(bias, inputs, weight)
    watch.record(output, product_rule, SimpleNamespace(weight=weight, bias=bias), inputs, used)
    return output


def _attention(watch: Watch, *args: Any, **kwargs: Any) -> Any:
    """Attention with weights of a module of the model's own; mapped, if anything else was computed from parameters."""
    behind = {id(each.tensor): each for each in map(watch.carried, tensors_in(args, kwargs)) if each is not None}
    if behind.keys() <= set(map(id, weights_of_attention(args, kwargs))):
        return watch.attended(behind, args, kwargs)
    return watch.mapped(ATTENTION, args, kwargs, list(behind.values()))


def _cell(function: Any) -> Callable[..., Any]:
    """A recurrent cell as two linear maps and what its step makes of them."""
    cell = CELLS[function]

    def call(
        watch: Watch,
        inputs: torch.Tensor,
        state: Any,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None = None,
        b_hh: torch.Tensor | None = None,
    ) -> Any:
        states = tuple(state) if isinstance(state, list | tuple) else (state,)
        maps = []
        for given, weight, bias in ((inputs, w_ih, b_ih), (states[0], w_hh, b_hh)):
            maps.append(functional.linear(given, weight, bias))
            used = [each for each in map(watch.carried, (weight, bias)) if each] if bias is not None else []
            used = used or [each for each in (watch.carried(weight),) if each]
            if used:
                watch.record(maps[-1], linear_rule, SimpleNamespace(weight=weight, bias=bias), given, used)
        new = cell.step(maps[0], maps[1], states)
        return new if len(new) > 1 else new[0]

    return call


RECORDED: dict[Any, Callable[..., Any]] = {
    ATTENTION: recorded_attention,
    **{
        function: (lambda recorder, args, kwargs, cell=cell: recorded_recurrence(cell, recorder, args, kwargs))
        for function, cell in CELLS.items()
    },
}
"""Functions that are recorded step by step, by their own modules."""

MAPS: dict[Any, Callable[..., Any]] = {
    torch.addmm: _biased_product,
    ATTENTION: _attention,
    _VF.lstm_cell: _cell(_VF.lstm),
    _VF.gru_cell: _cell(_VF.gru),
    _VF.rnn_tanh_cell: _cell(_VF.rnn_tanh),
    _VF.rnn_relu_cell: _cell(_VF.rnn_relu),
}
"""Functions that are made of others, which are recorded."""

RULED: dict[Any, Ruled] = {
    functional.linear: Ruled(linear_rule, _linear),
    functional.conv1d: Ruled(convolution_rule, _convolution),
    functional.conv2d: Ruled(convolution_rule, _convolution),
    functional.embedding: Ruled(embedding_rule, _embedding),
    functional.layer_norm: Ruled(layer_norm_rule, _trailing_norm),
    functional.rms_norm: Ruled(rms_norm_rule, _rms_norm),
    functional.group_norm: Ruled(group_norm_rule, _group_norm),
    **{
        function: Ruled(product_rule, _product)
        for function in (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)
    },
}
"""Functions with a rule, and what the rule is shown in place of a layer; None where it does not suit."""
