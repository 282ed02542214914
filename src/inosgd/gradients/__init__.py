"""Per-example gradients: the engines' interface and the engines."""

from inosgd.gradients.batchnorm import replace_batchnorm
from inosgd.gradients.bookkeeping import BookkeepingEngine
from inosgd.gradients.checks import check_model
from inosgd.gradients.engine import (
    BatchGradients,
    ExampleLosses,
    Examples,
    GradientEngine,
    Measured,
    OffsetLosses,
    parameter_count,
    supervised,
    trainable_parameters,
)
from inosgd.gradients.reference import ReferenceEngine
from inosgd.gradients.rules import LayerCall, register_rule

__all__ = [
    "BatchGradients",
    "BookkeepingEngine",
    "ExampleLosses",
    "Examples",
    "GradientEngine",
    "LayerCall",
    "Measured",
    "OffsetLosses",
    "ReferenceEngine",
    "check_model",
    "parameter_count",
    "register_rule",
    "replace_batchnorm",
    "supervised",
    "trainable_parameters",
]
