"""A task: a model, its losses, and how calls of the model's layers are recorded in a pass."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import nn

from inosgd.gradients.calls import StandIn, quicker, recorded_layer, recurrent_layer
from inosgd.gradients.engine import ExampleLosses, trainable_parameters
from inosgd.gradients.inplace import can_run_out_of_place, overwrites
from inosgd.gradients.rules.recorder import READINGS, Reading, Recorder
from inosgd.gradients.rules.rule import rule_for
from inosgd.gradients.seen import Seen
from inosgd.gradients.written import Table, tables_of


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
        frozen: The parameters that are not trainable.
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
    frozen: tuple[torch.Tensor, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, losses: ExampleLosses) -> Task:
        """The task for the model as it is now; what is trainable may change between batches."""
        parameters: dict[str, nn.Parameter] = {}
        stand_ins: list[tuple[nn.Module, StandIn]] = []
        functions: dict[int, str] = {}
        tables: list[Table] = []
        frozen: list[torch.Tensor] = []
        watched = False
        modules: dict[nn.Module, str] = {}
        _walk("", model, modules)
        for module, path in modules.items():
            tables += tables_of(module)
            if module._parameters:
                trained = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
                if len(trained) < len(module._parameters):
                    frozen += [p for p in module._parameters.values() if p is not None and not p.requires_grad]
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
            frozen=tuple(frozen),
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
