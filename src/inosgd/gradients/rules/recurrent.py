"""RNN, GRU and LSTM as ``torch.nn`` has them: layers, directions, dropout between layers, with bias or without.

The fused kernels keep their gate gradients to themselves, so the recurrences are written out here. With x_t the
input and h_t the hidden state, every cell computes its gates from two affine maps,

    W_ih x_t + b_ih    and    W_hh h_{t-1} + b_hh,

and the weights' gradients are sums over time of outer products of those maps' output gradients with x_t and
h_{t-1}. For RNN and LSTM only the sum of the two maps is used, so that they share their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import _VF, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import affine
from inosgd.gradients.rules.linear import map_gradients
from inosgd.gradients.rules.recorder import Recorder
from inosgd.gradients.rules.rule import Gradients

State = tuple[torch.Tensor, ...]
"""The hidden state, and for an LSTM its memory."""

Step = Callable[[torch.Tensor, torch.Tensor, State], State]
"""(input map, hidden map, state) -> state."""


def _tanh_step(x: torch.Tensor, h: torch.Tensor, _: State) -> State:
    return (torch.tanh(x + h),)


def _relu_step(x: torch.Tensor, h: torch.Tensor, _: State) -> State:
    return (torch.relu(x + h),)


def _gru_step(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    (x_reset, x_update, x_new), (h_reset, h_update, h_new) = x.chunk(3, 1), h.chunk(3, 1)
    reset, update = torch.sigmoid(x_reset + h_reset), torch.sigmoid(x_update + h_update)
    new = torch.tanh(x_new + reset * h_new)
    return (new + update * (state[0] - new),)


def _lstm_step(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    write, forget, new, read = (x + h).chunk(4, 1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(write) * torch.tanh(new)
    return torch.sigmoid(read) * torch.tanh(memory), memory


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes:
        step: One step in time.
        shared: Whether only the sum of input and hidden map is used, so that both have the same gradient.
        loop: A faster way through all steps of a cell without projection, if there is one.
    """

    step: Step
    shared: bool
    loop: Callable[..., tuple[torch.Tensor, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """The parameters of one layer in one direction; ``project`` maps an LSTM's hidden state to a smaller one."""

    ih: nn.Parameter
    hh: nn.Parameter
    b_ih: nn.Parameter | None
    b_hh: nn.Parameter | None
    project: nn.Parameter | None

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], biased: bool) -> Weights:
        """Two weights, then two biases if there are any, then the projection if there is one."""
        b_ih, b_hh = parameters[2:4] if biased else (None, None)
        rest = parameters[4:] if biased else parameters[2:]
        return cls(parameters[0], parameters[1], b_ih, b_hh, rest[0] if rest else None)


class _LstmLoop(torch.autograd.Function):
    """All steps of an LSTM in time: (input map, W_hh, h_0, c_0) -> (h_1 .. h_T, c_T, h_0 .. h_{T-1}).

    With i, f, g, o the gates and c_t = f c_{t-1} + i g, h_t = o tanh(c_t), the backward pass is

        dc_t += dh_t o (1 - tanh^2 c_t),    dz_t = (dc g i', dc c_{t-1} f', dc i g', dh tanh(c_t) o'),
        dh_{t-1} += dz_t W_hh,              dc_{t-1} = dc_t f,

    where i' and its like are derivatives of the gates and z_t is what goes into them. It has no gradient for W_hh,
    which the layer's rule takes from the dz_t and the states before them; these are not differentiable, and lie in
    the memory of the others.
    """

    @staticmethod
    def forward(
        ctx: Any, input_map: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        times, count, width = len(input_map), *hidden.shape
        gates = input_map.data  # nothing else reads the map: the gates take its place in memory
        states, memories, tanhs = (hidden.new_empty(times + extra, count, width) for extra in (1, 1, 0))
        states[0], memories[0] = hidden, memory
        transposed = weight.mT
        for time in range(times):
            z = gates[time].addmm_(states[time], transposed)
            z[:, : 2 * width].sigmoid_()
            z[:, 2 * width : 3 * width].tanh_()
            z[:, 3 * width :].sigmoid_()
            write, forget, new, read = z.chunk(4, 1)
            now = torch.mul(forget, memories[time], out=memories[time + 1]).addcmul_(write, new)
            torch.mul(read, torch.tanh(now, out=tanhs[time]), out=states[time + 1])
        ctx.save_for_backward(gates, memories, tanhs, weight)
        before = states[:-1]
        ctx.mark_non_differentiable(before)
        ctx.set_materialize_grads(False)
        return states[1:], memories[times].clone(), before

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # this will be differentiated again
            raise InvalidArgumentError(
                "the gradient of an LSTM's output is differentiated again, which is not recorded; use ReferenceEngine"
            )
        gates, memories, tanhs, weight = ctx.saved_tensors
        of_states, of_memory, _ = gradients
        of_gates, raw = torch.empty_like(gates), torch.empty_like(gates[0])
        width = tanhs.shape[2]
        sigmoid_backward, tanh_backward = (
            torch.ops.aten.sigmoid_backward.grad_input,
            torch.ops.aten.tanh_backward.grad_input,
        )
        inner, outer = slice(0, 2 * width), slice(3 * width, None)
        middle = slice(2 * width, 3 * width)
        of_states = torch.zeros_like(tanhs) if of_states is None else of_states
        of_hidden = of_states[-1]
        of_memory = torch.zeros_like(of_hidden) if of_memory is None else of_memory.clone()
        product = torch.empty_like(of_memory)
        for time in range(len(gates) - 1, -1, -1):
            z, target = gates[time], of_gates[time]
            write, forget, new, read = z.chunk(4, 1)
            torch.mul(of_hidden, read, out=product)
            of_memory += tanh_backward(product, tanhs[time], grad_input=product)
            torch.mul(of_memory, new, out=raw[:, :width])
            torch.mul(of_memory, memories[time], out=raw[:, width : 2 * width])
            torch.mul(of_memory, write, out=raw[:, middle])
            torch.mul(of_hidden, tanhs[time], out=raw[:, outer])
            sigmoid_backward(raw[:, inner], z[:, inner], grad_input=target[:, inner])
            tanh_backward(raw[:, middle], new, grad_input=target[:, middle])
            sigmoid_backward(raw[:, outer], read, grad_input=target[:, outer])
            of_memory *= forget
            of_hidden = torch.addmm(of_states[time - 1], target, weight) if time else target @ weight
        return of_gates, None, of_hidden, of_memory


CELLS: dict[Any, Cell] = {
    _VF.rnn_tanh: Cell(_tanh_step, shared=True),
    _VF.rnn_relu: Cell(_relu_step, shared=True),
    _VF.gru: Cell(_gru_step, shared=False),
    _VF.lstm: Cell(_lstm_step, shared=True, loop=_LstmLoop.apply),
}


def recorded_recurrence(
    cell: Cell, recorder: Recorder, arguments: Sequence[Any], _: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """What the fused function would return, with every use of a weight recorded.

    Args:
        cell: The kind of cell.
        recorder: Where to record.
        arguments: Those of the fused function (``torch.lstm`` and its like).
    """
    if not isinstance(arguments[3], bool):
        raise InvalidArgumentError(
            f"module {recorder.where(arguments[3][0])!r}: the library's function was called on packed data, which has "
            "no dimension of examples; call the nn.LSTM, nn.GRU or nn.RNN itself"
        )
    inputs, initial, flat, biased, layers, dropout, training, bidirectional, batch_first = arguments
    states = initial if isinstance(initial, tuple) else (initial,)
    hidden = inputs.transpose(0, 1) if batch_first else inputs
    present = _present(recorder, hidden)
    directions = 2 if bidirectional else 1
    size = len(flat) // (layers * directions)
    finals = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = Weights.of(flat[index * size : (index + 1) * size], biased)
            start = tuple(state[index] for state in states)
            seen, mask = (_flipped(hidden), _flipped(present)) if direction else (hidden, present)
            output, final = _run(recorder, cell, weights, seen, mask, start)
            outputs.append(output.flip(0) if direction else output)
            finals.append(final)
        hidden = torch.cat(outputs, 2) if bidirectional else outputs[0]
        if dropout and training and layer < layers - 1:
            hidden = functional.dropout(hidden, dropout)
    result = hidden.transpose(0, 1) if batch_first else hidden
    return (result, *[torch.stack(parts) for parts in zip(*finals, strict=True)])


def note_packing(recorder: Recorder, arguments: Sequence[Any], result: Any) -> None:
    """Note how long the sequences were that ``torch._pack_padded_sequence`` has packed."""
    inputs, _, batch_first = arguments
    recorder.padded[id(result[1])] = result[1], inputs.shape[1 if batch_first else 0]


def packed_call(
    recorder: Recorder,
    forward: Callable[..., Any],
    batch_first: bool,
    packed: PackedSequence,
    *states: Any,
    **keywords: Any,
) -> Any:
    """A recurrent layer on a packed sequence: padded, passed with the lengths noted, and packed again.

    After its own end a sequence keeps its state, so that padding has no part in any output, state or gradient. All are
    padded to the length from which they were packed: to that of the longest, others would be rounded as it wants.
    """
    _, places = recorder.padded.get(id(packed.batch_sizes), (None, None))
    padded, lengths = pad_packed_sequence(packed, batch_first=batch_first, total_length=places)
    recorder.lengths = lengths
    try:
        output, final = forward(padded, *states, **keywords)
    finally:
        recorder.lengths = None
    order, examples = packed.sorted_indices, 0 if batch_first else 1
    if order is not None:
        output, lengths = output.index_select(examples, order), lengths[order.cpu()]
    data, _ = _VF._pack_padded_sequence(output, lengths, batch_first)
    return PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices), final


def _present(recorder: Recorder, inputs: torch.Tensor) -> torch.Tensor | None:
    """Which sequences have not ended, (time, examples, 1); None if all are equally long."""
    if recorder.lengths is None:
        return None
    times = torch.arange(len(inputs), device=inputs.device)
    return (times.unsqueeze(1) < recorder.lengths.to(inputs.device)).unsqueeze(2)


def _flipped(values: Any) -> Any:
    """The same, back from the last time to the first: sequences that end early begin late."""
    return None if values is None else values.flip(0)


def _run(
    recorder: Recorder,
    cell: Cell,
    weights: Weights,
    inputs: torch.Tensor,
    present: torch.Tensor | None,
    state: State,
) -> tuple[torch.Tensor, State]:
    """One layer in one direction over (time, examples, features): its outputs and its last state."""
    joined = cell.shared and weights.b_ih is not None and weights.b_hh is not None
    bias = weights.b_ih + weights.b_hh if joined else weights.b_ih  # type: ignore[operator]
    inputs = inputs.contiguous()
    input_map = functional.linear(inputs, weights.ih, bias)
    if cell.shared and weights.hh.requires_grad and not input_map.requires_grad:
        input_map.requires_grad_()  # W_hh takes its gradient from the map's, whatever is frozen
    offset = None if cell.shared else _offset(weights, input_map)
    if cell.loop is not None and weights.project is None and present is None:
        hidden, *rest, before = cell.loop(input_map, weights.hh.detach(), *state)
        final = (hidden[-1], *rest)
    else:
        hidden, before, final = _loop(recorder, cell.step, weights, input_map, offset, present, state)
    if offset is None:
        _record_shared(recorder, weights, inputs, before, input_map)
    else:
        _record_apart(recorder, weights, inputs, before, input_map, offset)
    return hidden, final


def _loop(
    recorder: Recorder,
    step: Step,
    weights: Weights,
    input_map: torch.Tensor,
    offset: torch.Tensor | None,
    present: torch.Tensor | None,
    state: State,
) -> tuple[torch.Tensor, torch.Tensor, State]:
    """Step by step: the hidden states, those before them, and the last state."""
    full, projected, hidden = [], [], [state[0]]
    for time, x in enumerate(input_map.unbind(0)):
        hidden_map = state[0] @ weights.hh.detach().mT  # its gradient comes from the record
        new = step(x, hidden_map if offset is None else hidden_map + offset[time], state)
        if weights.project is not None:
            full.append(new[0])
            projected.append(functional.linear(new[0], weights.project))
            new = (projected[-1], *new[1:])
        state = new if present is None else _kept_after_the_end(new, state, present[time])
        hidden.append(state[0])
    if weights.project is not None:
        _record_projection(recorder, weights.project, full, projected)
    states = torch.stack(hidden)
    return states[1:], states[:-1].detach(), state


def _kept_after_the_end(new: State, old: State, present: torch.Tensor) -> State:
    return tuple(torch.where(present, *both) for both in zip(new, old, strict=True))


def _offset(weights: Weights, input_map: torch.Tensor) -> torch.Tensor:
    """b_hh at every time and example: a tensor of its own, so that the hidden map's gradients arrive at it."""
    bias = input_map.new_zeros(1) if weights.b_hh is None else weights.b_hh
    return torch.empty_like(input_map).copy_(bias).requires_grad_()


def _record_shared(
    recorder: Recorder, weights: Weights, inputs: torch.Tensor, before: torch.Tensor, input_map: torch.Tensor
) -> None:
    def parts(gradient: torch.Tensor) -> Gradients:
        pairs = [(weights.ih, inputs.detach()), (weights.hh, before)]
        trained = [(weight, seen.transpose(0, 1)) for weight, seen in pairs if weight.requires_grad]
        biases = [bias for bias in (weights.b_ih, weights.b_hh) if bias is not None and bias.requires_grad]
        form = affine(gradient.transpose(0, 1), [seen for _, seen in trained], len(biases))
        return {(*[weight for weight, _ in trained], *biases): form} if trained or biases else {}

    recorder.add([input_map], parts, [inputs, before], recorder.where(weights.ih), example_dim=1)


def _record_apart(
    recorder: Recorder,
    weights: Weights,
    inputs: torch.Tensor,
    before: torch.Tensor,
    input_map: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    def parts(of_input: torch.Tensor, of_hidden: torch.Tensor) -> Gradients:
        return {
            **map_gradients(weights.ih, weights.b_ih, inputs.detach().transpose(0, 1), of_input.transpose(0, 1)),
            **map_gradients(weights.hh, weights.b_hh, before.transpose(0, 1), of_hidden.transpose(0, 1)),
        }

    recorder.add([input_map, offset], parts, [inputs, before], recorder.where(weights.ih), example_dim=1)


def _record_projection(
    recorder: Recorder, weight: nn.Parameter, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> None:
    """The projection of the hidden state: a linear layer without bias, used once per time."""

    def parts(*gradients: torch.Tensor) -> Gradients:
        return {(weight,): affine(torch.stack(gradients, 1), [torch.stack(inputs, 1).detach()], 0)}

    if weight.requires_grad:
        recorder.add(outputs, parts, [], recorder.where(weight), copied=inputs)
