"""One rule per layer type: from a layer's input and output gradient to its per-example gradients."""

from inosgd.gradients.rules import convolution, embedding, linear, normalization  # noqa: F401  (register themselves)
from inosgd.gradients.rules.forms import Blocks, Dense, Form, Lookups, OuterProducts, Summed
from inosgd.gradients.rules.rule import Gradients, LayerCall, Rule, register_rule, rule_for

__all__ = [
    "Blocks",
    "Dense",
    "Form",
    "Gradients",
    "LayerCall",
    "Lookups",
    "OuterProducts",
    "Rule",
    "Summed",
    "register_rule",
    "rule_for",
]
