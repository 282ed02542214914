"""Many perceptrons trained at once: `inosgd.training.train_step` for a stack of models, by batched matrix products.

Small models spend their time in overheads. A stack shares them: parameters have one more dimension, batches are padded
to the longest of a step, and a step is a few batched products. The algorithm and the random draws of each model are
those of `train_step` with the same source: in float64 the parameters agree to rounding (tested). A padded row has
coefficient 0 and contributes exactly nothing.

For plain perceptrons only: linear layers with elementwise activations in between, and cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from inosgd._arrays import FloatArray, IntArray
from inosgd.audit.practice import Practice, Sampler
from inosgd.importance import Tail, importance_weights
from inosgd.mechanism import BoundedSum, release
from inosgd.order import Candidates
from inosgd.plan import Terms
from inosgd.randomness import RandomSource
from inosgd.rounding import Room
from inosgd.streams import Streams
from inosgd.study.study import StudyData

ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU)


def can_stack(model: nn.Module) -> bool:
    """Whether ``model`` is a perceptron whose layers alternate with elementwise activations."""
    if not isinstance(model, nn.Sequential) or not len(model):
        return False
    layers, between = list(model)[0::2], list(model)[1::2]
    all_linear = all(isinstance(layer, nn.Linear) and layer.bias is not None for layer in layers)
    trained = all(parameter.requires_grad for parameter in model.parameters())
    return all_linear and trained and len(model) % 2 == 1 and all(isinstance(each, ACTIVATIONS) for each in between)


@dataclass(frozen=True, eq=False)
class Stack:
    """Models of one shape: weights (models, outputs, inputs) and biases (models, outputs) of each layer."""

    weights: list[torch.Tensor]
    biases: list[torch.Tensor]
    activations: list[nn.Module]

    @classmethod
    def of(cls, model: nn.Module, count: int) -> Stack:
        """``count`` copies of a model."""
        layers = list(model.children())
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        return cls(
            [layer.weight.detach().expand(count, -1, -1).clone() for layer in linear],
            [layer.bias.detach().expand(count, -1).clone() for layer in linear],
            [layer for layer in layers if not isinstance(layer, nn.Linear)],
        )

    @property
    def parameters(self) -> list[torch.Tensor]:
        """In the order of a flat gradient."""
        return [each for pair in zip(self.weights, self.biases, strict=True) for each in pair]

    def forward(self, inputs: torch.Tensor) -> Pass:
        """Inputs (models, examples, features) through all layers, ready for one backward pass."""
        before, received, value = [], [], inputs
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            received.append(value.detach())
            value = torch.baddbmm(bias[:, None, :], value, weight.transpose(1, 2))
            if index == 0:
                value.requires_grad_()
            before.append(value)
            if index < len(self.activations):
                value = self.activations[index](value)
        return Pass(received, before, value)

    @torch.no_grad()
    def outputs(self, inputs: torch.Tensor, at_once: int = 512) -> torch.Tensor:
        """What each model says about each of the same inputs (examples, features)."""
        count = len(self.weights[0])
        parts = [self._evaluated(part.expand(count, -1, -1)) for part in torch.split(inputs, at_once)]
        return torch.cat(parts, dim=1)

    def _evaluated(self, value: torch.Tensor) -> torch.Tensor:
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            value = torch.baddbmm(bias[:, None, :], value, weight.transpose(1, 2))
            if index < len(self.activations):
                value = self.activations[index](value)
        return value


class Pass(NamedTuple):
    """A forward pass: what each layer received, what it gave before its activation, and the outputs."""

    received: list[torch.Tensor]
    before: list[torch.Tensor]
    outputs: torch.Tensor


def train_stacked(
    initial: nn.Module,
    practice: Practice,
    data: StudyData,
    members: Sequence[IntArray],
    sources: Sequence[RandomSource],
    learning_rate: float,
) -> Stack:
    """One model for each set of ``members`` (rows of ``data``), all from ``initial``, each with its own source."""
    stack, terms = Stack.of(initial, len(members)), practice.terms
    lanes = [_Lane.of(practice, data, rows, source) for rows, source in zip(members, sources, strict=True)]
    inputs, targets = data.examples.all()
    inputs = inputs.to(stack.weights[0].dtype)
    for _ in range(practice.plan.steps):
        _step(stack, lanes, inputs, targets, terms, practice, learning_rate)
    return stack


@dataclass(frozen=True, eq=False)
class _Lane:
    """What one model of the stack has to itself: its examples, sampler, streams and adjustment of logits."""

    rows: IntArray
    owners: IntArray
    sampler: Sampler
    streams: Streams
    offsets: FloatArray

    @classmethod
    def of(cls, practice: Practice, data: StudyData, rows: IntArray, source: RandomSource) -> _Lane:
        owners = data.owners.assignment[rows]
        sampler = practice.sampler(practice.terms.sampling_rates, owners, data.class_numbers[rows])
        adjustment, offsets = practice.method.adjustment, np.zeros(data.task.outputs)
        if adjustment is not None and practice.shares is not None:
            offsets = adjustment.offsets(practice.terms, practice.for_owners(owners)[1].table, practice.shares)
        return cls(rows, owners, sampler, Streams.of(source), offsets)


def _step(
    stack: Stack,
    lanes: Sequence[_Lane],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    terms: Terms,
    practice: Practice,
    learning_rate: float,
) -> None:
    """One step of every model: sample, measure, order, weight, clip, sum, add noise, update."""
    batches = [lane.sampler.draw(lane.streams.sampling) for lane in lanes]
    places = _padded([lane.rows[batch] for lane, batch in zip(lanes, batches, strict=True)])
    passed = stack.forward(inputs[places])
    offsets = torch.from_numpy(np.stack([lane.offsets for lane in lanes])).to(passed.outputs)
    logits = passed.outputs + offsets[:, None, :]
    losses = F.cross_entropy(logits.transpose(1, 2), targets[places], reduction="none")
    slopes = torch.autograd.grad(losses.sum(), passed.before)
    norms = _norms(passed.received, slopes).double().numpy()
    tail = practice.method.tail(practice.plan.expected_threshold_sum())
    coefficients = np.zeros(places.shape)
    measured = losses.detach().double().numpy()
    for index, (lane, batch) in enumerate(zip(lanes, batches, strict=True)):
        count = len(batch)
        coefficients[index, :count] = _coefficients(
            practice, terms, tail, lane, batch, measured[index, :count], norms[index, :count]
        )
    scales = torch.from_numpy(coefficients)[..., None]
    sums = _weighted_sums(passed.received, slopes, scales)
    _update(stack, _released(sums, lanes, terms, inputs.dtype), learning_rate / terms.expected_batch_size)


def _padded(batches: Sequence[IntArray]) -> IntArray:
    """The rows of each batch side by side; short ones end in row 0, which counts for nothing."""
    places = np.zeros((len(batches), max(1, *(len(batch) for batch in batches))), dtype=np.int64)
    for index, batch in enumerate(batches):
        places[index, : len(batch)] = batch
    return places


def _norms(received: Sequence[torch.Tensor], slopes: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of each example's gradient: a linear layer's has the squared norm |d|^2 (|a|^2 + 1)."""
    squares = [
        slope.double().square().sum(-1) * (value.double().square().sum(-1) + 1)
        for value, slope in zip(received, slopes, strict=True)
    ]
    return torch.stack(squares).sum(0).sqrt()


def _coefficients(
    practice: Practice,
    terms: Terms,
    tail: Tail | None,
    lane: _Lane,
    batch: IntArray,
    losses: FloatArray,
    norms: FloatArray,
) -> FloatArray:
    """Weight times factor for each example of one model's batch, by the core's own functions."""
    owners = lane.owners[batch]
    thresholds = terms.thresholds_of(owners)
    factors = practice.method.clipping.factors(norms, thresholds)
    if tail is None:
        return factors
    candidates = Candidates(batch, practice.plan.table.privacy_ranks[owners], losses, norms)
    ranking = practice.method.order.ranking(candidates, lane.streams.order)
    return importance_weights(tail, thresholds, ranking) * factors


def _weighted_sums(
    received: Sequence[torch.Tensor], slopes: Sequence[torch.Tensor], scales: torch.Tensor
) -> torch.Tensor:
    """One row per model: the weighted sum of its batch's gradients, flat, in float64."""
    parts = []
    for value, slope in zip(received, slopes, strict=True):
        present = scales != 0
        outputs = torch.where(present, slope.double() * scales, 0.0)
        inputs = torch.where(present, value, 0.0).double()
        parts += [(outputs.transpose(1, 2) @ inputs).flatten(1), outputs.sum(1)]
    return torch.cat(parts, dim=1)


def _released(sums: torch.Tensor, lanes: Sequence[_Lane], terms: Terms, dtype: torch.dtype) -> torch.Tensor:
    """Each model's sum with noise from its own source, by the core's own release."""
    rows = []
    for total, lane in zip(sums, lanes, strict=True):
        sizes = np.bincount(lane.owners, minlength=len(terms.sampling_rates))
        room = Room.of(terms, sizes, dtype)
        bounded = BoundedSum(room.leave(total), terms.clipping_thresholds)
        rows.append(release(bounded, terms.noise_scale, lane.streams.noise))
    return torch.stack(rows)


def _update(stack: Stack, noisy: torch.Tensor, step_size: float) -> None:
    """Move every parameter against its noisy sum."""
    start = 0
    for parameter in stack.parameters:
        end = start + parameter[0].numel()
        parameter.sub_((step_size * noisy[:, start:end]).view_as(parameter).to(parameter.dtype))
        start = end
