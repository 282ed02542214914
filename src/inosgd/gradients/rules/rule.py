"""What a layer rule is, and the table of rules.

A rule turns one call of a layer, with the gradient of its output, into the gradients of the layer's own
parameters in a compact form:

    def scale_rule(call: LayerCall) -> Gradients:
        return {(call.module.scale,): Dense((call.input * call.gradient,))}

    register_rule(Scale, scale_rule)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from inosgd.gradients.rules.forms import Form, folded

Gradients = Mapping[tuple[nn.Parameter, ...], Form]
"""Parameters that belong together, and the form of their per-example gradients, one part per parameter."""


class LayerCall(NamedTuple):
    """One call of a layer during the forward pass, and what came back to it in the backward pass.

    Attributes:
        module: The layer.
        arguments: What it was called with; the first dimension of each tensor counts the rows.
        keywords: The same by name.
        output: What it returned, for a rule that was registered with ``keep_output``; None otherwise.
        gradient: The gradient of the summed losses with respect to the output.
        noted: What the rule's ``note`` found at the output when the layer was called; None without one.
        places: How many consecutive rows make an example. A rule that does not read it returns the gradients of rows.
    """

    module: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    output: torch.Tensor | None
    gradient: torch.Tensor
    noted: Any = None
    places: int = 1

    @property
    def input(self) -> torch.Tensor:
        """The first argument."""
        first: torch.Tensor = self.arguments[0] if self.arguments else next(iter(self.keywords.values()))
        return first.detach()

    def trains(self, name: str) -> bool:
        """Whether the layer has a parameter of this name and it is trainable."""
        parameter = getattr(self.module, name, None)
        return parameter is not None and parameter.requires_grad


Rule = Callable[[LayerCall], Gradients]
"""From a call to the gradients of the layer's trainable parameters; it must not change what it is given."""

_RULES: dict[type[nn.Module], Rule] = {}
_NAMED: dict[str, Rule] = {}
_keep_output: set[Rule] = set()
_folding: set[Rule] = set()
_notes: dict[Rule, Callable[[torch.Tensor], Any]] = {}


def register_rule(
    module_type: type[nn.Module],
    rule: Rule,
    *,
    keep_output: bool = False,
    note: Callable[[torch.Tensor], Any] | None = None,
) -> None:
    """Use ``rule`` for layers of this type, in place of any earlier rule.

    Args:
        module_type: The type of layer.
        rule: Its rule. A `Form` of one's own has to sum in groups of examples; see `Form.weighted_sum`.
        keep_output: Whether the rule reads ``call.output``. Keeping outputs takes memory: a plain step frees most of
            them on the way.
        note: Is shown the output of every call, still with its graph; what it returns is the rule's ``call.noted``.
    """
    _RULES[module_type] = rule
    if keep_output:
        reads_output(rule)
    _notes.pop(rule, None)
    if note is not None:
        _notes[rule] = note


def register_named_rule(name: str, rule: Rule) -> None:
    """`register_rule` for a type of a package that may not be installed, by the full name of the type."""
    _NAMED[name] = rule


def reads_output(rule: Rule) -> Rule:
    """Mark a rule as one that reads ``call.output``."""
    _keep_output.add(rule)
    return rule


def reads_places(rule: Rule) -> Rule:
    """Mark a rule as one that reads ``call.places`` and returns the gradients of examples."""
    _folding.add(rule)
    return rule


def examples_first(call: LayerCall) -> LayerCall:
    """A call whose tensors have their examples in dimension 1, with dimensions 0 and 1 exchanged in all of them."""
    count = call.gradient.shape[1]

    def exchanged(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.transpose(0, 1) if leaf.dim() > 1 and leaf.shape[1] == count else leaf

    return LayerCall(call.module, *pytree.tree_map_only(torch.Tensor, exchanged, tuple(call[1:])))


def gradients_of(rule: Rule, call: LayerCall) -> Gradients:
    """The gradients of the examples of a call, by its rule."""
    found = rule(call)
    if call.places == 1 or rule in _folding:
        return found
    count = len(call.gradient) // call.places
    return {parameters: folded(form, call.places, count) for parameters, form in found.items()}


def keeps_output(rule: Rule) -> bool:
    """Whether the outputs of layers under this rule have to be kept."""
    return rule in _keep_output


def noted(rule: Rule, output: torch.Tensor) -> Any:
    """What the rule's note finds at an output; None if it has none."""
    note = _notes.get(rule)
    return None if note is None else note(output)


def rule_for(module: nn.Module) -> Rule | None:
    """The rule registered for the module's type, or for a base class whose ``forward`` it inherits.

    A module that was given a ``forward`` of its own computes something else than its type does, and has no rule; nor
    has one whose weight is computed from other parameters (``weight_norm``, parametrizations).
    """
    own = vars(module)
    if "forward" in own or "weight" in own or "parametrizations" in module._modules:
        return None
    for base in type(module).__mro__:
        rule = _RULES.get(base) or _NAMED.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None and issubclass(base, nn.Module):
            return rule if type(module).forward is base.forward else None
    return None
