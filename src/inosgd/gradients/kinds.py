"""Kinds of tasks: two of one kind differ in nothing but numbers.

What kernels do with a batch depends on shapes, types and layouts and not on numbers (`inosgd.gradients.invariance` says
what is assumed of them). What was found of one model is therefore true of others of its kind: of those that are trained
with other seeds, methods or budgets in one comparison, or for one audit. Another model of a kind is to the checks of
values what the same model is after some steps.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Hashable

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from inosgd.gradients.engine import ExampleLosses, Examples, Supervised
from inosgd.gradients.rules.rule import rule_for
from inosgd.gradients.task import Task

_CONTENTS = ("_parameters", "_buffers", "_modules")
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_KNOWN_CODE = ("torch", "inosgd")
_KNOWN_MODULES = ("torch.nn.modules.", "inosgd.models.")
_ADDRESSES = 64
"""Kernels tell addresses apart by their remainder of so many bytes, at most."""


class _OfNoKindError(Exception):
    """Something that may do other things than another that looks like it."""


def kind_of(task: Task, examples: Examples) -> Hashable | None:
    """Everything of a task and its batches but numbers, and how many examples; None where that cannot be told.

    It can be told of modules of `torch.nn` and `inosgd.models`, all of whose behaviour is in their attributes, and of
    `supervised` losses with a function of torch's or of this library's. A subclass, a hook, a mode, an attribute of
    another type and a function of the user's, which may read global variables, may do anything.

    Guarantee:
        Two tasks of one kind run the same code on tensors of the same shapes, types and layouts, as long as no party
        replaces torch's own functions in between. What holds for one of them whatever its numbers are holds for both.
    """
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    if modes or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return None
    try:
        modules = tuple([_module(module) for module in task.modules])
        places = {id(module): place for place, module in enumerate(task.modules)}
        quiet = frozenset([places[each] for each in task.quiet if each in places])
        turned = None if task.turned is None else frozenset(task.turned)
        return modules, _shared(task), _losses(task.losses), task.reading, quiet, turned, _layout(examples)
    except _OfNoKindError:
        return None


def _layout(examples: Examples) -> Hashable:
    leaves, structure = pytree.tree_flatten(examples)
    return structure, tuple([_row(leaf) if isinstance(leaf, torch.Tensor) else _plain(leaf) for leaf in leaves])


def _row(leaf: torch.Tensor) -> Hashable:
    return type(leaf), leaf.shape[1:], leaf.dtype


def _module(module: nn.Module) -> Hashable:
    if not _is_known_class(type(module)):
        raise _OfNoKindError
    own = tuple([(name, _plain(value)) for name, value in vars(module).items() if name not in _CONTENTS])
    tensors = [*module._parameters.items(), *module._buffers.items()]
    held = tuple([(name, _plain(tensor)) for name, tensor in tensors])
    return type(module), _functions(type(module)), rule_for(module), own, held, tuple(module._modules)


def _functions(kind: type) -> Hashable:
    """What the class does, which may have been replaced since."""
    functions = [each for base in kind.__mro__[:-1] for each in vars(base).values() if callable(each)]
    return tuple([each for each in functions if isinstance(each, types.FunctionType)])


def _shared(task: Task) -> Hashable:
    """Which parameters and modules are one and the same."""
    first: dict[int, int] = {}
    held = [each for module in task.modules for each in (*module._parameters.values(), *module._modules.values())]
    return tuple([first.setdefault(id(each), place) for place, each in enumerate(held)])


def _losses(losses: ExampleLosses) -> Hashable:
    if type(losses) is not Supervised:
        raise _OfNoKindError
    offsets = None if losses.offsets is None else tuple([(each.dtype, each.shape) for each in losses.offsets.values()])
    return _plain(losses.loss), offsets, losses.classes_last, losses.targets


def _plain(value: object) -> Hashable:
    if type(value) in _PLAIN:
        return type(value), value
    if isinstance(value, types.BuiltinFunctionType | types.FunctionType) and _is_known(value):
        return (value,)
    if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, nn.Parameter):
        return _tensor(value)
    if type(value) in (tuple, list, set):
        return type(value), tuple([_plain(each) for each in value])  # type: ignore[attr-defined]
    if isinstance(value, weakref.ref) or (isinstance(value, dict) and not value):
        return (type(value),)
    raise _OfNoKindError


def _is_known_class(module: type[nn.Module]) -> bool:
    """Whether it is of known code, and no other class under the name of one that is."""
    home = sys.modules.get(module.__module__)
    return module.__module__.startswith(_KNOWN_MODULES) and getattr(home, module.__name__, None) is module


def _is_known(function: types.BuiltinFunctionType | types.FunctionType) -> bool:
    """Whether it is of known code, with nothing bound to it or in a closure, which may hold anything."""
    if isinstance(function, types.BuiltinFunctionType):
        return isinstance(function.__self__, types.ModuleType | None)
    root = str(function.__globals__.get("__name__")).partition(".")[0]
    return function.__closure__ is None and root in _KNOWN_CODE


def _tensor(value: torch.Tensor) -> Hashable:
    if value.layout is not torch.strided or value._backward_hooks:
        raise _OfNoKindError
    address = value.data_ptr() % _ADDRESSES
    return type(value), value.shape, value.stride(), value.dtype, value.device, value.requires_grad, address
