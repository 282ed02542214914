"""What stands in for modules during a recorded forward pass, and only then.

A layer's call is recorded; some modules without a rule of their own run in a way that suits the engine better. All of
it is done by giving modules another ``forward`` inside one ``with`` block. Unlike a hook this sees a layer's own
output, before any hook of the user's has changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import nn, overrides
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules import pooling
from inosgd.gradients.rules.chain import Chain, ChainRun
from inosgd.gradients.rules.chain_kernel import kernel_run
from inosgd.gradients.rules.recorder import Recorder, Watching
from inosgd.gradients.rules.recurrent import packed_call
from inosgd.gradients.rules.rule import Gradients, LayerCall, Rule, examples_first, gradients_of, keeps_output, noted

T = TypeVar("T")
Forward = Callable[..., Any]
StandIn = Callable[[Recorder, Forward], Forward]
"""From the pass's recorder and the module's own ``forward`` to what is called in its place."""


@contextmanager
def standing_in(stand_ins: Sequence[tuple[nn.Module, StandIn]], recorder: Recorder) -> Iterator[None]:
    """Let each module be called by its stand-in, inside this block only."""
    before = [(module, vars(module).get("forward")) for module, _ in stand_ins]
    try:
        for module, stand_in in stand_ins:
            vars(module)["forward"] = stand_in(recorder, module.forward)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = forward


def recorded_layer(path: str, module: nn.Module, rule: Rule) -> StandIn:
    """The layer itself, with its call recorded."""
    return partial(_recorded_layer, path, module, rule)


def _recorded_layer(path: str, module: nn.Module, rule: Rule, recorder: Recorder, forward: Forward) -> Forward:
    def call(*arguments: Any, **keywords: Any) -> Any:
        if recorder.watch is None or recorder.in_layer or recorder.quiet:
            output = forward(*arguments, **keywords)
        elif _carried(recorder.watch, arguments, keywords):
            return forward(*arguments, **keywords)  # whose functions are recorded
        else:
            with recorder.layer():
                output = forward(*arguments, **keywords)
            if _constant(recorder, path, arguments, keywords, output):
                return forward(*arguments, **keywords)
        if not isinstance(output, torch.Tensor):
            raise InvalidArgumentError(
                f"module {path!r} ({type(module).__name__}) has a rule and returns {type(output).__name__}; return one "
                "tensor, or register no rule for it"
            )
        return noted_call(output, arguments, keywords)

    @_unwatched
    def noted_call(output: torch.Tensor, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> torch.Tensor:
        kept = [leaf for leaf in (*arguments, *keywords.values()) if isinstance(leaf, torch.Tensor)]
        if not output.requires_grad:
            if recorder.watch is not None and (recorder.quiet or any(map(recorder.watch.is_of_batch, kept))):
                recorder.watch.follow([output])
            return output
        if recorder.is_shared(output):
            recorder.folds.append((path, 0))
            output, arguments, keywords = recorder.per_example((output, arguments, keywords))
        flipped, own = recorder.flipped(output, path), tuple(module._parameters.values())
        places = recorder.places(output, path, int(flipped))
        shown, note = output.detach() if keeps_output(rule) else None, noted(rule, output)

        def parts(gradient: torch.Tensor) -> Gradients:
            _check_own(path, own, module)
            call = LayerCall(module, arguments, keywords, shown, gradient, note, places)
            return gradients_of(rule, examples_first(call) if flipped else call)

        recorder.add([output], parts, kept, path, example_dim=int(flipped), by_example=True)
        return output

    return call


def _unwatched(function: Callable[..., T]) -> Callable[..., T]:
    """The same function, whose own questions about tensors are not shown to the watch: they are most of all calls."""

    @wraps(function)
    def call(*arguments: Any) -> T:
        with torch._C.DisableTorchFunction():
            return function(*arguments)

    return call


def _check_own(path: str, used: Sequence[Any], module: nn.Module) -> None:
    """Refuse a call that was made with other parameters than the module has, as ``functional_call`` makes it."""
    own = module._parameters.values()
    if len(used) != len(own) or any(one is not other for one, other in zip(used, own, strict=True)):
        raise InvalidArgumentError(
            f"module {path!r} ({type(module).__name__}): it was called with other parameters than its own, whose "
            "gradients its rule does not know; call the function of the layer (torch.nn.functional) with them"
        )


@_unwatched
def _carried(watch: Watching, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a layer is given parameters, or what was computed from them alone."""
    given = (*arguments, *keywords.values())
    return any(isinstance(leaf, torch.Tensor) and watch.carried(leaf) is not None for leaf in given)


@_unwatched
def _constant(
    recorder: Recorder, path: str, arguments: Sequence[Any], keywords: Mapping[str, Any], output: Any
) -> bool:
    """Whether the examples have no part in what a layer is given, and its output has no rows of theirs.

    A layer that had none in one batch has none in another, whatever its shape is there.
    """
    watch, given = recorder.watch, (*arguments, *keywords.values())
    constants = recorder.reading.constants
    if watch is None or not isinstance(output, torch.Tensor) or (recorder.is_shared(output) and not constants):
        return False
    if any(isinstance(leaf, torch.Tensor) and watch.is_of_batch(leaf) for leaf in given):
        return False
    if constants or output.dim() == 0 or len(output) % recorder.count:
        recorder.constant.add(path)
    return path in recorder.constant


def surveyed(index: int, called: set[int], loud: set[int]) -> StandIn:
    """A module that notes whether the watch had anything to do inside, or anything leaves without a gradient."""

    def stand_in(recorder: Recorder, forward: Forward) -> Forward:
        def call(*arguments: Any, **keywords: Any) -> Any:
            before = recorder.watch.events if recorder.watch is not None else 0
            output = forward(*arguments, **keywords)
            called.add(index)
            found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
            if (
                recorder.watch is None
                or recorder.watch.events > before
                or not all(leaf.requires_grad for leaf in found)
            ):
                loud.add(index)
            return output

        return call

    return stand_in


def quiet_module(recorder: Recorder, forward: Forward) -> Forward:
    """A module inside which nothing is watched, which saves a call of Python for every function of torch.

    A parameter that it uses past its layers all the same is found by `inosgd.gradients.coverage`. What leaves without a
    gradient counts as of the batch, which is exact or refused, whatever it is.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        mode: Any = overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        if recorder.watch is None or mode is not recorder.watch:
            return forward(*arguments, **keywords)
        with overrides._pop_mode_temporarily(), recorder.unwatched():
            output = forward(*arguments, **keywords)
        leaves = pytree.tree_leaves(output)
        recorder.watch.follow([leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.requires_grad])
        return output

    return call


def recurrent_layer(module: nn.RNNBase) -> StandIn:
    """The layer itself, whose functions are recorded elsewhere, with packed sequences padded."""

    def stand_in(recorder: Recorder, forward: Forward) -> Forward:
        def call(inputs: Any, *states: Any, **keywords: Any) -> Any:
            if isinstance(inputs, PackedSequence):
                return packed_call(recorder, forward, module.batch_first, inputs, *states, **keywords)
            return forward(inputs, *states, **keywords)

        return call

    return stand_in


def quicker(module: nn.Module, path: str) -> StandIn | None:
    """A faster way to run a module that has no parameters of its own, if there is one."""
    make = _QUICKER.get(type(module))
    return None if make is None or "forward" in vars(module) else make(module, path)


def _chain(module: nn.Sequential, path: str) -> StandIn | None:
    chain = Chain.of(module, path)
    return None if chain is None else partial(_chained, chain, module)


def _chained(chain: Chain, module: nn.Sequential, recorder: Recorder, forward: Forward) -> Forward:
    def call(inputs: Any) -> Any:
        suits = chain.suits(inputs) and chain.has_parameters_of(module)
        watch = None if recorder.quiet else recorder.watch
        if suits and not (watch and _carried(watch, [inputs], {})):
            if recorder.reading.constants and watch and not watch.is_of_batch(inputs):
                return forward(inputs)
            if recorder.is_shared(inputs):
                recorder.folds.append((chain.where, 0))
                inputs = recorder.per_example(inputs)
            with nullcontext() if recorder.watch is None else recorder.layer():
                run = kernel_run(chain.layers, inputs) or ChainRun(chain.layers, inputs)
                return chain.recorded(recorder, inputs, run)
        return forward(inputs)

    return call


def _pooling(module: nn.MaxPool2d, _: Recorder, forward: Forward) -> Forward:
    def call(inputs: Any) -> Any:
        return pooling.pooled(module, inputs) if pooling.suits(module, inputs) else forward(inputs)

    return call


_QUICKER: dict[type[nn.Module], Callable[[Any, str], StandIn | None]] = {
    nn.MaxPool2d: lambda module, _: partial(_pooling, module),
    nn.Sequential: _chain,
}
