"""One pass over a batch with a book kept: losses, and every parameter's per-example gradients in compact form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import _VF, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.errors import InvalidArgumentError
from inosgd.gradients.allocator import new_doubles
from inosgd.gradients.calls import (
    StandIn,
    quicker,
    quiet_module,
    recorded_layer,
    recurrent_layer,
    standing_in,
    surveyed,
)
from inosgd.gradients.coverage import uncovered
from inosgd.gradients.engine import (
    ExampleLosses,
    Examples,
    Measured,
    check_losses,
    count_examples,
    tensors_of,
    trainable_parameters,
    with_tensors,
)
from inosgd.gradients.inplace import can_run_out_of_place, out_of_place, overwrites
from inosgd.gradients.rules.arguments import tensors_in
from inosgd.gradients.rules.chain import ChainGradients, FoldedChain
from inosgd.gradients.rules.chain_kernel import KernelGradients
from inosgd.gradients.rules.forms import Bounds, Dense, Form, Summed, bounds_of_all, by_parameter
from inosgd.gradients.rules.functions import RECORDED
from inosgd.gradients.rules.linear import by_columns
from inosgd.gradients.rules.recorder import READINGS, Reading, Record, Recorder, Rehearsal
from inosgd.gradients.rules.recurrent import note_packing
from inosgd.gradients.rules.rule import Gradients, rule_for
from inosgd.gradients.rules.sums import held_sums
from inosgd.gradients.rules.watch import Watch
from inosgd.gradients.written import Table, tables_of, unwritten
from inosgd.rounding import CANCELLATION, ROUNDOFFS

Folds = tuple[tuple[str, int], ...]
"""See `Recorder.folds`."""

Use = tuple[tuple[nn.Parameter, ...], Form]
"""Parameters, and the gradients that one use of them has."""


@dataclass
class Seen:
    """What batches had whose values were checked, or had too few finite losses to tell, and others may have.

    Attributes:
        folds: Which outputs had another number of rows than one per example, where values could be checked.
        calls: See `Recorder`.
        functions: Whether parameters were used outside of layers with rules.
        constant: See `Recorder`.
        quiet: Which of the task's modules nothing is watched in.
        anything: Whether batches may have anything else too, because their numbers are used for nothing.
        shapes: For the shapes of examples, those that they have in recorded outputs; see `Recorder`.
    """

    folds: set[Folds] = field(default_factory=set)
    calls: set[tuple[str, int]] = field(default_factory=set)
    functions: bool = False
    constant: set[str] = field(default_factory=set)
    quiet: frozenset[int] = frozenset()
    anything: bool = False
    shapes: dict[tuple[torch.Size, ...], dict[str, set[tuple[int, ...]]]] = field(default_factory=dict)

    @property
    def turned(self) -> Set[str] | None:
        """See `Recorder`."""
        return {path for folds in self.folds for path, places in folds if places < 0} if self.folds else None


_SMALL_ERROR = 2.0**-16
"""From which error of a sum on what underflows is nothing beside it."""

_UNDERFLOW = 1e-150
"""What may be left of a norm whose square is below the smallest float64."""


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its losses, and how its calls are recorded.

    Attributes:
        model: The model.
        losses: From the model and a batch to one loss per example.
        parameters: The trainable parameters by name, in the order of `trainable_parameters`.
        stand_ins: What is called in place of layers during a recorded pass; see `inosgd.gradients.calls`.
        functions: The parameters of recurrent and attention modules, by identity, with their module's path: these
            are recorded when the library's function for them is called.
        modules: All modules of the model, each once.
        tables: Where the modules hold their parameters and buffers, which no pass may write to.
        inplace: The modules that would work in place and run out of place; see `inosgd.gradients.inplace`.
        watched: Whether some of the parameters are not those of a layer with a rule, so that functions are watched.
        seen: What checked batches had; None while one is checked, where anything may be.
        by_columns: Whether linear maps have the places of a batch in their columns; see `inosgd.gradients.invariance`.
        reading: Where examples are taken to be.
        quiet: See `Seen`.
        turned: See `Recorder`.
    """

    model: nn.Module
    losses: ExampleLosses
    parameters: dict[str, nn.Parameter]
    stand_ins: tuple[tuple[nn.Module, StandIn], ...]
    functions: dict[int, str]
    modules: tuple[nn.Module, ...]
    tables: tuple[Table, ...]
    inplace: tuple[nn.Module, ...] = ()
    watched: bool = False
    seen: Seen | None = None
    by_columns: bool = False
    reading: Reading = READINGS[0]
    quiet: frozenset[int] = frozenset()
    turned: Set[str] | None = None

    @classmethod
    def of(cls, model: nn.Module, losses: ExampleLosses) -> Task:
        """The task for the model as it is now; what is trainable may change between batches."""
        parameters: dict[str, nn.Parameter] = {}
        stand_ins: list[tuple[nn.Module, StandIn]] = []
        functions: dict[int, str] = {}
        tables: list[Table] = []
        watched = False
        modules: dict[nn.Module, str] = {}
        _walk("", model, modules)
        for module, path in modules.items():
            tables += tables_of(module)
            if module._parameters:
                trained = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
                parameters.update({f"{path}.{name}" if path else name: p for name, p in trained.items()})
                stand_in = _stand_in(path, module, list(trained.values()), functions)
                watched |= stand_in is None and any(id(p) not in functions for p in trained.values())
            else:
                stand_in = quicker(module, path)
            if stand_in is not None:
                stand_ins.append((module, stand_in))
        return cls(
            model,
            losses,
            _each_once(parameters) or trainable_parameters(model),
            tuple(stand_ins),
            functions,
            tuple(modules),
            tuple(tables),
            tuple([module for module in modules if can_run_out_of_place(module) and overwrites(module)]),
            watched,
        )

    def recorder(self, count: int) -> Recorder:
        """What takes the notes of a pass over so many examples."""
        return Recorder(count, self.functions, self.reading, self.turned)

    @property
    def device(self) -> torch.device:
        """Where the model's first trainable parameter is."""
        return next(iter(self.parameters.values())).device


def _each_once(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The same under their first names only."""
    if len(set(map(id, parameters.values()))) == len(parameters):
        return parameters
    names = {id(parameter): name for name, parameter in reversed(parameters.items())}
    return {name: parameter for name, parameter in parameters.items() if names[id(parameter)] == name}


def _walk(path: str, module: nn.Module, found: dict[nn.Module, str]) -> None:
    """What ``named_modules`` does, in a third of the time: it is done at every step."""
    found[module] = path
    for name, child in module._modules.items():
        if child is not None and child not in found:
            _walk(f"{path}.{name}" if path else name, child, found)


def _stand_in(
    path: str, module: nn.Module, trained: Sequence[nn.Parameter], functions: dict[int, str]
) -> StandIn | None:
    """What records a module with these trained parameters; None where functions do it.

    Those of recurrent and attention modules, which have functions of their own, are added to ``functions``.
    """
    if isinstance(module, nn.MultiheadAttention):
        functions.update({id(p): path for p in module.parameters() if p.requires_grad})
        return None
    if not trained or id(trained[0]) in functions:
        return None
    if isinstance(module, nn.RNNBase):
        functions.update({id(p): path for p in trained})
        return recurrent_layer(module)
    rule = rule_for(module)
    return None if rule is None else recorded_layer(path, module, rule)


@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """What one pass left: losses, bounds on gradients, and the gradients themselves in compact forms.

    Attributes:
        parameters: The trained parameters, in their order.
        losses: One per example.
        forms: The gradients.
        count: How many examples there are; what is behind them repeats the last, so that batches have few sizes.
        norms: At least every example's gradient norm, and at least a `CANCELLATION`-th of its magnitude.
        magnitudes: At least the sum of the norms of all that an example adds to a sum; see `Bounds`.
        folds: See `Recorder`.
        calls: See `Recorder`.
        functions: See `Seen`.
        constant: See `Recorder`.
    """

    parameters: tuple[nn.Parameter, ...]
    losses: torch.Tensor
    forms: Gradients
    norms: FloatArray
    magnitudes: FloatArray
    count: int
    folds: Folds = ()
    calls: Set[tuple[str, int]] = frozenset()
    functions: bool = False
    constant: Set[str] = frozenset()

    def measure(self) -> Measured:
        """See `BatchGradients.measure`."""
        return Measured(self.losses[: self.count].double().cpu().numpy(), self.norms[: self.count])

    @torch.no_grad()
    def weighted_sum(self, coefficients: FloatArray, error: float = 0.0) -> torch.Tensor:
        """See `BatchGradients.weighted_sum`. Next to gradients that are not finite, 0 must not be multiplied.

        What products lose below the smallest normal number is 2^-126 times numbers that are no larger than 2^64, for at
        most 2^20 places and 2^16 rows of a weight in all 2^20 2^8 2^-62 = 2^-34: nothing beside an ``error`` of 2^-16
        or more. Where it is smaller, coefficients are scaled by a power of two to where it is about 1.
        """
        _validate.same_length(coefficients=coefficients, losses=self.losses[: self.count])
        if len(self.losses) > self.count:
            coefficients = np.append(coefficients, np.zeros(len(self.losses) - self.count))
        single = self._single_will_do(coefficients, error)
        unit = 2.0 ** np.frexp(error)[1] if single and 0 < error < _SMALL_ERROR else 1.0
        by_kernel, places = self._all_by_kernel() if single else (None, 1)
        scales = torch.from_numpy(np.repeat(coefficients / unit, places)).to(self.losses.device)
        if by_kernel is not None:
            total = by_kernel.flat_sum(scales)
            return total if unit == 1.0 else total * unit
        forms = list(self.forms.values())
        if not np.isfinite(self.norms).all():
            rows = torch.from_numpy(np.flatnonzero(coefficients)).to(scales.device)
            forms, scales = [form.select(rows) for form in forms], scales[rows]
        total = self._flat(forms, scales, single)
        return total if unit == 1.0 else total.mul_(unit)

    def _single_will_do(self, coefficients: FloatArray, error: float) -> bool:
        """Whether a sum in the type of the model is in error by at most ``error``; see `inosgd.rounding`."""
        dtype = self.parameters[0].dtype
        if dtype == torch.float64:
            return True
        magnitude = float(np.dot(np.abs(coefficients), np.where(coefficients == 0, 0.0, self.magnitudes)))
        return 1e-12 < error < 1e12 and ROUNDOFFS * torch.finfo(dtype).eps / 2 * magnitude <= 0.99 * error

    def _flat(self, forms: Sequence[Form], coefficients: torch.Tensor, single: bool) -> torch.Tensor:
        sizes = [parameter.numel() for parameter in self.parameters]
        total = new_doubles(sum(sizes), self.losses)
        pairs = zip(self.parameters, total.split_with_sizes(sizes), strict=True)
        places = {id(parameter): part.view(parameter.shape) for parameter, part in pairs}
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameters, form in zip(self.forms, forms, strict=True):
            targets = [places.pop(id(parameter)) for parameter in parameters if id(parameter) in places]
            if type(form) is Dense and len(targets) == len(parameters):
                held += zip(form.gradients, targets, strict=True)
                continue
            if hasattr(form, "sum_into") and len(targets) == len(parameters):
                form.sum_into(targets, coefficients, single=single)
                continue
            parts = form.weighted_sum(coefficients, single=single)
            wanted = [part for parameter, part in zip(parameters, parts, strict=True) if parameter.requires_grad]
            for target, part in zip(targets, wanted, strict=True):
                target.copy_(part)
        held_sums(held, coefficients, single=single)
        for nothing in places.values():
            nothing.zero_()
        return total

    def _all_by_kernel(self) -> tuple[KernelGradients | None, int]:
        """The gradients of all the parameters, in their order, if the kernel has them; and the rows of an example."""
        for parameters, form in self.forms.items():
            rows, places = (form.rows, form.places) if isinstance(form, FoldedChain) else (form, 1)
            if isinstance(rows, KernelGradients) and [*map(id, parameters)] == [*map(id, self.parameters)]:
                return rows, places
        return None, 1


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
            _check_seen(task, task.seen, losses, recorder)
        _check_shapes(task.seen, examples, recorder)
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


class UncheckedError(InvalidArgumentError):
    """Parameters are used in a way in which no batch used them that was checked."""


def _functions(task: Task, examples: Examples, recorder: Recorder) -> AbstractContextManager[Any]:
    """What sees the functions that a pass calls, if it has to see any."""
    if task.watched or task.seen is None or task.seen.functions:
        names = {id(parameter): name for name, parameter in task.parameters.items()}
        recorder.watch = watch = Watch(recorder, names, tensors_of(examples))
        recorder.constant = task.seen.constant if task.seen is not None else set()
        return watch
    return _RecordedFunctions(recorder) if task.functions else nullcontext()


def _check_seen(task: Task, seen: Seen, losses: torch.Tensor, recorder: Recorder) -> None:
    """Refuse uses of parameters that are not recorded, and numbers of rows that no batch had that was checked.

    All rows of a batch of one are that example's. Rows that were picked from several have the same shapes, and nothing
    that tells whose they are.
    """
    name = uncovered(losses, recorder.records, task.parameters)
    if name is not None:
        raise UncheckedError(
            f"parameter {name!r}: it is used past what is recorded of it, outside a call of its module, unlike in "
            "batches that were checked; use it in the same way in every batch, or use ReferenceEngine"
        )
    if recorder.count == 1:
        return
    folds = tuple(recorder.folds)
    if (folds and folds not in seen.folds) or not recorder.calls <= seen.calls:
        known = {fold for folds in seen.folds for fold in folds} | seen.calls
        new = sorted({path for path, _ in (recorder.calls | set(folds)) - known or folds})
        raise UncheckedError(
            f"modules {new}: rows for {recorder.count} examples that they had in no batch that was checked; let "
            "dimension 0 count the examples in every batch, or use ReferenceEngine"
        )


class RaggedError(InvalidArgumentError):
    """The shapes inside of a model depend on what examples hold."""


def _check_shapes(seen: Seen, examples: Examples, recorder: Recorder) -> None:
    """Refuse shapes that an example has in this batch and had in no other, of examples of the same shape.

    Kernels, and the formulas of norms, go by shapes: where a batch is as long as its longest example wants, that one
    decides how all others are rounded. An example that passes alone has shapes of its own.
    """
    if recorder.count == 1:
        return
    known = seen.shapes.setdefault(tuple([leaf.shape[1:] for leaf in tensors_of(examples)]), {})
    for where, shapes in recorder.shapes.items():
        if not shapes <= known.setdefault(where, shapes):
            raise RaggedError(
                f"module {where!r}: its outputs have another shape per example than in batches before, for examples of "
                "the same shape: if the longest example decides how long all are inside of the model, it decides how "
                "they are rounded too; use a constant length (no trimming, pad_packed_sequence with total_length), or "
                "ReferenceEngine"
            )


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
