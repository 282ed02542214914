"""Models of torch.nn's own layers, and ways to use parameters that are common in code around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from tests.architectures.configuration import WORDS, Configuration, distances, images, normal


class Applied(nn.Module):
    """A module that passes its inputs through a function of itself; parts become children, tensors parameters."""

    def __init__(self, apply: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.apply_to = apply
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.apply_to(self, *inputs)


def _cells(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    state = None
    for place in range(inputs.shape[1]):
        state = model.cell(inputs[:, place], state)
    return model.head(state[0] if isinstance(state, tuple) else state)


def _packed(model: nn.Module, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    return model.lstm(packed)[1][0][-1]


def _routed(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Every expert sees every row, and its weight decides."""
    outputs = torch.stack([expert(inputs) for expert in model.experts], dim=1)
    return (model.router(inputs).softmax(1)[..., None] * outputs).sum(1)


def _folded(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Places and examples in one dimension, as multiple choice and windows have them."""
    return model.head(model.body(inputs.flatten(0, 1)).view(*inputs.shape[:2], -1)).flatten(1)


def _sequence_first(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model.body(inputs.transpose(0, 1)).transpose(0, 1)


def _autocast(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inputs.dtype == torch.float32):
        return model.body(inputs).to(inputs.dtype)


def _vit(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    tokens = model.patches(inputs).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.token.expand(len(tokens), -1, -1), tokens], dim=1) + model.positions
    return model.head(model.encoder(tokens)[:, 0])


def _encoder(batch_first: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _tied() -> nn.Module:
    embedding, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, nn.Linear(8, 8), nn.Tanh(), head)


def _mlp(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 4))


def _cnn(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *between, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


_VECTORS, _SEQUENCE, _IMAGES = normal(6), normal(5, 8), images(8)


def _tokens(count: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (count, 5))


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "Linear": (lambda: _mlp(nn.ReLU()), _VECTORS),
    "Linear on sequences": (lambda: nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3)), _SEQUENCE),
    "Bilinear": (lambda: nn.Bilinear(4, 5, 3), lambda count: (torch.randn(count, 4), torch.randn(count, 5))),
    "Conv1d": (lambda: nn.Conv1d(5, 6, 3, padding=1), _SEQUENCE),
    "Conv2d": (_cnn, _IMAGES),
    "Conv2d, groups": (lambda: _cnn(nn.Conv2d(8, 8, 3, groups=4)), _IMAGES),
    "Conv2d, depthwise": (lambda: _cnn(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1)), _IMAGES),
    "Conv2d, dilated, reflected": (
        lambda: _cnn(nn.Conv2d(8, 8, 3, dilation=2, padding=2, padding_mode="reflect")),
        _IMAGES,
    ),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, stride=2), normal(2, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(5, 3, 3, stride=2), _SEQUENCE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1), _IMAGES),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 3), normal(2, 3, 3, 3)),
    "LayerNorm": (lambda: _mlp(nn.LayerNorm(8), nn.ReLU()), _VECTORS),
    "RMSNorm": (lambda: nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 3)), _SEQUENCE),
    "GroupNorm": (lambda: _cnn(nn.GroupNorm(2, 8)), _IMAGES),
    "InstanceNorm2d": (lambda: _cnn(nn.InstanceNorm2d(8, affine=True)), _IMAGES),
    "BatchNorm1d": (lambda: _mlp(nn.BatchNorm1d(8), nn.ReLU()), _VECTORS),
    "BatchNorm2d": (lambda: _cnn(nn.BatchNorm2d(8), nn.ReLU(inplace=True)), _IMAGES),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(WORDS, 8, padding_idx=0), nn.Linear(8, 3)), _tokens),
    "EmbeddingBag": (lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 8, mode="mean"), nn.Linear(8, 3)), _tokens),
    "LSTM, two layers, bidirectional": (
        lambda: Applied(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)),
        _SEQUENCE,
    ),
    "LSTM with projections": (
        lambda: Applied(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(8, 6, proj_size=3, batch_first=True)),
        _SEQUENCE,
    ),
    "LSTM, sequence first": (
        lambda: Applied(lambda self, x: self.rnn(x.transpose(0, 1))[0].transpose(0, 1), rnn=nn.LSTM(8, 6)),
        _SEQUENCE,
    ),
    "LSTM, packed": (
        lambda: Applied(_packed, lstm=nn.LSTM(8, 6, batch_first=True)),
        lambda count: (torch.randn(count, 5, 8), 1 + torch.arange(count) % 5),
    ),
    "GRU": (lambda: Applied(lambda self, x: self.rnn(x)[0], rnn=nn.GRU(8, 6, 2, batch_first=True)), _SEQUENCE),
    "RNN": (lambda: Applied(lambda self, x: self.rnn(x)[0], rnn=nn.RNN(8, 6, batch_first=True)), _SEQUENCE),
    "LSTMCell": (lambda: Applied(_cells, cell=nn.LSTMCell(8, 6), head=nn.Linear(6, 3)), _SEQUENCE),
    "GRUCell": (lambda: Applied(_cells, cell=nn.GRUCell(8, 6), head=nn.Linear(6, 3)), _SEQUENCE),
    "RNNCell": (lambda: Applied(_cells, cell=nn.RNNCell(8, 6), head=nn.Linear(6, 3)), _SEQUENCE),
    "MultiheadAttention": (
        lambda: Applied(lambda self, x: self.mha(x, x, x)[0], mha=nn.MultiheadAttention(8, 2, batch_first=True)),
        _SEQUENCE,
    ),
    "MultiheadAttention, sequence first": (
        lambda: Applied(
            lambda self, x: self.mha(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), mha=nn.MultiheadAttention(8, 2)
        ),
        _SEQUENCE,
    ),
    "MultiheadAttention with other keys": (
        lambda: Applied(
            lambda self, x, y: self.mha(x, y, y)[0],
            mha=nn.MultiheadAttention(8, 2, kdim=4, vdim=4, add_bias_kv=True, batch_first=True),
        ),
        lambda count: (torch.randn(count, 5, 8), torch.randn(count, 3, 4)),
    ),
    "TransformerEncoder": (_encoder, _SEQUENCE),
    "TransformerEncoder, sequence first": (lambda: Applied(_sequence_first, body=_encoder(False)), _SEQUENCE),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        lambda count: (torch.randn(count, 5, 8), torch.randn(count, 4, 8)),
    ),
    "PReLU": (lambda: _cnn(nn.PReLU(8)), _IMAGES),
    "in-place activations": (
        lambda: _cnn(nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.Dropout2d(0.5, inplace=True)),
        _IMAGES,
    ),
    "weight_norm": (lambda: _mlp(nn.Tanh(), parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh()), _VECTORS),
    "spectral_norm": (lambda: _mlp(parametrizations.spectral_norm(nn.Linear(8, 8))), _VECTORS),
    "orthogonal": (lambda: _mlp(parametrizations.orthogonal(nn.Linear(8, 8))), _VECTORS),
    "tied weights": (_tied, _tokens),
    "the same layer twice": (
        lambda: Applied(lambda self, x: self.head(self.body(self.body(x).tanh())), body=nn.Linear(6, 6), head=_mlp()),
        _VECTORS,
    ),
    "siamese": (
        lambda: Applied(lambda self, x, y: self.body(x) * self.body(y), body=_mlp(nn.Tanh())),
        lambda count: (torch.randn(count, 6), torch.randn(count, 6)),
    ),
    "F.linear with a layer's weight": (
        lambda: Applied(lambda self, x: F.linear(self.body(x).tanh(), self.body.weight.t()), body=nn.Linear(6, 4)),
        _VECTORS,
    ),
    "F.conv2d with own weights": (
        lambda: Applied(
            lambda self, x: F.conv2d(x, self.weight, self.bias), weight=torch.randn(4, 3, 3, 3), bias=torch.randn(4)
        ),
        _IMAGES,
    ),
    "scale and shift": (
        lambda: Applied(
            lambda self, x: self.body(x * self.scale + self.shift),
            body=_mlp(),
            scale=torch.ones(6),
            shift=torch.zeros(6),
        ),
        _VECTORS,
    ),
    "einsum with a parameter": (
        lambda: Applied(lambda self, x: torch.einsum("bi,ijk->bjk", x, self.weight), weight=torch.randn(6, 3, 2)),
        _VECTORS,
    ),
    "a parameter alone as an output": (
        lambda: Applied(
            lambda self, x: self.body(x) + self.bias[None].expand(len(x), -1), body=_mlp(), bias=torch.zeros(4)
        ),
        _VECTORS,
    ),
    "ViT by hand": (
        lambda: Applied(
            _vit,
            patches=nn.Conv2d(3, 8, 4, 4),
            token=torch.zeros(1, 1, 8),
            positions=torch.zeros(1, 5, 8),
            encoder=_encoder(),
            head=nn.Linear(8, 4),
        ),
        _IMAGES,
    ),
    "positions by Embedding": (
        lambda: Applied(
            lambda self, x: self.head(self.words(x) + self.places(torch.arange(5))[None]),
            words=nn.Embedding(WORDS, 8),
            places=nn.Embedding(5, 8),
            head=nn.Linear(8, 3),
        ),
        _tokens,
    ),
    "places folded into the batch": (
        lambda: Applied(_folded, body=nn.Sequential(nn.Linear(8, 6), nn.ReLU()), head=nn.Linear(6, 2)),
        _SEQUENCE,
    ),
    "mixture of experts": (
        lambda: Applied(_routed, experts=nn.ModuleList([_mlp(nn.Tanh()) for _ in range(3)]), router=nn.Linear(6, 3)),
        _VECTORS,
    ),
    "a frozen body": (lambda: _frozen(_cnn(nn.ReLU(), nn.Conv2d(8, 8, 3))), _IMAGES),
    "checkpoint": (
        lambda: Applied(
            lambda self, x: self.head(checkpoint(self.body, x, use_reentrant=False)), body=nn.Linear(6, 6), head=_mlp()
        ),
        _VECTORS,
    ),
    "checkpoint, reentrant": (
        lambda: Applied(
            lambda self, x: self.head(checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant)),
            use_reentrant=True,
            first=nn.Linear(6, 6),
            body=nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
            head=_mlp(),
        ),
        _VECTORS,
    ),
    "autocast": (lambda: Applied(_autocast, body=_mlp(nn.ReLU())), _VECTORS),
}


def _frozen(model: nn.Sequential) -> nn.Module:
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


def configurations() -> dict[str, Configuration]:
    """By name."""
    return {
        f"torch.nn: {name}": Configuration("torch.nn", build, batch, distances)
        for name, (build, batch) in _MODELS.items()
    }
