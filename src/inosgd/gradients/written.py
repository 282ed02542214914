"""Whether a pass wrote to the model: what a forward pass writes has been through neither clipping nor noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from inosgd.errors import InvalidArgumentError

Table = Mapping[str, torch.Tensor | None]
"""The parameters or the buffers of one module, as the module itself holds them."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def tables_of(module: nn.Module) -> list[Table]:
    """Where a module holds parameters and buffers of its own, if it has any."""
    return [table for table in (module._parameters, module._buffers) if table]


@contextmanager
def unwritten(model: nn.Module, tables: Sequence[Table]) -> Iterator[None]:
    """Refuse what is done inside if it writes to a parameter or buffer of the model, or puts another in its place.

    Guarantee:
        Writes that torch counts are all seen, in any pass. What goes past its count (``buffer.data``, NumPy) is seen
        only where contents are compared, by `same_contents`.

    Raises:
        InvalidArgumentError: It names the parameter or buffer.
    """
    before = [_versions(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        new = _versions(table)
        if new != old:
            names = [name for name, tensor in table.items() if tensor is not None]
            changed = [name for name, one, other in zip(names, new, old, strict=False) if one != other]
            raise _written(model, table, (changed or names)[0])


@contextmanager
def same_contents(model: nn.Module) -> Iterator[None]:
    """`unwritten` by the bits of all parameters and buffers: slower, and nothing goes past it."""
    tables = [table for module in model.modules() for table in tables_of(module)]
    before = {(id(table), name): _digest(tensor) for table in tables for name, tensor in table.items()}
    yield
    for table in tables:
        for name, tensor in table.items():
            if before.get((id(table), name)) != _digest(tensor):
                raise _written(model, table, name)


def _versions(table: Table) -> list[tuple[int, int]]:
    """Which tensors there are, and how often each was written to."""
    try:
        return [(id(tensor), tensor._version) for tensor in table.values() if tensor is not None]
    except RuntimeError:  # made in inference mode, outside of which they cannot be written to
        return [(id(tensor), 0) for tensor in table.values() if tensor is not None]


def _digest(tensor: torch.Tensor | None) -> int:
    """The sum of the bits of all numbers, modulo 2^64."""
    if tensor is None:
        return 0
    integer = _INTEGERS.get(tensor.element_size(), torch.int64)
    return int(tensor.detach().flatten().view(integer).sum())


def _written(model: nn.Module, table: Table, name: str) -> InvalidArgumentError:
    places = [(path, module) for path, module in model.named_modules() if any(table is t for t in tables_of(module))]
    path, module = places[0] if places else ("", model)
    kind = "parameter" if name in module._parameters else "buffer"
    where = f"{path}.{name}" if path else name
    return InvalidArgumentError(
        f"{kind} {where!r} changed during a forward pass: it would carry private data out of training, past clipping "
        "and noise; stop updating it, or call model.eval() on its module"
    )
