"""Chains of linear layers: an ``nn.Sequential`` of nothing but linear layers and activations, run as one operation.

A step of a small network costs what its calls cost: modules, nodes of the graph, recorded outputs. For a chain all
of it is known beforehand,

    a_{l+1} = f_l(W_l a_l + b_l),    d_l = (W_{l+1}^T d_{l+1}) f_l'(a_{l+1}),

so that it passes without a graph. The d_l and a_l of all layers lie in one block of memory, one feature per row and
one example per column, so that every layer's rows are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import Bounds, OuterProducts, Rows, added
from inosgd.gradients.rules.recorder import Recorder
from inosgd.gradients.rules.rule import Gradients

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


class Activation(NamedTuple):
    """An activation whose derivative follows from its output; both functions work in place.

    Attributes:
        apply: From z to f(z).
        pull: From the gradient of f(z), and f(z), to the gradient of z.
    """

    apply: Callable[[torch.Tensor], torch.Tensor]
    pull: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda gradient, output: _relu_backward(gradient, output, 0, grad_input=gradient)),
    nn.Tanh: Activation(torch.tanh_, lambda gradient, output: _tanh_backward(gradient, output, grad_input=gradient)),
    nn.Sigmoid: Activation(
        torch.sigmoid_, lambda gradient, output: _sigmoid_backward(gradient, output, grad_input=gradient)
    ),
}


class Layer(NamedTuple):
    """One linear layer of a chain, and the activation after it."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    activation: Activation | None


def parameters_of(layers: Sequence[Layer]) -> tuple[nn.Parameter, ...]:
    """Weights and biases as the model has them: the bias after its weight."""
    return tuple([parameter for layer in layers for parameter in layer[:2] if parameter is not None])


@dataclass(frozen=True, eq=False)
class Chain:
    """The layers of an ``nn.Sequential`` that can run as one operation.

    Attributes:
        layers: At least two linear layers, all of them trained.
        where: The module's path, for messages.
    """

    layers: tuple[Layer, ...]
    where: str

    @classmethod
    def of(cls, module: nn.Sequential, where: str) -> Self | None:
        """The chain that a module is, or None: with anything unusual about it, its layers are run one by one."""
        layers: list[Layer] = []
        for child in module._modules.values():
            layer = _linear_layer(child)
            if layer is not None:
                layers.append(layer)
            elif type(child) in ACTIVATIONS and layers and layers[-1].activation is None and not _has_hooks(child):
                layers[-1] = layers[-1]._replace(activation=ACTIVATIONS[type(child)])
            else:
                return None
        distinct = {id(layer.weight) for layer in layers}
        return cls(tuple(layers), where) if len(layers) == len(distinct) > 1 else None

    def suits(self, inputs: Any) -> bool:
        """Whether the chain can run on this input: one vector per example, in the precision of the weights."""
        return (
            isinstance(inputs, torch.Tensor)
            and inputs.dim() == 2
            and inputs.dtype == self.layers[0].weight.dtype
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(inputs.device.type)
        )

    def has_parameters_of(self, module: nn.Sequential) -> bool:
        """Whether the module still has the parameters of the chain: ``functional_call`` puts others in their place."""
        own = [
            p
            for child in module._modules.values()
            if child is not None
            for p in child._parameters.values()
            if p is not None
        ]
        return [*map(id, own)] == [*map(id, parameters_of(self.layers))]

    def recorded(self, recorder: Recorder, inputs: torch.Tensor, run: Run) -> torch.Tensor:
        """What the module would return, with the use of its weights recorded; computed by ``run``."""
        if inputs.requires_grad:
            output: torch.Tensor = _Passed.apply(inputs, run, self.where)  # type: ignore[no-untyped-call]
        else:
            # Not a leaf, and not the run's own memory: the model may change its output in place.
            output = run.forward(inputs).requires_grad_().clone(memory_format=torch.contiguous_format)
        recorder.add([output], run.gradients, [], self.where, copied=[inputs])
        return output


class Run(Protocol):
    """One pass through a chain, by whatever computes it."""

    layers: Sequence[Layer]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The chain's output, one row per example."""

    def pull(self, gradient: torch.Tensor) -> torch.Tensor:
        """From the gradient of the chain's output to d_1, one column per example."""

    def gradients(self, gradient: torch.Tensor) -> Gradients:
        """The per-example gradients of all layers, from the gradient of the chain's output."""


class ChainRun:
    """One pass through a chain: d_1 .. d_L and then a_1 .. a_L, as rows of one block."""

    def __init__(self, layers: Sequence[Layer], inputs: torch.Tensor) -> None:
        self.layers = layers
        shapes = [layer.weight.shape for layer in layers]
        self.widths = tuple([outputs for outputs, _ in shapes] + [inputs for _, inputs in shapes])
        self.values = inputs.new_empty(sum(self.widths), len(inputs))
        parts = self.values.split_with_sizes(self.widths)
        self.outputs, self.inputs = parts[: len(layers)], parts[len(layers) :]
        self._pulled: torch.Tensor | None = None

    @torch.no_grad()
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The chain's output, one row per example."""
        now = self.inputs[0].copy_(inputs.mT)
        for layer, target in zip(self.layers, (*self.inputs[1:], None), strict=True):
            now = torch.mm(layer.weight, now, out=target)
            if layer.bias is not None:
                now.add_(layer.bias.unsqueeze(1))
            if layer.activation is not None:
                layer.activation.apply(now)
        self._last = now
        return now.mT

    @torch.no_grad()
    def pull(self, gradient: torch.Tensor) -> torch.Tensor:
        """From the gradient of the chain's output to d_1, with all the others on the way.

        A model may differentiate its own output before the engine does; what was computed then counts for that.
        """
        if self._pulled is not None and torch.equal(self._pulled, gradient):
            return self.outputs[0]
        seen = (*self.inputs[1:], self._last)
        now = self.outputs[-1].copy_(gradient.mT)
        for index in range(len(self.layers) - 1, -1, -1):
            activation = self.layers[index].activation
            if activation is not None:
                activation.pull(now, seen[index])
            if index:
                now = torch.mm(self.layers[index].weight.mT, now, out=self.outputs[index - 1])
        self._pulled = gradient
        return now

    def gradients(self, gradient: torch.Tensor) -> Gradients:
        """The per-example gradients of all layers."""
        self.pull(gradient)
        biased = tuple(layer.bias is not None for layer in self.layers)
        return {parameters_of(self.layers): ChainGradients(self.values, self.widths, biased)}


@dataclass(frozen=True, eq=False)
class ChainGradients:
    """Gradients of a chain's weights and biases: |g|^2 = sum over layers of |d|^2 (|a|^2 + 1).

    Attributes:
        values: The d of all layers, then the a of all layers: (features, examples).
        widths: How many rows each of them has.
        biased: Which layers have a bias; it follows the layer's weight.
    """

    values: torch.Tensor
    widths: tuple[int, ...]
    biased: tuple[bool, ...]

    def bounds(self) -> Bounds:
        """By the formula above, without the 1 where there is no bias."""
        return added(layer.bounds() for layer in self.apart())

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """Layer by layer."""
        return [part for layer in self.apart() for part in layer.weighted_sum(coefficients, single=single)]

    def materialise(self) -> Sequence[torch.Tensor]:
        """Layer by layer."""
        return [part for layer in self.apart() for part in layer.materialise()]

    def apart(self) -> list[OuterProducts]:
        """The layers as forms of their own."""
        parts, count = [part.mT for part in self._parts()], len(self.biased)
        layers = zip(parts[:count], parts[count:], self.biased, strict=True)
        return [OuterProducts(outputs, (inputs,), int(biased)) for outputs, inputs, biased in layers]

    def select(self, rows: Rows) -> ChainGradients:
        """The columns of some examples."""
        return ChainGradients(self.values[:, rows], self.widths, self.biased)

    def folded_bounds(self, places: int) -> Bounds:
        """The bounds of examples that are so many rows each."""
        return added(layer.with_rows_together(places).bounds() for layer in self.apart())

    def folded(self, places: int) -> FoldedChain:
        """See `inosgd.gradients.rules.forms.folded`."""
        return FoldedChain(self, places)

    def _parts(self) -> Sequence[torch.Tensor]:
        return self.values.split_with_sizes(self.widths)


class GradientsOfRows(Protocol):
    """What a run leaves: the gradients of a chain with respect to every row that passed."""

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """See `inosgd.gradients.rules.forms.Form`, like the others."""

    def folded_bounds(self, places: int) -> Bounds:
        """The bounds of examples that are so many rows each."""

    def select(self, rows: Rows) -> ChainGradients:
        """The columns of some rows."""

    def apart(self) -> list[OuterProducts]:
        """The layers as forms of their own."""


@dataclass(frozen=True, eq=False)
class FoldedChain:
    """Gradients of a chain for examples that are ``places`` consecutive rows each."""

    rows: GradientsOfRows
    places: int

    def bounds(self) -> Bounds:
        """By the Gram matrices of every example's rows."""
        return self.rows.folded_bounds(self.places)

    def weighted_sum(self, coefficients: torch.Tensor, *, single: bool) -> Sequence[torch.Tensor]:
        """All rows of an example have its coefficient."""
        return self.rows.weighted_sum(coefficients.repeat_interleave(self.places), single=single)

    def materialise(self) -> Sequence[torch.Tensor]:
        """Layer by layer."""
        return [part for layer in self.apart() for part in layer.materialise()]

    def apart(self) -> list[OuterProducts]:
        """The layers as forms of their own."""
        return [layer.with_rows_together(self.places) for layer in self.rows.apart()]

    def select(self, rows: Rows) -> FoldedChain:
        """The rows of some examples."""
        places = torch.arange(len(self.rows.apart()[0].outputs)).view(-1, self.places)
        return FoldedChain(self.rows.select(places[rows].flatten()), self.places)


class _Passed(torch.autograd.Function):
    """A chain in the middle of a graph, which has gradients for its input but leaves weights to the recorder."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, run: Run, where: str) -> torch.Tensor:
        ctx.run, ctx.where = run, where
        return run.forward(inputs).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if torch.is_grad_enabled():  # this will be differentiated again, and weights do not remember it
            raise InvalidArgumentError(
                f"module {ctx.where!r}: the gradient of its output is differentiated again, which is not recorded for "
                "chains of linear layers; use ReferenceEngine"
            )
        first = ctx.run.pull(gradients[0])
        return (ctx.run.layers[0].weight.mT @ first).mT, None, None


def _linear_layer(module: nn.Module) -> Layer | None:
    """A linear layer that is trained and has nothing attached to it."""
    if type(module) is not nn.Linear or _has_hooks(module):
        return None
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    trained = weight is not None and weight.requires_grad and (bias is None or bias.requires_grad)
    return Layer(weight, bias, None) if trained else None  # type: ignore[arg-type]


def _has_hooks(module: nn.Module) -> bool:
    own = vars(module)
    forward, backward = own["_forward_hooks"] or own["_forward_pre_hooks"], own["_backward_hooks"]
    return bool(forward or backward or own["_backward_pre_hooks"]) or "forward" in own
