"""One pass over a batch with a book kept: losses, and every parameter's per-example gradients in compact form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import _VF, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from inosgd.gradients.calls import quiet_module, standing_in, surveyed
from inosgd.gradients.engine import Examples, check_losses, count_examples, tensors_of, with_tensors
from inosgd.gradients.inplace import out_of_place
from inosgd.gradients.page import Page
from inosgd.gradients.rules.arguments import tensors_in
from inosgd.gradients.rules.chain import ChainGradients, FoldedChain
from inosgd.gradients.rules.chain_kernel import KernelGradients
from inosgd.gradients.rules.forms import Bounds, Form, Summed, bounds_of_all, by_parameter
from inosgd.gradients.rules.functions import RECORDED
from inosgd.gradients.rules.linear import by_columns
from inosgd.gradients.rules.recorder import Record, Recorder, Rehearsal
from inosgd.gradients.rules.recurrent import note_packing
from inosgd.gradients.rules.rule import Gradients
from inosgd.gradients.rules.watch import Watch
from inosgd.gradients.seen import check_shapes, check_uses
from inosgd.gradients.task import Task
from inosgd.gradients.written import unwritten
from inosgd.rounding import CANCELLATION

Use = tuple[tuple[nn.Parameter, ...], Form]
"""Parameters, and the gradients that one use of them has."""

_UNDERFLOW = 1e-150
"""What may be left of a norm whose square is below the smallest float64."""


def record_pass(task: Task, examples: Examples, rows: int = 0) -> Page:
    """One forward and one backward pass over a batch, padded to ``rows``."""
    count = count_examples(examples)
    if count == 0:
        nothing = next(iter(task.parameters.values())).new_zeros(0)
        return Page(tuple(task.parameters.values()), nothing, {}, np.zeros(0), np.zeros(0), 0)
    if rows > count:
        examples = take(examples, torch.arange(rows, device="cpu").clamp_max(count - 1))
    recorder = task.recorder(max(rows, count))
    losses = forward(task, examples, recorder)
    if task.seen is not None:
        if not task.seen.anything:
            check_uses(task.seen, losses, recorder, task.parameters)
        check_shapes(task.seen, examples, recorder)
    return read_page(task, losses, recorder, count)


def take(examples: Examples, rows: torch.Tensor) -> Examples:
    """Some examples of a batch."""
    return with_tensors(lambda leaf: leaf[rows.to(leaf.device)], examples)


def forward(task: Task, examples: Examples, recorder: Recorder) -> torch.Tensor:
    """The losses of a batch, with everything noted that the gradients need."""
    functions = _functions(task, examples, recorder)
    quiet = [(task.modules[index], quiet_module) for index in task.quiet] if recorder.watch is not None else []
    columns = _LinearByColumns(recorder) if task.by_columns else nullcontext()
    with (
        torch.enable_grad(),
        unwritten(task.model, task.tables),
        out_of_place(task.inplace),
        standing_in((*task.stand_ins, *quiet), recorder),
        columns,
        functions,
    ):
        losses = _losses_of(task, examples, recorder)
    for record in recorder.records:
        record.check_unchanged()
    return losses


def quiet_modules(task: Task, examples: Examples) -> frozenset[int]:
    """The outermost modules inside which no function of a parameter has to be seen, by a pass that watches all of them.

    Only modules with others inside are worth it, and only those that return nothing without a gradient.
    """
    called: set[int] = set()
    loud: set[int] = set()
    places = {module: index for index, module in enumerate(task.modules)}
    survey = [(module, surveyed(index, called, loud)) for module, index in places.items() if module._modules]
    recorder = task.recorder(count_examples(examples))
    forward(replace(task, stand_ins=(*task.stand_ins, *survey), seen=None, quiet=frozenset()), examples, recorder)
    found: set[int] = set()
    waiting = [task.model]
    while waiting:
        module = waiting.pop()
        if places[module] in called - loud:
            found.add(places[module])
        else:
            waiting += [child for child in module._modules.values() if child is not None]
    return frozenset(found)


def _functions(task: Task, examples: Examples, recorder: Recorder) -> AbstractContextManager[Any]:
    """What sees the functions that a pass calls, if it has to see any."""
    if task.watched or task.seen is None or task.seen.functions:
        names = {id(parameter): name for name, parameter in task.parameters.items()}
        recorder.watch = watch = Watch(recorder, names, tensors_of(examples))
        recorder.constant = task.seen.constant if task.seen is not None else set()
        return watch
    return _RecordedFunctions(recorder) if task.functions else nullcontext()


def _losses_of(task: Task, examples: Examples, recorder: Recorder) -> torch.Tensor:
    try:
        return check_losses(task.losses(task.model, examples), recorder.count)
    except Exception as error:
        shared = sorted({path for path, places in recorder.folds if places == 0})
        if shared:
            error.add_note(
                f"Inside inosgd: outputs of shape (1, ...) of modules {shared} were taken for "
                f"one row that all {recorder.count} examples share. If dimension 0 counts something else, let it count "
                "the examples, or use ReferenceEngine."
            )
        raise


def read_page(task: Task, losses: torch.Tensor, recorder: Recorder, count: int) -> Page:
    """The backward pass, and the rules of all records; the first ``count`` losses are of examples."""
    records = recorder.records
    again = recorder.watch is not None or task.functions
    rehearsal = Rehearsal(recorder.count, task.functions, task.reading, task.turned)
    with _functions(task, (), rehearsal) if again else nullcontext():
        gradients = _output_gradients(losses, records)
    with torch.no_grad(), out_of_place(task.inplace):  # rules may call modules again
        forms = _forms(records, gradients, len(losses))
        found = bounds_of_all(forms.values()) if forms else _no_bounds(losses)
        norms = magnitudes = np.sqrt(found.norms.cpu().numpy())
        if found.magnitudes is not found.norms:
            magnitudes = np.sqrt(found.magnitudes.cpu().numpy())
            norms = np.maximum(norms, magnitudes / CANCELLATION)
        norms = norms + _UNDERFLOW
        parameters, folds = tuple(task.parameters.values()), tuple(recorder.folds)
        functions = recorder.watch is not None and recorder.watch.used
        seen = folds, recorder.calls, functions, recorder.constant
        return Page(parameters, losses.detach(), forms, norms, magnitudes, count, *seen)


def _no_bounds(losses: torch.Tensor) -> Bounds:
    nothing = torch.zeros_like(losses, dtype=torch.float64)
    return Bounds(nothing, nothing)


def flatten(parts: Sequence[torch.Tensor | None], parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """The parts side by side, in float64; None stands for a parameter that nothing depends on."""
    pairs = zip(parts, parameters, strict=True)
    flat = [like.new_zeros(like.numel()) if part is None else part.reshape(-1) for part, like in pairs]
    return torch.cat([each.double() for each in flat])


class _RecordedFunctions(TorchFunctionMode):
    """Replaces the library's recurrent and attention functions by recorded ones, for trainable parameters."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorded = RECORDED.get(func)
        if recorded is not None and any(map(self._recorder.records_functions_of, tensors_in(args, kwargs or {}))):
            return recorded(self._recorder, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if func is _VF._pack_padded_sequence:
            note_packing(self._recorder, args, result)
        return result


class _LinearByColumns(TorchFunctionMode):
    """Computes the linear maps of parameters by `by_columns`, which gives no gradients to their weights."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        columns = func is functional.linear and not self._recorder.carrying
        if columns and not kwargs and isinstance(args[1], nn.Parameter):
            return by_columns(*args)
        return func(*args, **(kwargs or {}))


def _output_gradients(losses: torch.Tensor, records: Sequence[Record]) -> list[torch.Tensor | None]:
    """The gradient of the summed losses with respect to every recorded output: the only backward pass."""
    edges = [output.edge for record in records for output in record.outputs]
    wanted = [edge for edge in edges if edge is not None]
    if not wanted or not losses.requires_grad:
        return [None] * len(edges)
    # What autograd.grad calls: it would leave the modes that are active, which see what checkpoints compute again.
    found = iter(
        _engine_run_backward(
            (losses,), (torch.ones_like(losses),), False, False, tuple(wanted), True, accumulate_grad=False
        )
    )
    return [None if edge is None else next(found) for edge in edges]


def _forms(records: Sequence[Record], gradients: list[torch.Tensor | None], count: int) -> Gradients:
    """Every record's gradients; uses of the same parameters are summed. Empties ``gradients`` on the way."""
    found: list[Use] = []
    for record in reversed(records):
        arrived = [gradients.pop() for _ in record.outputs][::-1]
        found += record.gradients(arrived).items()
    if not _overlap(key for key, _ in found):
        return dict(found)
    uses = _grouped(_each_map_alone(found))
    if _overlap(uses):
        uses = _grouped(_each_parameter_alone(uses))
    return {key: forms[0] if len(forms) == 1 else Summed(tuple(forms), count) for key, forms in uses.items()}


def _grouped(found: Iterable[Use]) -> dict[tuple[nn.Parameter, ...], list[Form]]:
    """The uses of the same parameters together."""
    uses: dict[tuple[nn.Parameter, ...], list[Form]] = {}
    for parameters, form in found:
        uses.setdefault(parameters, []).append(form)
    return uses


def _overlap(keys: Iterable[tuple[nn.Parameter, ...]]) -> bool:
    """Whether a parameter comes more than once, alone or together with others."""
    found = [id(parameter) for key in keys for parameter in key]
    return len(found) != len(set(found))


def _each_map_alone(found: Iterable[Use]) -> Iterator[Use]:
    """The same with chains taken apart, because some of their layers were also called by themselves."""
    for parameters, form in found:
        if not isinstance(form, ChainGradients | KernelGradients | FoldedChain):
            yield parameters, form
            continue
        rest = iter(parameters)
        for single in form.apart():
            yield tuple(next(rest) for _ in range(1 + single.biases)), single


def _each_parameter_alone(uses: Mapping[tuple[nn.Parameter, ...], Sequence[Form]]) -> Iterator[Use]:
    """The same with parameters by themselves that are in several groups: a weight that two layers share, say."""
    groups = Counter(id(parameter) for key in uses for parameter in key)
    for key, forms in uses.items():
        for form in forms:
            if len(key) == 1 or all(groups[id(parameter)] == 1 for parameter in key):
                yield key, form
            else:
                yield from zip([(parameter,) for parameter in key], by_parameter(form), strict=True)
