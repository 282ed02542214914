"""Parameters that are used outside a layer with a rule: functions are recorded, wherever they are called.

Inside `Watch` every function of torch that is called from Python is seen, with what it is given. A tensor is

- *carried* if it was computed from trained parameters and constants alone: relative biases, normalised weights, slices;
- *of the batch* if the examples had a part in it.

A function of parameters and carried tensors alone gives a carried one. Where they meet the batch, one of three things
is recorded, each of which is exact:

1. Functions with a rule (linear maps, convolutions, embeddings, normalisation) have the gradients of their layer.
2. A function that broadcasts (sums, products, masks of attention) is given a row for each example in place of the one
   that all share; the gradient of an example's row is the example's gradient.
3. Any other function f has g_i = d_i^T df(x_i, w)/dw, mapped over the examples i; that f gives x_i alone what it gave
   it in its batch is compared every time.

From a carried tensor gradients are pulled back to its parameters, example by example, through its own graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import _VF
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.arguments import swapped, tensors_in
from inosgd.gradients.rules.attention import recorded_attention
from inosgd.gradients.rules.carried import Carried, CarriedUses, leaves_behind, pulled, through_graph
from inosgd.gradients.rules.embedding import embedding_rule
from inosgd.gradients.rules.forms import Dense, Form, apart
from inosgd.gradients.rules.functions import MAPS, RECORDED, RULED, lookups_of
from inosgd.gradients.rules.mapped import Layout, Mapped, by_example, off_its_base
from inosgd.gradients.rules.recorder import LayoutError, Recorder
from inosgd.gradients.rules.recurrent import note_packing
from inosgd.gradients.rules.rule import Gradients, LayerCall, Rule, examples_first, gradients_of, noted

_BROADCAST = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "maximum", "minimum", "where", "lerp", "addcmul")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
) | {"subtract", "multiply", "divide", "true_divide", "rsub", "addcdiv"}
"""Names of functions whose arguments are broadcast to one shape, entry by entry."""

_EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to", "repeat"})
"""Names of functions that make rows out of one."""

_QUESTIONS = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf")]
    + [getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "__len__", "is_floating_point")]
    + [torch.is_floating_point, torch.is_tensor, torch.Tensor.is_contiguous, torch.Tensor.data_ptr]
)
"""Functions that say something about a tensor and return none."""

_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm"})
"""Names of functions whose last two arguments are multiplied, matrix by matrix."""

_TYPES_ONLY = frozenset({"to", "type_as"})
"""Names of methods that look at nothing but the type and the device of further tensors."""

_REMEDIES = dict.fromkeys(
    ("_grouped_mm", "grouped_mm"),
    "places are in the order of experts there: call model.set_experts_implementation('batched_mm')",
)
"""What to do about functions by name whose arguments have examples nowhere."""


class Watch(TorchFunctionMode):
    """Records functions of trained parameters inside a ``with`` block.

    Attributes:
        used: Whether a parameter was used outside a layer with a rule, so far.
        events: How often something was done about a function, so far.
    """

    def __init__(self, recorder: Recorder, names: Mapping[int, str], examples: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.used = False
        self.events = 0
        self._recorder: Recorder = weakref.proxy(recorder)  # which has this: memory is free as soon as a pass is over
        self._names = names
        self._carried: dict[int, Carried] = {}
        self._of_batch: dict[int, weakref.ref[torch.Tensor]] = {}
        self._inside: dict[int, weakref.ref[torch.Tensor]] = {}
        self.follow(examples)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorded, recording = RECORDED.get(func), torch.is_grad_enabled()
        if func in _QUESTIONS or (recording and recorded is None and self._recorder.in_layer):
            return func(*args, **kwargs)  # what a layer with a rule returns has a gradient, which tells what it is
        types_only = getattr(func, "__name__", "") in _TYPES_ONLY
        given = tensors_in(args[:1], {}) if types_only else tensors_in(args, kwargs)
        known = any(map(self.is_of_batch, given))
        used = [each for each in map(self.carried, given) if each is not None] if recording else []
        if recorded is not None and any(map(self._recorder.records_functions_of, given)):
            self.events += 1
            result = recorded(self._recorder, args, kwargs)
        elif not used or self._recorder.in_layer:
            result = func(*args, **kwargs)
            if func is _VF._pack_padded_sequence:
                self.events += 1
                note_packing(self._recorder, args, result)
        elif known:
            self.used = True
            self.events += 1
            versions = [each.tensor._version for each in used]
            result = self._met(func, args, kwargs, used)
            for each, version in zip(used, versions, strict=True):
                if each.tensor._version != version:
                    raise InvalidArgumentError(
                        f"parameter {each.where!r}: what was computed from it was changed in place by values of the "
                        "batch; use an operation that is not in place (torch.where, torch.cat)"
                    )
        else:
            return self._carry(func, args, kwargs, given, used)
        if known or used:
            self.follow(tensors_in((result,), {}))
        elif not recording:
            self._inside.update({id(each): weakref.ref(each) for each in tensors_in((result,), {})})
        return result

    def carried(self, tensor: torch.Tensor) -> Carried | None:
        """What is known of a carried tensor or a trained parameter; None for any other."""
        if not tensor.requires_grad:
            return None
        name = self._names.get(id(tensor))
        if name is not None:
            return Carried(tensor, name)
        found = self._carried.get(id(tensor))
        return self._by_own_function(tensor) if found is None and id(tensor) in self._inside else found

    def _by_own_function(self, tensor: torch.Tensor) -> Carried | None:
        """A carried tensor that an ``autograd.Function`` of the model's own has computed; None for any other.

        The function's inner operations were seen, without gradients: the last of them was given nothing of the batch.
        """
        if self._inside[id(tensor)]() is not tensor or tensor.grad_fn is None or not torch.is_grad_enabled():
            return None
        edges = [output.edge for record in self._recorder.records for output in record.outputs]
        recorded = {edge[:2] for edge in edges if edge is not None}
        names = [self._names.get(id(each)) for each in leaves_behind(tensor, recorded)]
        if not names or None in names:
            return None
        self.events += 1
        self.used = True
        found = self._carried[id(tensor)] = Carried(tensor, str(names[0]))
        return found

    def is_of_batch(self, tensor: torch.Tensor) -> bool:
        """Whether the examples had a part in a tensor. What has a gradient and is not carried comes from layers."""
        known = self._of_batch.get(id(tensor))
        if known is not None and known() is tensor:
            return True
        if not tensor.requires_grad or self.carried(tensor) is not None:
            return False
        return tensor.grad_fn is not None or id(tensor) not in self._inside  # there a view of a parameter has none

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the examples had a part in tensors."""
        for tensor in tensors:
            self._of_batch[id(tensor)] = weakref.ref(tensor)

    def _carry(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Sequence[torch.Tensor],
        used: Sequence[Carried],
    ) -> Any:
        """The result of a function of parameters alone."""
        versions = {id(each.tensor): each.tensor._version for each in used}
        with self._recorder.of_parameters():
            result = func(*args, **kwargs)
        changed = [each.tensor for each in used if each.tensor._version != versions[id(each.tensor)]]
        found = [each for each in (*tensors_in((result,), {}), *given) if each.requires_grad]
        made = [each for each in found if self.carried(each) is None]  # or a constant that was changed in place
        lookups = lookups_of(func, args, kwargs) if made else None
        for each in made:
            self._carried[id(each)] = Carried(each, used[0].where, lookups if each is result else None)
        for each in changed:
            self._carried[id(each)] = Carried(each, used[0].where)
        self.events += bool(made or changed)
        self.used |= bool(made or changed)  # to ask for a parameter's shape or type is no use of it
        block = _expanded_block(func, args, result, self._recorder.count) if found and len(used) == 1 else None
        if block is None:
            return result
        if self._recorder.count > 1:
            self._recorder.folds.append((used[0].where, 0))
        if len(block) == 1:
            rows = self._spread(Carried(block, used[0].where), result.shape)
            return rows.contiguous() if result.is_contiguous() else rows
        return self._spread(Carried(block[None], used[0].where), (self._recorder.count,)).flatten(0, 1)

    def _met(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], used: Sequence[Carried]) -> Any:
        """The result of a function of parameters and of the batch, recorded."""
        if func in MAPS:
            return MAPS[func](self, *args, **kwargs)
        ruled = RULED.get(func)
        if ruled is not None and args and self.is_of_batch(args[0]):
            layer = ruled.layer(*args, **kwargs)
            if layer is not None and not any(map(self.is_of_batch, tensors_in(vars(layer).values(), {}))):
                output = func(*args, **kwargs)
                self.record(output, ruled.rule, layer, args[0], used)
                return output
        substituted = self._with_rows(func, args, kwargs)
        if substituted is not None:
            return func(*substituted[0], **substituted[1])
        if func is torch.einsum and isinstance(args[0], str):
            return self._summed(args, kwargs, used)
        return self.mapped(func, args, kwargs, used, self._by_blocks(func, args, kwargs))

    def _by_blocks(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | None, Layout] | None:
        """Where examples are in a product with one matrix for each entry of dimension 0 (heads, times): in dimension 1.

        None for any other function, whose layout shapes tell.
        """
        if getattr(func, "__name__", "") not in _PRODUCTS:
            return None
        given = tensors_in(args, kwargs)
        inputs, weights = given[-2:]
        of_batch = [each for each in given if self.is_of_batch(each)]
        blocks = self.carried(weights) is not None and weights.dim() == 3 and len(weights) > 1
        if not blocks or any(each.dim() != 3 or each.shape[1] % self._recorder.count for each in (inputs, *of_batch)):
            return None
        layouts: dict[int | None, Layout] = {
            id(each): Layout(1, each.shape[1] // self._recorder.count) for each in of_batch
        }
        return {**layouts, None: layouts[id(inputs)]} if id(inputs) in layouts else None

    def _summed(self, args: tuple[Any, ...], kwargs: dict[str, Any], used: Sequence[Carried]) -> Any:
        """The result of ``torch.einsum``, whose equation tells where examples are: all have one letter for them."""
        operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
        terms, _, output = args[0].replace(" ", "").partition("->")
        pairs = list(zip(operands, terms.split(","), strict=True))
        layouts = {id(each): self._layout(each, used[0].where, "einsum") for each in operands}
        found = [(layouts[id(each)], term) for each, term in pairs]
        counting = {(term[layout.dim], layout.rows) for layout, term in found if layout and layout.dim < len(term)}
        letter, rows = counting.pop() if len(counting) == 1 else (".", 0)
        if counting or "." in args[0] or letter not in output:
            return self.mapped(torch.einsum, args, kwargs, used)
        places: dict[int | None, Layout] = {None: Layout(output.index(letter), rows)}
        for index, (each, term) in enumerate(pairs):
            if letter in term:
                place, carried = Layout(term.index(letter), rows), self.carried(each)
                pairs[index] = (each if carried is None else self._entries(carried, place), term)
                places[id(pairs[index][0])] = place
        given = (args[0], *[each for each, _ in pairs])
        rest = [each for each in used if any(each.tensor is one for one, _ in pairs)]
        return self.mapped(torch.einsum, given, kwargs, rest, places) if rest else torch.einsum(*given, **kwargs)

    def record(
        self, output: torch.Tensor, rule: Rule, layer: SimpleNamespace, inputs: torch.Tensor, used: Sequence[Carried]
    ) -> None:
        """Record an output whose gradients a rule knows, for what it is shown as a layer."""
        where, behind = used[0].where, {id(each.tensor): each for each in used}
        flipped = self._recorder.flipped(output, where)
        places, note = self._recorder.places(output, where, int(flipped)), noted(rule, output)

        def parts(gradient: torch.Tensor) -> Gradients:
            call = LayerCall(layer, (inputs,), {}, None, gradient, note, places)
            return pulled(gradients_of(rule, examples_first(call) if flipped else call), behind)

        shared = [each.tensor for each in used]
        self._recorder.add([output], parts, [inputs], where, example_dim=int(flipped), by_example=True, carried=shared)

    def _spread(self, row: Carried, shape: Sequence[int]) -> torch.Tensor:
        """One row as a row for each example; the gradient of each is its example's."""
        rows = row.tensor.expand(shape[0], *row.tensor.shape[1:])
        behind = {id(row.tensor): row}

        def parts(gradient: torch.Tensor) -> Gradients:
            places = len(gradient) // self._recorder.count
            of_rows = gradient.unsqueeze(1) if places == 1 else apart(gradient, places).sum(1, keepdim=True)
            return pulled({(row.tensor,): Dense((of_rows,))}, behind)  # type: ignore[dict-item]

        self._recorder.add([rows], parts, [], row.where, by_example=True, carried=[row.tensor])
        return rows

    def _with_rows(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Arguments of a function that broadcasts, with a row for each example in what all share; None for others."""
        name = getattr(func, "__name__", "")
        given = tensors_in(args, kwargs)
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        if func is functional.scaled_dot_product_attention:
            if mask is None or any(each is not mask and self.carried(each) for each in given):
                return None
        elif name not in _BROADCAST:
            return None
        depth = max(tensor.dim() for tensor in given)
        of_batch = [tensor for tensor in given if tensor.dim() == depth and self.is_of_batch(tensor)]
        rows = {len(tensor) for tensor in of_batch} - {1}
        shared = [each for each in given if self.carried(each)]
        where = next(each.where for each in map(self.carried, shared) if each is not None)
        if of_batch and all(self._recorder.flipped(each, where) for each in of_batch):
            if any(each.dim() >= depth - 1 and each.shape[each.dim() - depth + 1] != 1 for each in shared):
                return None
            columns = {id(each): self._columns(self.carried(each), depth) for each in shared}  # type: ignore[arg-type]
            return swapped(columns, args, kwargs)
        count = rows.pop() if len(rows) == 1 else self._recorder.count if self._recorder.count == 1 else 0
        if (
            rows
            or not count
            or depth == 0
            or any(each.dim() == depth and len(each) not in (1, count) for each in shared)
        ):
            return None
        replaced: dict[int, torch.Tensor] = {}
        for each in {id(tensor): tensor for tensor in shared}.values():
            replaced[id(each)] = self._rows(self.carried(each), depth, count)  # type: ignore[arg-type]
        return swapped(replaced, args, kwargs)

    def _columns(self, carried: Carried, depth: int) -> torch.Tensor:
        """What all examples share with an entry for each of them in dimension 1, where the batch has its examples."""
        tensor = carried.tensor
        column = carried._replace(tensor=tensor.reshape(*[1] * (depth - tensor.dim()), *tensor.shape))
        first, _, *others = column.tensor.shape
        columns = column.tensor.expand(first, self._recorder.count, *others)
        behind = {id(column.tensor): column}

        def parts(gradient: torch.Tensor) -> Gradients:
            return pulled({(column.tensor,): Dense((gradient.transpose(0, 1).unsqueeze(2),))}, behind)  # type: ignore[dict-item]

        self._recorder.add([columns], parts, [], carried.where, example_dim=1, by_example=True, carried=[column.tensor])
        return columns

    def _rows(self, carried: Carried, depth: int, count: int) -> torch.Tensor:
        """A row for each row of the batch, in a function that broadcasts to so many dimensions."""
        tensor = carried.tensor
        if tensor.dim() < depth or len(tensor) == 1:
            row = tensor.reshape(*[1] * (depth - tensor.dim()), *tensor.shape)
            return self._spread(carried._replace(tensor=row), (count,))
        if carried.lookups is not None:
            rows = tensor.view_as(tensor)  # row i meets row i of the batch, and no other
            behind = Carried(carried.lookups.layer.weight, carried.where)
            self.record(rows, embedding_rule, carried.lookups.layer, carried.lookups.indices, [behind])
            return rows
        return self._entries(carried, Layout(0, len(tensor) // self._recorder.count))

    def _entries(self, carried: Carried, layout: Layout) -> torch.Tensor:
        """A carried tensor with entries for each example: those of an example have its gradient and no other."""
        entries = carried.tensor.view_as(carried.tensor)

        def parts(gradient: torch.Tensor) -> Gradients:
            each = []
            for start in range(0, gradient.shape[layout.dim], layout.rows):
                alone = torch.zeros_like(gradient)
                own = alone.narrow(layout.dim, start, layout.rows)
                own.copy_(gradient.narrow(layout.dim, start, layout.rows))
                each.append(through_graph(carried, alone[None]))
            return {(source,): Dense((torch.cat([found[source] for found in each]),)) for source in each[0]}

        where, shared = carried.where, [carried.tensor]
        self._recorder.add([entries], parts, [], where, example_dim=layout.dim, by_example=True, carried=shared)
        return entries

    def attended(self, behind: Mapping[int, Carried], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of attention whose weights are these, recorded map by map."""
        return recorded_attention(CarriedUses(self._recorder, behind), args, kwargs)

    def mapped(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        used: Sequence[Carried],
        known: Mapping[int | None, Layout] | None = None,
    ) -> Any:
        """Any function, with the vector-Jacobian product of every example.

        Where examples are is told by shapes, or is ``known`` for all arguments of the batch, by their identity, and
        under None for the output.
        """
        where, count = used[0].where, self._recorder.count
        name = getattr(func, "__name__", str(func))
        if name.endswith("_") and not name.endswith("__"):
            if self.carried(args[0]) is not None:
                return func(*args, **kwargs)  # which is refused as a write to the model
            raise InvalidArgumentError(
                f"parameter {where!r}: {name} changes its argument in place, so that gradients could not be computed "
                "from it; use the operation that is not in place"
            )
        leaves, structure = pytree.tree_flatten((args, kwargs))
        result = off_its_base(func(*args, **kwargs), leaves)
        layouts = [self._layout(leaf, where, name) if known is None else known.get(id(leaf)) for leaf in leaves]
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        dims = [int(self._recorder.flipped(each, where)) if known is None else known[None].dim for each in outputs]
        places = [Layout(d, self._recorder.places(each, where, d)) for each, d in zip(outputs, dims, strict=True)]
        behind = {id(each.tensor): each for each in used}
        call = Mapped(name, where, func, leaves, structure, layouts, list(behind.values()), count)
        shown = [(output.detach(), output._version) for output in outputs]

        def parts(*gradients: torch.Tensor) -> Gradients:
            unchanged = all(output._version == version for output, version in shown)
            given = [output for output, _ in shown] if unchanged else call.again()
            found = call.gradients(
                [by_example(d, place) for d, place in zip(gradients, places, strict=True)],
                [by_example(y, place) for y, place in zip(given, places, strict=True)],
            )
            of_used: dict[Any, Form] = {(w.tensor,): Dense((part,)) for w, part in zip(call.used, found, strict=True)}
            return pulled(of_used, behind)

        kept = [leaf for leaf, layout in zip(leaves, layouts, strict=True) if layout]
        shared = [each.tensor for each in used]
        self._recorder.add(outputs, parts, kept, where, example_dim=dims, by_example=True, carried=shared)
        return result

    def _layout(self, leaf: Any, where: str, name: str) -> Layout | None:
        """Where the examples are in an argument; None if it is not of the batch."""
        if not isinstance(leaf, torch.Tensor) or not self.is_of_batch(leaf):
            return None
        if self._recorder.flipped(leaf, where):
            return Layout(1, 1)
        if leaf.dim() == 0 or len(leaf) == 0 or len(leaf) % self._recorder.count:
            raise LayoutError(
                f"parameter {where!r}: it meets values of shape {tuple(leaf.shape)} in {name}, for "
                f"{self._recorder.count} examples; {_REMEDIES.get(name, 'let their dimension 0 count the examples')}, "
                "or use ReferenceEngine"
            )
        return Layout(0, len(leaf) // self._recorder.count)


def _expanded_block(func: Any, args: tuple[Any, ...], result: Any, count: int) -> torch.Tensor | None:
    """The rows that an expansion to the examples of a batch has copied for each of them; None for anything else."""
    name = getattr(func, "__name__", "")
    if name not in _EXPANSIONS or result.dim() == 0 or len(result) == 0 or len(result) % count:
        return None
    source: torch.Tensor = args[0]
    with torch._C.DisableTorchFunction():
        if name == "repeat":
            sizes = args[1] if isinstance(args[1], list | tuple) else args[1:]
            copies = 1 if len(result) == sizes[0] else sizes[0] // count
            return source.repeat(copies, *sizes[1:]) if sizes[0] % count == 0 else None
        if source.dim() == result.dim() and len(source) != 1:
            return None
        return source[(None,) * (result.dim() - source.dim())].expand(1, *result.shape[1:])
