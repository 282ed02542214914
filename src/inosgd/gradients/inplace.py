"""Modules with ``inplace=True``, which run out of place while an engine has the model.

A module that overwrites its input saves memory in a plain step. Gradients by book-keeping are computed from inputs and
outputs as the forward pass saw them, so that nothing may be overwritten before they are read. The flag decides where a
result is stored and not what it is, unless the model uses the overwritten value again; `inosgd.gradients.values` looks
for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

_TYPES = frozenset(
    {
        nn.AlphaDropout,
        nn.CELU,
        nn.Dropout,
        nn.Dropout1d,
        nn.Dropout2d,
        nn.Dropout3d,
        nn.ELU,
        nn.FeatureAlphaDropout,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Hardtanh,
        nn.LeakyReLU,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.RReLU,
        nn.SELU,
        nn.SiLU,
        nn.Threshold,
    }
)
"""Torch's own modules whose ``inplace`` says where the result is stored and nothing else."""


def overwrites(module: nn.Module) -> bool:
    """Whether a module says of itself that it works in place."""
    return bool(getattr(module, "inplace", False))


def can_run_out_of_place(module: nn.Module) -> bool:
    """Whether a module works out of place if its flag is off: one of torch's own, with the ``forward`` of its type."""
    return type(module) in _TYPES and "forward" not in vars(module)


@contextmanager
def out_of_place(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Turn the modules' flags off, inside this block only; afterwards they are what they were."""
    before = [(module, module.inplace) for module in modules]
    try:
        for module in modules:
            vars(module)["inplace"] = False
        yield
    finally:
        for module, flag in before:
            vars(module)["inplace"] = flag
