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
    before = _versions(tables)
    yield
    after = _versions(tables)
    if after != before:
        raise _written(model, *_first_other(tables, before, after))


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


def _versions(tables: Sequence[Table]) -> list[tuple[int, int]]:
    """Which tensors there are, and how often each was written to."""
    tensors = [tensor for table in tables for tensor in table.values() if tensor is not None]
    return [(id(tensor), version_of(tensor)) for tensor in tensors]


def version_of(tensor: torch.Tensor) -> int:
    """How often it was written to, as far as torch counts."""
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode, outside of which it cannot be written to
        return 0


def _first_other(
    tables: Sequence[Table], before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]
) -> tuple[Table, str]:
    """Where the first tensor is that is another one than before, or was written to; the last if one was taken away."""
    places = [(table, name) for table in tables for name, tensor in table.items() if tensor is not None]
    other = [place for place, new, old in zip(places, after, before, strict=False) if new != old]
    return (other or places[-1:] or [(tables[0], "")])[0]


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
